"""Sums on GPUs that were started: known by their place, on few blocks, cheap."""

from __future__ import annotations

import threading

import pytest
from cuda_fakes import on_ranks

torch = pytest.importorskip("torch")

from cuda_tensors import read_as_on_gpu  # noqa: E402

from stretto.errors import CallError, DeviceError  # noqa: E402
from stretto.executors.cuda.codegen.abi import Kernel  # noqa: E402
from stretto.executors.cuda.device import driver  # noqa: E402
from stretto.executors.cuda.launching import kernels  # noqa: E402
from stretto.executors.cuda.launching.kernels import Loaded  # noqa: E402
from stretto.runtime.calls import Communicator  # noqa: E402
from stretto.runtime.choice import Beside  # noqa: E402
from stretto.runtime.choice.beside import FEW_BLOCKS, FEW_FOR_BULK  # noqa: E402
from stretto.torch import call_streams, known_places  # noqa: E402
from stretto.torch.call_queue import CallQueue  # noqa: E402
from stretto.torch.call_streams import CallStreams  # noqa: E402
from stretto.torch.group import StrettoGroup  # noqa: E402
from stretto.torch.known_places import NATIVE, KnownPlaces  # noqa: E402
from stretto.torch.options import Options  # noqa: E402

CALLER, SIDE = 7, 42


class Event:
    made = 0

    def __init__(self):
        Event.made += 1
        self.cuda_event = 1000 + Event.made

    def record(self, stream): ...

    def wait(self, stream): ...

    def query(self):
        return True


class Stream:
    def __init__(self, handle):
        self.cuda_stream, self.stream_id = handle, handle + 1


class Gpu:
    """torch.cuda, as far as streams use it."""

    Event = Event

    def __init__(self):
        self.streams, self.capturing = threading.local(), False

    @property
    def now(self):
        """This thread's current stream."""
        return getattr(self.streams, "now", CALLER)

    def Stream(self, index, priority):  # noqa: N802
        return Stream(SIDE)

    def ExternalStream(self, handle, device):  # noqa: N802
        return Stream(handle)

    def set_stream(self, stream):
        self.streams.now = stream.cuda_stream

    def is_current_stream_capturing(self):
        return self.capturing


@pytest.fixture
def gpu(monkeypatch):
    one = Gpu()
    read_as_on_gpu(monkeypatch)
    monkeypatch.setattr(driver, "_torch", [lambda ordinal: one.now])
    monkeypatch.setattr(call_streams.torch, "cuda", one)
    monkeypatch.setattr(call_streams, "current_handle", lambda index: one.now)
    monkeypatch.setattr(known_places, "load", lambda: None)
    call_streams._stream_of.cache_clear()
    yield one
    call_streams._stream_of.cache_clear()


def group_of(comm, options=None):
    """Return a group that has met nobody but by its communicator."""
    group = StrettoGroup.__new__(StrettoGroup)
    group._queue = CallQueue("fakes")
    group._lock, group._calls = group._queue.lock, group._queue.calls
    group._communicator = comm
    group._known_places, group._last_pins = KnownPlaces(comm), None
    group._begin = None
    group._pin, group._short = options or Beside(), 0
    group._streams = CallStreams(lambda: None)
    group._use(comm)
    return group


def alone(fake, work):
    """Run on the first of two ranks, with what counts its launches."""

    def run(group):
        comm = Communicator(group, executor="cuda")
        if group.rank == 0:
            asked = []

            def load(plan, call, **_):
                asked.append(plan.plan.schedule)
                kernel = Kernel(text="one", ranks=(0,), grid=2, threads=160)
                return Loaded(None, 7, kernel)

            comm._session("cuda").load_call = load
            work(comm, asked)
        group.exchange({})

    on_ranks(fake, 2, run)


def test_the_next_at_a_place_asks_the_communicator_nothing(fake, gpu):
    """It is launched once, on the group's stream, and by no other way."""

    def work(comm, asked):
        group, x = group_of(comm), torch.zeros(1 << 18)
        group._start_all_reduce(x, 0, None)
        assert CALLER == gpu.now
        before, made = len(fake.launches), Event.made
        slow = []
        group._beside = type("Slow", (), {"all_reduce": slow.append})()
        for _ in range(3):
            found = group._start_all_reduce(x.view(512, 512), 0, None)
        assert [] == slow
        assert before + 3 == len(fake.launches)
        assert {SIDE} == {found.handle, *(one[2] for one in fake.launches)}
        assert made == Event.made

    alone(fake, work)


def test_one_that_changes_or_is_captured_is_examined(fake, gpu):
    """It then goes the long way, on the group's stream as well, and is right."""

    def work(comm, asked):
        group, x = group_of(comm), torch.zeros(1 << 18)
        group._start_all_reduce(x, 0, None)
        asked.clear()
        group._start_all_reduce(x.view(torch.int32), 0, None)
        assert 1 == len(asked)  # another kind, so another kernel
        gpu.capturing = True
        assert group._streams.repeat(lambda x: pytest.fail("in a capture"), x) is None
        assert {SIDE} == {one[2] for one in fake.launches}
        assert CALLER == gpu.now

    alone(fake, work)


@pytest.mark.parametrize("most", [0, 3])
def test_a_started_call_has_few_blocks_and_one_that_blocks_its_own(fake, gpu, most):
    """Never more than the group's options allow."""

    def work(comm, asked):
        group, x = group_of(comm, Beside(most)), torch.zeros(4 << 20)
        group._start_all_reduce(x, 0, None)
        comm.all_reduce(x, "sum")
        few, usual = (schedule.blocks for schedule in asked)
        assert few == (most or FEW_FOR_BULK)
        assert usual > 2 * few

    alone(fake, work)


def test_what_a_user_names_serves_started_calls_too(fake, gpu):
    """For the calls of a block, or of all of a group."""

    def work(comm, asked):
        group, x = group_of(comm), torch.zeros(1 << 18)
        with group.pinned({"all_reduce": "all_reduce/ring push bulk staged blocks=5"}):
            group._start_all_reduce(x, 0, None)
        assert [5] == [schedule.blocks for schedule in asked]
        group._start_all_reduce(x, 0, None)
        assert [5, FEW_BLOCKS] == [schedule.blocks for schedule in asked]

    alone(fake, work)


class Native:
    """What is compiled of a group, as far as what it is given."""

    @staticmethod
    def load():
        return Native

    class Place:
        def __init__(self, again, hear, fail, like, stream):
            self.again, self.fail, self.stream = again, fail, stream


@pytest.fixture
def native(monkeypatch):
    """Let a group's sums be made known to C++, which is not there."""
    monkeypatch.setattr(known_places, "load", Native.load)


def begun(comm, x):
    """Start a sum until it is known; return what C++ knows of it."""
    group = group_of(comm)
    for _ in range(2):
        group._start_all_reduce(x, 0, None)
    return group._places[x.data_ptr(), NATIVE]


def test_what_c_begins_is_four_calls_of_the_driver(fake, gpu, native):
    """Behind the caller's stream, on the group's, and the event behind it."""

    def work(comm, asked):
        place = begun(comm, torch.zeros(1 << 18))
        fake.by_address.clear()
        assert place.again(99, CALLER)
        assert [
            (b"cuEventRecord", 99, CALLER),
            (b"cuStreamWaitEvent", SIDE, 99),
            (b"cuLaunchKernelEx", SIDE),
            (b"cuEventRecord", 99, SIDE),
        ] == fake.by_address
        assert SIDE + 1 == place.stream
        assert CALLER == gpu.now

    alone(fake, work)


@pytest.mark.parametrize("stream", [CALLER, SIDE])
def test_a_driver_that_refuses_has_launched_once_at_most(fake, gpu, native, stream):
    """Before the launch: nothing was launched. Behind it: the fault is raised."""

    def work(comm, asked):
        place = begun(comm, torch.zeros(1 << 18))
        before = len(fake.launches)
        fake.refused = {(b"cuEventRecord", stream): 700}
        if stream == CALLER:
            assert not place.again(99, CALLER)
            assert before == len(fake.launches)
        else:
            with pytest.raises(DeviceError, match="behind a launch: error 700") as met:
                place.again(99, CALLER)
            with pytest.raises(torch.distributed.DistBackendError, match="error 700"):
                place.fail(met.value)
            assert before + 1 == len(fake.launches)
        fake.refused = {}

    alone(fake, work)


def test_what_cannot_be_begun_so_says_so(fake, gpu, native, monkeypatch):
    """Nothing can be compiled; a fault: then the place is not known any more."""

    def work(comm, asked):
        x = torch.zeros(1 << 18)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "missing", lambda: "no Numba")
            assert not begun(comm, x).again(99, CALLER)
        place = begun(comm, x)
        comm._group.broken[0] = 1
        comm._choose_table()  # as whoever breaks it does
        assert not place.again(99, CALLER)
        comm._group.broken[0] = 0

    alone(fake, work)


@pytest.mark.parametrize("given", [0, -1, 2.0, "8", True])
def test_blocks_that_are_none_are_refused(given):
    """With what was given and what is wanted."""
    with pytest.raises(CallError, match=f"max_blocks={given!r}; want a whole number"):
        Options(max_blocks=given)
