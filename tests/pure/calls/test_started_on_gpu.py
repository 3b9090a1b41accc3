"""Started calls on GPUs: enqueued by the caller, on its stream, up to a mark in it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tests.stand_ins import TensorLike

from stretto import executors
from stretto.errors import CallError, CollectiveTimeout, CommunicatorBroken
from stretto.runtime.calls import Communicator
from stretto.runtime.calls.forms.channels import PairRunner
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.calls.started import start

STREAMS = threading.local()


def current():
    """Return the stream that this thread works on, as torch tells it."""
    return getattr(STREAMS, "handle", 0)


class Mark:
    """A point in a stream that a test says is reached."""

    captured = False

    def __init__(self, stream):
        self.stream, self.is_reached, self.followers = stream, False, []

    def follow(self):
        self.followers.append(current())


class Session(executors.Session):
    """A GPU's session that notes who launches on what stream."""

    def __init__(self):
        self.launched, self.marks, self.fault = [], [], None
        self.gate = threading.Event()
        self.gate.set()

    def offset(self, array):
        return None

    def prepare(self, plan, call):
        def launch(x, out, stream=None):
            self.gate.wait(5)
            where = current() if stream is None else stream
            self.launched.append((threading.get_ident(), where))

        return launch

    def mark(self, stream):
        self.marks.append(Mark(current() if stream is None else stream))
        return self.marks[-1]

    def check(self):
        if self.fault is not None:
            raise self.fault

    def close(self):
        pass


class Tensor(TensorLike):
    """What a GPU tensor answers."""

    is_cuda, dtype = True, "torch.float32"

    def __init__(self, count=64, at=4096):
        self.shape, self.at = (count,), at

    def __dlpack_device__(self):
        return 2, 0

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return self.at

    def numel(self):
        return self.shape[0]


class Group(executors.Group):
    """Rank 1 of 3, alone; pairs of it are like it."""

    num_ranks, deadline_s, rank = 3, 1.0, 1

    broken = None

    def __init__(self):
        self.broken = np.zeros(1, np.int64)


class Pair(Group):
    """The first of two."""

    num_ranks, rank = 2, 0


@pytest.fixture
def session(monkeypatch):
    """The session that every engine gets, once it opens one."""
    one = Session()
    monkeypatch.setattr(
        CallRunner, "_session", lambda self, name: self._sessions.setdefault(name, one)
    )
    STREAMS.handle = 77
    return one


@pytest.fixture
def comm(session):
    with Communicator(Group(), profiles={}) as made:
        yield made


def test_a_started_call_is_enqueued_by_the_caller_on_its_stream(comm, session):
    """A thread of ours has another current stream: the call would race its producer."""
    x = Tensor()
    comm.all_reduce_async(x)
    comm.all_gather_async(x, out=Tensor(192, 65536), stream=5)

    me = threading.get_ident()
    assert [(me, 77), (me, 5)] == session.launched
    assert [77, 5] == [m.stream for m in session.marks]


def test_wait_is_for_the_current_stream_and_not_for_the_host(comm, session):
    """As torch's is; what has been met so far is raised."""
    x = Tensor()
    work = comm.all_reduce_async(x)
    STREAMS.handle = 78

    assert work.wait() is x
    assert [78] == session.marks[0].followers
    assert not work.is_done
    session.marks[0].is_reached = True
    assert work.is_done


def test_wait_with_a_timeout_holds_the_host(comm, session):
    """Until the stream has come to the end of the call, or time is up."""
    work = comm.all_reduce_async(x := Tensor())

    with pytest.raises(CollectiveTimeout, match=r"all_reduce: not done after 0.02 s"):
        work.wait(0.02)
    threading.Timer(0.02, lambda: setattr(session.marks[0], "is_reached", True)).start()
    assert work.wait(5) is x
    assert not session.marks[0].followers


@pytest.mark.parametrize("timeout_s", [None, 5])
def test_wait_raises_what_the_launch_met(comm, session, timeout_s):
    """What the record says; then the communicator is broken."""
    work = comm.all_reduce_async(Tensor())
    session.fault = CollectiveTimeout("rank 2 did not come")

    with pytest.raises(CollectiveTimeout, match="rank 2 did not come"):
        work.wait(timeout_s)
    with pytest.raises(CommunicatorBroken, match="rank 2 did not come"):
        comm.all_reduce_async(Tensor())


def test_a_wrong_argument_is_raised_where_it_is_passed(comm, session):
    """Nothing was started."""
    with pytest.raises(CallError, match="root=9"):
        comm.broadcast_async(Tensor(), root=9)
    assert not session.launched


def test_a_captured_call_has_no_end_that_the_host_can_wait_for(comm, session):
    """Streams of the graph can."""
    work = comm.all_reduce_async(x := Tensor())
    session.marks[0].captured = session.marks[0].is_reached = True

    assert work.wait() is x
    assert not work.is_done
    with pytest.raises(CallError, match="captured in a graph"):
        work.wait(1)


def test_started_calls_on_both_kinds_of_memory_keep_their_order(
    comm, session, monkeypatch
):
    """One on the GPU that follows one on the CPU is on its way when that has ended."""
    monkeypatch.setattr(executors.get("cuda"), "stream_here", lambda stream: 77)
    session.gate.clear()
    first = comm.all_reduce_async(np.ones(4, np.float32))
    second = comm.all_reduce_async(Tensor())
    assert not session.launched

    session.gate.set()
    first.wait(5)
    second.wait()
    assert [0, 77] == [where for _, where in session.launched]


def test_a_transfer_to_a_peer_that_has_not_come_does_not_hold_the_caller(
    session, comm, monkeypatch
):
    """Two ranks that both send first would wait for each other's receives.

    Its session opens on the thread; its stream is the channel's, after the caller's.
    """
    gpu = executors.get("cuda")
    monkeypatch.setattr(gpu, "stream_here", lambda s=None: 77 if s is None else s)
    followed = []
    side = SimpleNamespace(after=lambda stream: followed.append(stream) or 99)
    monkeypatch.setattr(gpu, "side_stream", lambda: side)
    channel = PairRunner(Pair(), comm)
    x, opened = Tensor(), threading.Event()

    def transfer(x, stream=None):
        opened.wait(5)
        channel._session("cuda").prepare(None, None)(x, None, stream=stream)
        return x

    work = start(channel, "send", transfer, x)
    assert not session.launched
    opened.set()
    deadline = time.monotonic() + 5
    while not session.marks and time.monotonic() < deadline:
        time.sleep(0.001)

    assert work.wait() is x
    assert [99] == [where for _, where in session.launched]
    assert threading.get_ident() != session.launched[0][0]
    start(channel, "send", transfer, x)
    assert (threading.get_ident(), 99) == session.launched[1]
    assert [77, 77] == followed
    assert [99, 99] == [m.stream for m in session.marks]
    channel._end()


def test_a_pair_of_ranks_only_transfers(session, comm):
    """Executors hear it, and keep less memory for its session."""
    comm._group.subgroup = lambda name, pair: Pair()
    comm.send(Tensor(), to=2)

    assert comm._channels[1, 2]._group.only_transfers
