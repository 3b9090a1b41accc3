"""The peers of serving engines, against stand-ins of their packages on the host."""

import re
import types

import numpy as np
import pytest

from stretto.bench import peers
from stretto.bench.contender import CallBuffer, Contender, Setup
from stretto.bench.peers._side import MovingSide
from stretto.bench.workload.cases import case_of
from stretto.errors import CallError

torch = pytest.importorskip("torch", reason="their arrays are PyTorch's")

from tests.pure.bench.pretended import Torch  # noqa: E402

from stretto.bench.peers.flashinfer import FlashInfer  # noqa: E402
from stretto.bench.peers.vllm import Vllm  # noqa: E402

SETUP = Setup(rank=0, num_ranks=2, meet="", largest=1 << 20)


def buffer(count, dtype="bfloat16"):
    tensor = torch.zeros(count, dtype=getattr(torch, dtype))
    return CallBuffer(given=tensor, host=np.zeros(count, np.uint16), tensor=tensor)


class Comm:
    """flashinfer.comm, of one rank."""

    AllReduceFusionPattern = types.SimpleNamespace(kAllReduce=0)

    def __init__(self):
        self.made, self.shapes = [], []

    def create_allreduce_fusion_workspace(self, **how):
        self.made.append(how)
        return types.SimpleNamespace(destroy=lambda: None)

    def allreduce_fusion(self, x, workspace, pattern, *, output, **how):
        assert (0, True, True) == (pattern, how["launch_with_pdl"], how["fp32_acc"])
        self.shapes.append(tuple(x.shape))
        output.copy_(x)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for kind in (Contender, MovingSide)
        for name in peers.names(kind)
        if peers.get(name, kind).NEEDS[0]
    ],
)
def test_a_peer_that_is_not_installed_says_how_to_get_it(name, kind, monkeypatch):
    """As every optional part does, in collectives and in transfers."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert re.search(r"pip install|build it", peers.get(name, kind).missing())


@pytest.mark.parametrize(
    ("count", "shape"),
    [(1 << 20, (128, 8192)), (4096 * 3, (3, 4096)), (512, (1, 512)), (24, (3, 8))],
)
def test_flashinfer_sees_a_vector_as_rows(count, shape):
    """As few as there can be: its workspace is by rows."""
    comm = Comm()
    peer = FlashInfer(Torch(), comm, None, SETUP)
    x, out = buffer(count), buffer(count)
    x.tensor.fill_(3)

    case = case_of("all_reduce", 2 * count, 2, dtype="bfloat16")
    prepared = peer.prepare(case, x, out)
    prepared.call()

    assert [shape] == comm.shapes
    assert bool((out.tensor == 3).all())


def test_flashinfers_workspace_grows_only_when_it_must():
    """It is made for the largest buffer, all ranks together."""
    comm = Comm()
    peer = FlashInfer(Torch(), comm, None, SETUP)
    for nbytes in (1024, 1 << 20, 2 << 20, 4096):
        case = case_of("all_reduce", nbytes, 2, dtype="bfloat16")
        peer.prepare(case, buffer(nbytes // 2), buffer(nbytes // 2))

    assert [64, 128] == [how["max_token_num"] for how in comm.made]


@pytest.mark.parametrize(
    ("collective", "nbytes", "dtype"),
    [
        ("all_gather", 1024, "bfloat16"),
        ("all_reduce", 1024, "float64"),
        ("all_reduce", 1030, "bfloat16"),
    ],
)
def test_flashinfer_says_what_it_has_not(collective, nbytes, dtype):
    """A case that a peer does not have is named, not measured."""
    case = case_of(collective, nbytes, 2, dtype=dtype)
    count = nbytes // (8 if dtype == "float64" else 2)

    with pytest.raises(CallError, match="flashinfer"):
        FlashInfer(Torch(), Comm(), None, SETUP).prepare(
            case, buffer(count, dtype), buffer(count, dtype)
        )


class Custom:
    """vLLM's communicator: what is captured must be registered afterwards."""

    def __init__(self):
        self.registered, self.pending = [], 0

    def should_custom_ar(self, x):
        return x.numel() * x.element_size() % 16 == 0

    def all_reduce(self, x, *, out, registered):
        self.registered.append(registered)
        self.pending += registered
        out.copy_(x)

    def register_graph_buffers(self):
        self.pending = 0


def test_vllm_registers_what_a_graph_has_captured():
    """An eager call copies instead."""
    device, custom = Torch(), Custom()
    peer = Vllm(device, custom)
    prepared = peer.prepare(
        case_of("all_reduce", 1024, 2, dtype="bfloat16"), buffer(512), buffer(512)
    )
    prepared.call()
    device.capturing = True
    prepared.call()

    assert [False, True] == custom.registered
    assert 1 == custom.pending
    prepared.captured()
    assert 0 == custom.pending


def test_vllm_refuses_a_call_in_place():
    """Its result is another array."""
    x = buffer(512)

    with pytest.raises(CallError, match="not in place"):
        Vllm(Torch(), Custom()).prepare(
            case_of("all_reduce", 1024, 2, dtype="bfloat16"), x, x
        )
