"""Events, the clock and the recorder."""

import pytest

from stretto.trace import (
    KINDS,
    MONOTONIC,
    Event,
    MonotonicClock,
    Recorder,
    VirtualClock,
)


def event(t0_us=0.0, t1_us=1.0, rank=0, lane=0, **more):
    return Event(name="put", rank=rank, lane=lane, t0_us=t0_us, t1_us=t1_us, **more)


def test_an_event_knows_its_duration_and_rate():
    """Bytes over microseconds are given in 10^9 bytes a second."""
    e = event(2.0, 4.0, nbytes=8000)

    assert 2.0 == e.duration_us
    assert 4.0 == e.gbytes_per_s
    assert "move" in KINDS


def test_an_event_without_duration_has_no_rate():
    """A rate is never infinite."""
    assert 0.0 == event(1.0, 1.0, nbytes=10).gbytes_per_s


def test_an_event_cannot_be_changed():
    """Events are values."""
    with pytest.raises(AttributeError):
        event().rank = 3


def test_the_monotonic_clock_never_runs_backwards():
    """Later readings are not smaller, and sleeping lets at least that much pass."""
    before = MONOTONIC.now_us()
    MonotonicClock().sleep_us(200)
    after = MONOTONIC.now_us()

    assert after - before >= 200


def test_a_virtual_clock_moves_only_when_told():
    """Sleeping on it is immediate, and exact."""
    clock = VirtualClock(5.0)
    assert 5.0 == clock.now_us()

    clock.sleep_us(1e9)
    assert 5.0 + 1e9 == clock.now_us()

    clock.set_us(2e9)
    assert 2e9 == clock.now_us()


def test_a_virtual_clock_refuses_to_go_back():
    """Time that runs backwards is a bug of the test that sets it."""
    clock = VirtualClock(5.0)

    with pytest.raises(ValueError, match="cannot go back by 2"):
        clock.set_us(3.0)


def test_a_full_recorder_keeps_the_newest_and_counts_the_rest():
    """The ring holds the end of the story and says how much it lost."""
    recorder = Recorder(3)
    for i in range(5):
        recorder.record(event(float(i), float(i)))

    assert [2.0, 3.0, 4.0] == [e.t0_us for e in recorder.events()]
    assert (3, 3, 2) == (
        recorder.statistics().capacity,
        recorder.statistics().held,
        recorder.statistics().dropped,
    )

    recorder.clear()
    assert () == recorder.events()
    assert 0 == recorder.statistics().dropped


def test_a_recorder_needs_room():
    """A capacity of none would forget everything."""
    with pytest.raises(ValueError, match="capacity=0; want at least 1"):
        Recorder(0)
