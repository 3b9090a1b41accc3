"""Calls whose counts lie on the GPU: what is refused, and what is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from tests.stand_ins import TensorLike

from stretto import executors
from stretto.errors import CallError, PlanError
from stretto.runtime.calls import Communicator


class Session(executors.Session):
    """A GPU's session that remembers what it was asked."""

    def __init__(self):
        self.prepared, self.launched = [], []

    def prepare_counted(self, plan, gather, call):
        if plan.value.schedule.memory == "zero_copy":
            raise PlanError("peers touch the output; want 'staged'")
        self.prepared.append((plan.value, gather.value, call))
        return lambda x, out, stream, *, extra: self.launched.append(
            (x, extra[0], out, extra[1], stream)
        )

    def close(self):
        pass


class Group(executors.Group):
    """Rank 1 of 3, alone."""

    rank, num_ranks, deadline_s = 1, 3, 1.0
    broken = np.zeros(1, np.int64)


class Tensor(TensorLike):
    """What a GPU tensor answers; addresses stand for memory."""

    is_cuda = True

    def __init__(self, count, at, dtype="float32"):
        self.shape, self.at, self.dtype = (count,), at, f"torch.{dtype}"

    def __dlpack_device__(self):
        return 2, 0

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return self.at

    def detach(self):
        return self

    def new_empty(self, shape):
        return Tensor(int(np.prod(shape)), 1 << 30)


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def comm(session):
    made = Communicator(Group(), executor="", profiles={})
    made._sessions["cuda"] = session
    return made


X, OUT = Tensor(300, 4096), Tensor(300, 65536)
COUNTS, TOLD = Tensor(3, 64, "int64"), Tensor(3, 128, "int64")


def test_one_launch_serves_all_counts(comm, session):
    """It is known by the most there may be, not by what there is."""
    for _ in range(3):
        done = comm.all_to_all_v(X, COUNTS, max_count=100, out=OUT, received=TOLD)
        assert done is OUT
    (one,) = session.prepared
    plan, gather, call = one

    assert "all_to_all" == plan.collective
    assert "all_gather" == gather.collective
    assert (100,) * 9 == call.counts
    assert [(X, COUNTS, OUT, TOLD, None)] * 3 == session.launched


def test_an_all_gather_has_one_count_of_its_own(comm, session):
    """Everybody's parts, of sizes that only their owners' GPUs know."""
    own = Tensor(1, 64, "int64")
    comm.all_gather_v(X, own, max_count=100, out=OUT, stream=7)
    ((plan, _, call),) = session.prepared

    assert ("all_gather", (100,) * 3) == (plan.collective, call.counts)
    assert [(X, own, OUT, None, 7)] == session.launched


def test_a_reduce_scatter_reads_its_own_count_and_has_an_operator(comm, session):
    """Everybody is told the count that its rank reads, so no two differ."""
    done = comm.reduce_scatter_v(X, COUNTS, "max", max_count=100)
    ((plan, gather, call),) = session.prepared
    ((x, own, out, told, stream),) = session.launched

    assert ("reduce_scatter", "all_gather") == (plan.collective, gather.collective)
    assert ("max", (100,) * 3) == (call.op.value, call.counts)
    assert COUNTS.at + 8 == own.data_ptr()
    assert (X, done, None, None) == (x, out, told, stream)
    assert (100,) == done.shape


def test_an_output_is_made_for_the_most_there_may_be(comm):
    """Nobody on the host knows how much will come."""
    assert (300,) == comm.all_to_all_v(X, COUNTS, max_count=100).shape


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "want the most elements"),
        ({"max_count": 0}, "want the most elements"),
        ({"max_count": 9, "out": Tensor(9, 65536, "int32")}, "want one"),
        ({"max_count": 9, "out": np.zeros(9, np.float32)}, "want all there"),
        ({"max_count": 9, "out": Tensor(9, 4100)}, "out overlaps x"),
        ({"max_count": 9, "received": Tensor(2, 64, "int64")}, "want 3 x int64"),
        ({"max_count": 9, "received": np.zeros(3, np.int64)}, "on cpu"),
    ],
)
def test_wrong_arguments_are_refused(comm, session, options, words):
    """With what was given and what is wanted; nothing is launched."""
    with pytest.raises(CallError, match=words):
        comm.all_to_all_v(X, COUNTS, **{"out": OUT, **options})
    assert not session.launched


def test_a_pin_that_the_executor_refuses_is_a_call_error(comm, session):
    """It names the pin, and says what to do."""
    pin = "all_to_all/one_shot push bulk zero_copy"
    with pytest.raises(CallError, match=r"algorithm='all_to_all/one_shot .*'staged'"):
        comm.all_to_all_v(X, COUNTS, max_count=9, out=OUT, algorithm=pin)
    assert not session.launched


def test_counts_of_another_type_are_refused(comm):
    """The kernel reads 64-bit numbers."""
    with pytest.raises(CallError, match="counts is 3 x int32"):
        comm.all_to_all_v(X, Tensor(3, 64, "int32"), max_count=9, out=OUT)
