"""Started calls on GPUs, with stand-ins for streams: what waits for what, and when."""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from stretto.runtime.choice import Beside  # noqa: E402
from stretto.torch import call_streams as module  # noqa: E402
from stretto.torch.call_streams import CallStreams  # noqa: E402


class Event:
    def __init__(self, gpu):
        self.gpu, self.at, self.reached = gpu, None, False

    def record(self, stream):
        self.gpu.log.append(("record", stream.name))
        self.at, self.reached = stream.name, False
        if self not in self.gpu.events:
            self.gpu.events.append(self)

    def wait(self, stream):
        assert self.at is not None, "an event is recorded before it is waited for"
        self.gpu.log.append(("wait", stream.name, self.at))

    def query(self):
        assert not self.gpu.capturing, "an event must not be asked in a capture"
        return self.reached


class Stream:
    priority = 0

    def __init__(self, gpu, name):
        self.gpu, self.name = gpu, name
        self.cuda_stream = 1000 + len(gpu.streams)
        gpu.streams[self.cuda_stream] = self

    def synchronize(self):
        self.gpu.log.append(("host waits", self.name))
        for event in self.gpu.events:
            event.reached = True


class Gpu:
    """torch.cuda, as far as streams use it."""

    def __init__(self):
        self.log, self.events, self.capturing = [], [], False
        self.streams = {}
        self.caller = self.now = Stream(self, "caller")

    def Stream(self, device, priority):  # noqa: N802
        return Stream(self, "group's")

    def Event(self):  # noqa: N802
        return Event(self)

    def ExternalStream(self, handle, device):  # noqa: N802
        return self.streams[handle]

    def current_stream(self, device=None):
        return self.now

    def is_current_stream_capturing(self):
        return self.capturing

    def set_stream(self, stream):
        self.now = stream

    @contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before


class Tensor:
    device, nbytes, is_cuda = "cuda:0", module.SHORT + 1, True

    def get_device(self):
        return 0


class Short(Tensor):
    nbytes = module.SHORT

    def data_ptr(self):
        return 4096


@pytest.fixture
def gpu(monkeypatch):
    one = Gpu()
    monkeypatch.setattr(module.torch, "cuda", one)
    monkeypatch.setattr(
        module, "current_handle", lambda index: one.now.cuda_stream
    )  # a PyTorch with CUDA would ask a driver
    module._stream_of.cache_clear()
    yield one
    module._stream_of.cache_clear()


def test_a_call_runs_after_the_callers_work_and_the_caller_waits_for_its_end(gpu):
    """The group's stream waits for the caller's, and that for the group's event."""
    heard = []
    streams = CallStreams(lambda: heard.append(True))
    work = streams.start(lambda: gpu.log.append(("call", gpu.now.name)), [Tensor()])
    want = [("record", "caller"), ("wait", "group's", "caller")]
    assert [*want, ("call", "group's"), ("record", "group's")] == gpu.log
    assert gpu.caller is gpu.now
    assert not work.is_completed()
    work.wait()
    assert ("wait", "caller", "group's") == gpu.log[-1]
    assert [True] == heard


def test_tensors_are_held_until_the_gpu_has_passed_the_call(gpu):
    """They are let go when a later call finds the event reached."""
    streams, x = CallStreams(lambda: None), Tensor()
    first = streams.start(lambda: None, [x])
    assert first._held == [x]
    first.wait()
    streams.start(lambda: None, [Tensor()])
    assert first._held == [x]
    gpu.events[0].reached = True
    streams.start(lambda: None, [Tensor()])
    assert first._held == []
    assert 2 == len(streams._running)
    streams.synchronize()
    assert not streams._running


def test_an_event_serves_again_once_the_gpu_has_passed_it(gpu):
    """Who still holds the call of an event that serves another waits for nothing."""
    streams = CallStreams(lambda: None)
    first = streams.start(lambda: None, [Tensor()])
    streams.start(lambda: None, [Tensor()])
    assert 2 == len(gpu.events)
    gpu.events[0].reached = True
    third = streams.start(lambda: None, [Tensor()])
    assert (2, first._end) == (len(gpu.events), third._end)
    before = len(gpu.log)
    assert first.is_completed()
    first.wait()
    assert before == len(gpu.log)
    third.wait()
    assert ("wait", "caller", "group's") == gpu.log[-1]


def test_an_event_of_an_older_caller_is_no_end_of_a_call_that_failed(gpu):
    """What fails leaves nothing behind that is waited for or used again."""
    streams = CallStreams(lambda: None)
    with pytest.raises(RuntimeError, match="no"):
        streams.start(lambda: (_ for _ in ()).throw(RuntimeError("no")), [Tensor()])
    assert gpu.caller is gpu.now
    assert not streams._running
    assert not streams._events


def test_calls_that_were_joined_are_waited_for_where_they_run(gpu, monkeypatch):
    """Their Work is behind all that was started, and not behind the caller's alone."""
    monkeypatch.setattr(module.torch, "empty", lambda *_, device: Tensor())
    streams = CallStreams(lambda: None)
    streams.start(lambda: gpu.log.append(("call", gpu.now.name)), [Tensor()])
    joined = streams.all_so_far("cuda:0")
    before = len(gpu.log)
    joined.wait()
    assert [("wait", "caller", "group's")] == gpu.log[before:]


def test_in_a_capture_no_event_is_asked_and_nothing_is_kept(gpu):
    """Asking would end the capture, and a graph keeps its own memory."""
    streams = CallStreams(lambda: pytest.fail("a launch in a graph has not run"))
    streams.start(lambda: None, [Tensor()])
    gpu.capturing = True
    work = streams.start(lambda: None, [Tensor()])
    work.wait()
    assert not work.is_completed()
    assert 1 == len(streams._running)


def test_what_a_call_raises_is_raised_where_it_is_started(gpu):
    """The error comes at once, and is one of torch's as well."""
    from stretto.errors import PeerLost

    def fail():
        raise PeerLost("rank 1 died")

    with pytest.raises(torch.distributed.DistBackendError, match="rank 1 died"):
        CallStreams(lambda: None).start(fail, [Tensor()])


def test_a_short_call_runs_on_the_callers_stream_and_records_when_asked(gpu):
    """Only another stream that waits costs an event."""
    streams = CallStreams(lambda: None)
    work = streams.start(lambda: gpu.log.append(("call", gpu.now.name)), [Short()])
    work.wait()
    assert [("call", "caller")] == gpu.log  # the stream is in order: nothing waits
    other = Stream(gpu, "other")
    with gpu.stream(other):
        work.wait()
    assert [("record", "caller"), ("wait", "other", "caller")] == gpu.log[1:]
    gpu.events[0].reached = True
    assert work.is_completed()


def test_a_short_call_in_a_capture_asks_no_event(gpu):
    """Another stream of the capture may wait for it; that it has run is not said."""
    gpu.capturing = True
    work = CallStreams(lambda: None).start(lambda: None, [Short()])
    with gpu.stream(Stream(gpu, "other")):
        work.wait()
    assert [("record", "caller"), ("wait", "other", "caller")] == gpu.log
    assert not work.is_completed()


class Comm:
    """A communicator that notes what it is asked, and which refuses nothing."""

    def __init__(self):
        self.said, self.calls_by_place = [], {}

    def all_reduce(self, x, op, **_):
        self.said.append((x, op))

    def repeated_in_place(self, x, op, algorithm=None, stream=None):
        """Return that this call must be examined each time."""


@pytest.fixture
def group():
    """A group that has met nobody."""
    from stretto.torch.call_queue import CallQueue
    from stretto.torch.group import StrettoGroup
    from stretto.torch.known_places import KnownPlaces

    one = StrettoGroup.__new__(StrettoGroup)
    one._queue = CallQueue("fakes")
    one._lock, one._calls, one._communicator = one._queue.lock, [], Comm()
    one._known_places = KnownPlaces(one._communicator)
    one._last_pins, one._pin, one._short = None, Beside(), module.SHORT
    one._begin = None
    one._use(one._communicator)
    return one


@pytest.mark.parametrize("started", [True, False])
def test_a_short_all_reduce_is_one_call_of_the_communicator(gpu, group, started):
    """Nothing else is asked, of PyTorch or of stretto, before the wait or in it."""
    opts, x = torch.distributed.AllreduceOptions(), Short()
    opts.asyncOp = started
    work = group.allreduce([x], opts)
    assert started == (work is not None)
    if started:
        assert work.wait()
        assert isinstance(work, torch.distributed.Work)
        assert [x] == work.result()
    assert [(x, "sum")] == group._comm.said
    assert [] == gpu.log


def test_the_next_on_the_same_place_asks_the_communicator_nothing(gpu, group):
    """By the same operator; another one, or with named algorithms, is a call again."""
    opts, x = torch.distributed.AllreduceOptions(), Short()
    opts.asyncOp, said, again = False, group._comm.said, []
    for _ in range(3):
        group.allreduce([x], opts)
    assert 3 == len(said)
    group._places[x.data_ptr(), 0] = lambda tensor: again.append(tensor) or True
    group.allreduce([x], opts)
    assert (3, [x]) == (len(said), again)
    opts.reduceOp = torch.distributed.ReduceOp.MAX
    group.allreduce([x], opts)
    assert ((x, "max"), [x]) == (said[-1], again)
    opts.reduceOp = torch.distributed.ReduceOp.SUM
    with group.pinned({"all_reduce": "all_reduce/ring"}):
        group.allreduce([x], opts)
    assert [x] == again
    group.allreduce([x], opts)
    assert [x, x] == again
    group._places[x.data_ptr(), 0] = lambda tensor: False  # it must be examined
    before = len(said)
    group.allreduce([x], opts)
    assert before + 1 == len(said)


def test_which_stream_a_call_takes_is_told_by_what_is_asked_alone(gpu, group):
    """Not by what was at its place before: other ranks' tensors lie elsewhere."""
    from stretto.torch.known_places import NATIVE, STARTED

    opts, x = torch.distributed.AllreduceOptions(), Short()
    opts.asyncOp = True
    never = lambda *given: pytest.fail("a short call was begun as a long one")  # noqa: E731
    group._begin = never
    for kind in (STARTED, NATIVE):
        group._places[x.data_ptr(), kind] = never
    group.allreduce([x], opts).wait()
    assert [(x, "sum")] == group._comm.said
    assert [] == gpu.log


def test_a_large_call_on_a_stream_that_goes_first_is_beside_others(gpu):
    """Not on the usual stream, nor on one that waits for its turn, nor a short one."""
    first, last = Stream(gpu, "first"), Stream(gpu, "last")
    first.priority, last.priority = -1, 0
    found = {}
    for name, stream in (("usual", gpu.caller), ("first", first), ("last", last)):
        gpu.now = stream
        found[name] = module.is_aside([Tensor()]), module.is_aside([Short()])
    gpu.now = gpu.caller
    gpu.caller.cuda_stream = 0
    found["legacy"] = module.is_aside([Tensor()]), module.is_aside([Short()])

    nothing = (False, False)
    assert found == {
        "usual": nothing, "first": (True, False), "last": nothing, "legacy": nothing,
    }  # fmt: skip
