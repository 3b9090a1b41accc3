"""Peers of NCCL on memory of their own, here on tensors that lie on the host."""

import numpy as np
import pytest

from stretto.bench.contender import CallBuffer, Contender, PreparedCall
from stretto.bench.workload.cases import Check, case_of

torch = pytest.importorskip("torch", reason="NCCL is reached through PyTorch")

from tests.pure.bench.pretended import Torch  # noqa: E402

from stretto.bench.peers._gpu import OwnMemory  # noqa: E402


class Copier(Contender):
    """A peer that copies its input to its output, wherever those are."""

    closed = False

    def prepare(self, case, x, out):
        return PreparedCall(
            call=lambda: out.given.copy_(x.given), x=x, out=out, note="copies"
        )

    def close(self):
        self.closed = True


def buffer(count):
    array = np.zeros(count, np.float32)
    return CallBuffer(given=torch.from_numpy(array), host=array)


def test_the_peer_works_on_arrays_that_are_cut_to_size():
    """They grow when they must; what is ours is not touched."""
    made = []

    def make(nbytes):
        made.append(nbytes)
        return [torch.zeros(nbytes, dtype=torch.uint8) for _ in "io"]

    peer = Copier()
    own = OwnMemory(Torch(), peer, make, largest=8192, note="its own")
    for nbytes in (64, 8192, 16384):
        case = case_of("all_to_all", nbytes, 1)
        x, out = buffer(nbytes // 4), buffer(nbytes // 4)
        check = Check.fresh(case, 0, 0)

        prepared = own.prepare(case, x, out)
        prepared.x.write(check.x)
        prepared.call()

        assert "" == check.wrong(prepared.out.read(), case.dtype)
        assert not out.host.any()
        assert "its own; copies" == prepared.note
    own.close()
    assert [8192, 16384] == made
    assert peer.closed


def test_a_call_in_place_stays_one():
    """Input and output are then one array there, too."""
    own = OwnMemory(
        Torch(), Copier(), lambda n: [torch.zeros(n, dtype=torch.uint8) for _ in "io"],
        largest=64, note="",
    )  # fmt: skip
    x = buffer(16)

    prepared = own.prepare(case_of("all_reduce", 64, 1, in_place=True), x, x)

    assert prepared.x is prepared.out
