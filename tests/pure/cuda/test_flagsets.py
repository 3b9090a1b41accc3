"""Streams without number share flags in order; what is captured has flags of its own.

Launches run in the model of the driver that model.py has.
"""

from __future__ import annotations

import random
from unittest import mock

import pytest
from cuda_fakes import OK, on_ranks
from cuda_model import Model

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms


@pytest.fixture
def model(fake, monkeypatch):
    """Return the model; a session has four sets of flags, as it has by default."""
    monkeypatch.setenv("STRETTO_CUDA_STREAMS", "4")
    return Model(fake, monkeypatch)


def launch_of(session, name="all_reduce/one_shot", **params):
    """Return a launch of any kernel."""
    kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
    session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
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
    assert sum(map(len, places[0])) == 304


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
