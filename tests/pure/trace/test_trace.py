"""Events, the clock and the recorder."""

import pytest

from stretto.trace import (
    MONOTONIC,
    Event,
    MonotonicClock,
    Recorder,
)


def event(t0_us=0.0, t1_us=1.0, rank=0, lane=0, **more):
    return Event(name="put", rank=rank, lane=lane, t0_us=t0_us, t1_us=t1_us, **more)


def test_an_event_cannot_be_changed():
    """Events are values."""
    with pytest.raises(AttributeError):
        event().rank = 3


def test_the_monotonic_clock_never_runs_backwards():
    """Later readings are not smaller, whoever reads it."""
    before = MONOTONIC.now_us()

    assert MonotonicClock().now_us() >= before


def test_a_full_recorder_keeps_the_newest():
    """The ring holds the end of the story."""
    recorder = Recorder(3)
    for i in range(5):
        recorder.record(event(float(i), float(i)))

    assert [2.0, 3.0, 4.0] == [e.t0_us for e in recorder.events()]


def test_a_recorder_needs_room():
    """A capacity of none would forget everything."""
    with pytest.raises(ValueError, match="capacity=0; want at least 1"):
        Recorder(0)
