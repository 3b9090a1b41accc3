"""Calls with an epilogue, known again by what their arrays look like."""

import numpy as np
import pytest
from tests.pure.calls.test_known import Session, Tensor

from stretto.arrays import array_readers as readers_module
from stretto.errors import CallError
from stretto.program.epilogues import cast, epilogue, row_mean, rsqrt
from stretto.runtime.calls.known_epilogues import learn_epilogue, repeat_epilogue
from stretto.runtime.calls.requests.layout import MISS

SHAPE = (4, 64)
SIZE = 4 * 64 * 4


@epilogue
def normed(y, residual, weight, eps):
    s = y + residual
    return {"out": s * rsqrt(row_mean(s * s) + eps) * weight, "residual": s}


@epilogue
def doubled(y, by):
    return cast(y * by, "float32")


class Fused(Session):
    """A session whose launches take an epilogue's arrays, too."""

    def prepare(self, plan, call):
        self.prepared.append(call)

        def launch(x, out, stream=None, extra=()):
            place = [p if isinstance(p, int | float) else p.at for p in (x, out)]
            more = [p.at if isinstance(p, Tensor) else p for p in extra]
            self.launched.append((*place, *more))

        return launch


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setitem(readers_module._readers, Tensor, readers_module._tensor)
    return Fused()


def call(comm, first, *, shape=SHAPE, residual_at=None, weight="float32", eps=1e-6):
    """Call on tensors that lie one after the other from an address."""
    at = [first + 2 * n * SIZE for n in range(4)]
    x, out = Tensor(at[0], shape), Tensor(at[1], shape)
    residual = Tensor(residual_at or at[2], shape)
    bound = normed(weight=Tensor(at[3], shape[-1:], weight), residual=residual, eps=eps)
    made = comm.all_reduce(x, epilogue=bound.into(residual=residual, out=out))
    return made, (x, out, residual)


def test_other_arrays_are_launched_by_their_addresses(comm, session, blind):
    """In the order of the function, whatever the caller's; numbers are the call's."""
    call(comm, 1 << 20)
    learned = session.launched[-1]
    blind()
    for n in range(2, 20):
        first = n << 20
        made, (_, out, residual) = call(comm, first, eps=n / 2)
        moved = [a if isinstance(a, float) else a + first - (1 << 20) for a in learned]
        moved[4] = n / 2

        assert tuple(moved) == session.launched[-1]
        assert out is made["out"]
        assert residual is made["residual"]


def test_a_single_output_comes_back_as_it_is(comm, session, blind):
    """A function that returns one expression gives one array."""
    for turn in (1, 2):
        x, to = Tensor(turn << 20), Tensor(turn << 21)
        assert comm.all_reduce(x, epilogue=doubled(by=2.0).into(out=to)) is to
        blind()


@pytest.mark.parametrize(
    "how",
    [
        {"shape": (8, 32)},
        {"weight": "float16"},
        {"residual_at": (1 << 20) + 2 * SIZE},
        {"residual_at": (1 << 20) + 3 * SIZE + 8},
    ],
    ids=["shape", "type", "overlap", "alignment"],
)
def test_what_differs_is_examined(comm, blind, how):
    """Another shape, type, overlap or alignment goes the long way."""
    call(comm, 1 << 20)
    blind()

    with pytest.raises(AssertionError, match="examined"):
        call(comm, 1 << 20, **how)


def test_an_overlap_is_refused_after_calls_that_had_none(comm):
    """The long way says so, as at the first call."""
    call(comm, 1 << 20)

    with pytest.raises(CallError, match="overlaps"):
        call(comm, 1 << 20, residual_at=1 << 20)


def test_another_function_of_the_same_text_is_its_own(comm, blind):
    """Functions are told apart by their identity, which is kept."""
    call(comm, 1 << 20)
    other = epilogue(lambda y, residual, weight, eps: {"out": y, "residual": y})
    blind()

    with pytest.raises(AssertionError, match="examined"):
        comm.all_reduce(
            Tensor(1 << 20, SHAPE),
            epilogue=other(
                residual=Tensor(1 << 21, SHAPE), weight=Tensor(1 << 22, (64,)), eps=1.0
            ).into(out=Tensor(1 << 23, SHAPE), residual=Tensor(1 << 24, SHAPE)),
        )


def test_after_a_fault_nothing_is_known(comm, session):
    """What was known goes with everything else."""
    call(comm, 1 << 20)
    session.launched.clear()
    comm._broke(RuntimeError("over"))

    with pytest.raises(Exception, match="over"):
        call(comm, 1 << 20)
    assert [] == session.launched


def test_arrays_on_the_cpu_go_the_long_way(comm):
    """There PyTorch or NumPy does it after the collective."""
    key = ("all_reduce", 0, 0)
    x = np.zeros(SHAPE, np.float32)
    bound = doubled(by=2.0).into(out=np.zeros(SHAPE, np.float32))
    learn_epilogue(comm, key, x, None, bound, lambda *_: None)

    assert MISS is repeat_epilogue(comm, key, x, None, bound)
