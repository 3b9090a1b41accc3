"""Streams without number share flags in order; what is captured has flags of its own.

Launches run in a model of the driver as careless as the real one may be: kernels last
as long as they like, one that may begin early heeds nothing but the kernel before it on
its stream, and whoever asks anything of a destroyed stream is found out.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
from collections import deque
from unittest import mock

import numpy as np
import pytest
from cuda_fakes import OK, on_ranks, real

from stretto import algorithms
from stretto.errors import CallError
from stretto.executors import Call
from stretto.executors.cuda.abi import PARAMS, Kernel
from stretto.executors.cuda.launch import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

GONE = real.CUresult.CUDA_ERROR_INVALID_HANDLE
STATES = real.CUstreamCaptureStatus


class Running:
    """A kernel that holds its set of flags from its begin to its end."""

    def __init__(self, model, control, number):
        self.model, self.control, self.number = model, control, number
        self.left = model.random.randrange(1, 40)
        self.begun = self.done = False

    def step(self):
        """Go on; return whether it has ended."""
        if not self.begun:
            self.begun = True
            holder = self.model.holders.get(self.control)
            if holder is not None:
                self.model.clashes.append((holder.number, self.number))
            self.model.holders[self.control] = self
            self.model.order.setdefault(self.control, []).append(self.number)
        self.left -= 1
        if self.left <= 0 and not self.done:
            self.done = True
            if self.model.holders.get(self.control) is self:
                del self.model.holders[self.control]
        return self.done


class Model:
    """What launches do in the fake driver, and what streams are asked."""

    def __init__(self, fake, monkeypatch):
        self.fake, self.random = fake, random.Random(5)
        self.holders, self.order, self.clashes = {}, {}, []
        self.last, self.issued, self.bad = {}, {}, []
        self.destroyed, self.captures, self.numbers = set(), {}, {}
        self.waits, self.synchronized = [], []
        self.lock = threading.Lock()
        fake._launch = self.launch
        for name in ("cuStreamWaitEvent", "cuEventRecord"):
            self.guard(monkeypatch, name)
        replace = {
            "cuStreamIsCapturing": self.capturing,
            "cuStreamGetCaptureInfo": self.info,
            "cuStreamGetId": self.number,
            "cuCtxSynchronize": self.synchronize,
        }
        for name, function in replace.items():
            monkeypatch.setattr(fake, name, function, raising=False)

    def key(self, stream):
        return self.fake.who.rank, int(stream)

    def guard(self, monkeypatch, name):
        """Find out who asks anything of a stream that is no more."""
        plain = getattr(self.fake, name)

        def ask(one, other, *more):
            stream = one if name == "cuStreamWaitEvent" else other
            if self.key(stream) in self.destroyed:
                self.bad.append((name, int(stream)))
                return (GONE,)
            if name == "cuStreamWaitEvent":
                self.waits.append(int(stream))
            return plain(one, other, *more)

        monkeypatch.setattr(self.fake, name, ask, raising=False)

    def capturing(self, stream):
        if self.key(stream) in self.destroyed:
            return GONE, None
        active = self.key(stream) in self.captures
        return OK, (
            STATES.CU_STREAM_CAPTURE_STATUS_ACTIVE
            if active
            else STATES.CU_STREAM_CAPTURE_STATUS_NONE
        )

    def info(self, stream):
        _, state = self.capturing(stream)
        return OK, state, self.captures.get(self.key(stream), 0), None, [], [], 0

    def number(self, stream):
        if self.key(stream) in self.destroyed:
            return GONE, 0
        return OK, self.numbers.get(self.key(stream), 1)

    def synchronize(self):
        rank = self.fake.who.rank
        self.synchronized.append(rank)
        for _ in range(1000):
            with self.fake.lock:
                self.fake._pump()
                mine = [q for k, q in self.fake.queues.items() if _of(k, rank)]
                if not any(mine):
                    break
        return (OK,)

    def destroy(self, stream):
        """Destroy a stream of this rank; what it was given still runs."""
        key = self.key(stream)
        with self.fake.lock:
            queue = self.fake.queues.pop(key, deque())
            self.fake.queues[key[0], f"{stream} no more", len(self.fake.queues)] = queue
        self.destroyed.add(key)
        self.last.pop(key, None)

    def create(self, stream):
        """Let a new stream have a handle."""
        key = self.key(stream)
        self.destroyed.discard(key)
        self.numbers[key] = self.numbers.get(key, 1) + 1

    def launch(self, config, function, arguments, _):
        *_, stream, attrs, count = struct.unpack("7IIQQI", ctypes.string_at(config, 52))
        early = count and struct.unpack("I", ctypes.string_at(attrs, 4))[0] == 6
        where = ctypes.c_void_p.from_address(arguments).value
        head = np.frombuffer(ctypes.string_at(where, PARAMS.itemsize), PARAMS)[0]
        rank = self.fake.who.rank
        with self.fake.lock:
            number = self.issued[rank] = self.issued.get(rank, 0) + 1
            running = Running(self, (rank, int(head["control"][rank])), number)
            key, before = (rank, stream), self.last.get((rank, stream))
            if early:  # it heeds the kernel before it, and nothing in between
                ready = (lambda: before.done) if before else (lambda: True)
                beside = self.fake.queues.setdefault((rank, stream, number), deque())
                beside.extend([ready, running.step])
                step = lambda: running.done  # noqa: E731
            else:
                step = running.step
            self.last[key] = running
            self.fake.queues.setdefault(key, deque()).append(step)
            self.fake.launches.append((function, stream, bool(early), where))
            self.fake._pump()
        return 0


def _of(key, rank):
    return isinstance(key, tuple) and key[0] == rank


@pytest.fixture
def model(fake, monkeypatch):
    """Return the model; a session has four sets of flags, as it has by default."""
    monkeypatch.setenv("STRETTO_CUDA_STREAMS", "4")
    return Model(fake, monkeypatch)


def launch_of(session, name="all_reduce/one_shot", **params):
    """Return a launch of any kernel."""
    kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
    session.load_call = lambda plan, call, rank=None: Loaded(None, 5, kernel)
    program = algorithms.get(name).build(session.group.num_ranks, **params)
    words = Schedule.parse("push packets staged")
    plan = verify_plan(lower(verify(program), words))
    return session.prepare(plan, Call(dtype="uint8", counts=(64,) * (1 + bool(params))))


def fifty(model, group, shift=0):
    """Call on fifty streams in random order; some end with their work under way."""
    session = CudaSession(group)
    launch, alike = launch_of(session), random.Random(3)
    again = launch.repeat(4096, 4096)
    assert again is not None
    streams = list(range(10, 60))
    for stream in streams[:4]:
        launch(4096, 4096, stream=stream)
    for _ in range(300):
        launch(4096, 4096, stream=alike.choice(streams))
        if alike.random() < 0.2:
            stream = alike.choice(streams[2:])
            model.destroy(stream)
            if alike.random() < 0.7:
                model.create(stream)
            else:
                streams.remove(stream)
    model.synchronize()
    issued = model.issued[group.rank]
    group.exchange({})
    session.close()
    return issued


def test_fifty_streams_never_meet_in_one_set(model):
    """Each set has one launch at a time, in the order of the calls, on every rank."""
    issued = on_ranks(model.fake, 2, lambda group: fifty(model, group))

    assert not model.clashes
    assert not model.bad
    assert issued[0] == issued[1] == 304
    places = {}
    for (rank, _), numbers in sorted(model.order.items()):
        assert numbers == sorted(numbers)
        places.setdefault(rank, []).append(numbers)
    assert places[0] == places[1]
    assert len(places[0]) == 3


def test_transfers_of_a_channel_follow_one_another(model):
    """Its first stream asks for nothing, and captures, until there is a second."""

    def work(group):
        group.only_transfers = True
        session = CudaSession(group)
        assert len(session.regions) == 1
        launch = launch_of(session, "permute/direct", pairs=((0, 1),))
        again = launch.repeat(4096, 4096)
        assert again is not None
        launch(4096, 4096, stream=7)
        model.captures[group.rank, 7] = 70
        with mock.patch.object(session.flags, "of", None):
            launch(4096, 4096, stream=7)
            del model.captures[group.rank, 7]
            launch(4096, 4096, stream=7)
        drawn = random.Random(group.rank)
        streams = list(range(7, 30))
        for _ in range(100):
            stream = drawn.choice(streams)
            launch(4096, 4096, stream=stream)
            if drawn.random() < 0.2:
                model.destroy(stream)
                streams.remove(stream)
        model.synchronize()
        session.close()

    on_ranks(model.fake, 2, work)
    assert not model.clashes
    assert not model.bad


@pytest.mark.parametrize("broken", ["no waits", "early"])
def test_the_model_finds_launches_out_of_order(model, monkeypatch, broken):
    """A model in which nothing can go wrong would show nothing."""
    if broken == "no waits":
        model.fake.cuStreamWaitEvent = lambda *_: (OK,)
    else:
        monkeypatch.setattr(Loaded, "launch_late", Loaded.launch)

    on_ranks(model.fake, 1, lambda group: fifty(model, group))

    assert model.clashes


def test_one_stream_alone_asks_for_nothing(model):
    """Its first call finds its flags; after that a call is a launch."""

    def work(group):
        session = CudaSession(group)
        session.watch._stop.set()
        session.watch._thread.join()
        launch = launch_of(session)
        again = launch.repeat(4096, 4096)
        launch(4096, 4096, stream=0)
        asked = []
        with mock.patch.object(session.flags, "of", asked.append):
            for _ in range(5):
                launch(4096, 4096, stream=0)
                again()
        early = [early for *_, early, _ in model.fake.launches]
        model.synchronize()
        session.close()
        return asked, early

    assert [([], [True] * 11)] == on_ranks(model.fake, 1, work)


@pytest.mark.parametrize(
    ("how", "synchronized"), [("lives", 0), ("gone", 1), ("another has its handle", 1)]
)
def test_the_second_stream_of_a_set_follows_the_first(model, how, synchronized):
    """By an event on it; where it is gone, or is another by now, by the context."""

    def work(group):
        session = CudaSession(group)
        launch = launch_of(session)
        for stream in (1, 2, 3):
            launch(4096, 4096, stream=stream)
        model.synchronized.clear()
        if how != "lives":
            model.destroy(3)
        if how.startswith("another"):
            model.create(3)
        launch(4096, 4096, stream=4)
        found = len(model.synchronized)
        model.synchronize()
        session.close()
        return found

    assert [synchronized] == on_ranks(model.fake, 1, work)
    assert not model.clashes
    assert not model.bad


def regions_of(session, *streams):
    """Return which set each stream has now, by its number."""
    return [session.regions.index(session.flags.of(s).region) for s in streams]


def test_what_is_captured_has_the_last_set(model):
    """Unless its stream has a set for itself; graphs follow nothing outside of them."""

    def work(group):
        session = CudaSession(group)
        launch = launch_of(session)
        first = regions_of(session, 1, 2, 3, 4)
        for stream in (1, 3, 4, 5):
            model.captures[group.rank, stream] = 70
        captured = regions_of(session, 1, 2, 3, 4, 5)
        for stream in (3, 4):
            del model.captures[group.rank, stream]
        after = regions_of(session, 3, 4, 5)
        model.waits.clear()
        launch(4096, 4096, stream=5)
        alone = list(model.waits)
        model.synchronize()
        session.close()
        return first, captured, after, alone

    want = [0, 1, 2, 2], [0, 1, 3, 3, 3], [2, 2, 3], []
    assert [want] == on_ranks(model.fake, 1, work)


def test_streams_of_one_graph_follow_one_another(model):
    """They are captured as branches; those of another graph are not heeded."""

    def work(group):
        session = CudaSession(group)
        launch = launch_of(session)
        regions_of(session, 1, 2)
        for stream, capture in ((5, 70), (6, 70), (7, 71)):
            model.captures[group.rank, stream] = capture
        for stream in (5, 5, 6, 7, 5, 7, 6, 6):
            launch(4096, 4096, stream=stream)
        waits = list(model.waits)
        early = [early for *_, early, _ in model.fake.launches]
        model.synchronize()
        session.close()
        return waits, early

    ((waits, early),) = on_ranks(model.fake, 1, work)

    assert [6, 5, 6] == waits
    assert [True, True, False, True, False, True, False, True] == early


def test_a_capture_that_an_earlier_call_would_have_to_follow_is_refused(model):
    """Nothing can be recorded on a stream that captures."""

    def work(group):
        session = CudaSession(group)
        launch = launch_of(session)
        for stream in (1, 2, 3):
            launch(4096, 4096, stream=stream)
        model.captures[group.rank, 3] = 70
        with pytest.raises(CallError, match="make one call on each of the two"):
            launch(4096, 4096, stream=4)
        del model.captures[group.rank, 3]
        launch(4096, 4096, stream=4)  # and nothing was lost
        model.synchronize()
        session.close()

    on_ranks(model.fake, 1, work)
    assert not model.clashes


@pytest.mark.parametrize(("sets", "streams"), [("1", (5,)), ("2", (1, 5))])
def test_with_few_sets_a_graph_needs_a_stream_alone(model, monkeypatch, sets, streams):
    """Calls are right on any number of streams; a graph or a stream may be refused."""
    monkeypatch.setenv("STRETTO_CUDA_STREAMS", sets)

    def work(group):
        session = CudaSession(group)
        launch = launch_of(session)
        for stream in streams:
            launch(4096, 4096, stream=stream)
        model.captures[group.rank, 5] = 70
        launch(4096, 4096, stream=5)
        del model.captures[group.rank, 5]
        with pytest.raises(CallError, match="has the flags of a stream with a graph"):
            launch(4096, 4096, stream=6)
        launch(4096, 4096, stream=5)
        model.synchronize()
        session.close()
        other = CudaSession(group)
        launch = launch_of(other)
        for stream in (1, 5, 6, 5, 7):
            launch(4096, 4096, stream=stream)
        model.captures[group.rank, 6] = 71
        with pytest.raises(CallError, match="STRETTO_CUDA_STREAMS=4"):
            launch(4096, 4096, stream=6)
        model.synchronize()
        other.close()

    on_ranks(model.fake, 1, work)
    assert not model.clashes


@pytest.mark.parametrize("text", ["0", "-1", "four"])
def test_a_number_of_sets_that_is_none_is_refused(fake, monkeypatch, text):
    """It says what is wanted."""
    monkeypatch.setenv("STRETTO_CUDA_STREAMS", text)

    with pytest.raises(CallError, match="want a number from 1 on"):
        on_ranks(fake, 1, CudaSession)


def test_loading_waits_for_shared_flags_by_their_event(model, monkeypatch):
    """While a graph is captured, and without asking streams that may be no more."""
    waited = []
    monkeypatch.setattr(
        model.fake, "cuEventSynchronize", lambda e: waited.append(e) or (OK,)
    )

    def work(group):
        session = CudaSession(group)
        launch = launch_of(session)
        for stream in (1, 2, 3, 4):
            launch(4096, 4096, stream=stream)
        model.destroy(4)
        model.captures[group.rank, 2] = 70
        model.synchronized.clear()
        with session.quiet():
            found = len(waited), len(model.synchronized)
        del model.captures[group.rank, 2]
        session.close()
        return found

    assert [(1, 0)] == on_ranks(model.fake, 1, work)
    assert not model.bad
