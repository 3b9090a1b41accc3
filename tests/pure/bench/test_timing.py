"""Batches: when the clock is read, how long they are, what the loop costs."""

import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.bench.contender import PreparedCall
from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits, Runner
from stretto.bench.timing import SHORTEST_US, run_batch, turns_for
from stretto.bench.workload.cases import case_of


class CountingClock:
    """Moves when told, and counts how often it is looked at."""

    reads, at_us = 0, 0.0

    def now_us(self):
        self.reads += 1
        return self.at_us

    def advance_us(self, duration_us):
        self.at_us += duration_us


def test_the_clock_is_read_at_the_ends_of_a_batch_only():
    """A thousand calls cost two looks at the clock."""
    clock = CountingClock()

    us = run_batch(lambda: clock.advance_us(2.5), 1000, clock=clock)

    assert 2.5 == us
    assert 2 == clock.reads


def test_what_was_only_enqueued_is_waited_for_inside_the_batch():
    """Settling counts: a GPU's work is over when the clock is read."""
    clock = CountingClock()

    us = run_batch(lambda: None, 10, settle=lambda: clock.advance_us(100), clock=clock)

    assert 10 == us


@given(st.floats(0.01, 1e6), st.floats(SHORTEST_US, 1e4))
def test_a_batch_is_long_enough(us, batch_us):
    """As many calls as are needed, and not one more."""
    turns = turns_for(us, batch_us)

    assert turns * us >= batch_us * (1 - 1e-9) or turns == 20_000
    assert turns == 1 or (turns - 1) * us < batch_us


def test_the_loop_adds_less_than_a_tenth_of_a_microsecond():
    """What is reported of a call is what a plain loop around it would take."""

    def call():
        pass

    def plain(turns):
        began = time.perf_counter_ns()
        for _ in range(turns):
            call()
        return (time.perf_counter_ns() - began) / turns / 1e3

    pairs = [(run_batch(call, 2000), plain(2000)) for _ in range(200)]
    ours, theirs = (min(side) for side in zip(*pairs, strict=True))

    assert ours < theirs + 0.1


@pytest.mark.parametrize("us", [0.0, float("nan"), -1.0])
def test_a_call_too_short_to_see_is_repeated_as_often_as_can_be(us):
    """No time at all is not divided by."""
    assert 20_000 == turns_for(us, 20)


def prepared_by(limits, prepared):
    """Return a runner on the only rank there is."""
    runner = Runner(Control(), limits)
    asked = types.SimpleNamespace(prepare=lambda *_: prepared)
    assert runner.prepare(None, asked, None, None)
    return runner


def test_a_stall_while_calibrating_makes_no_batch_too_short():
    """A call of a microsecond that once took milliseconds is called many times."""
    stalls_us = iter([3e3])

    def timer(_call, turns, _cold):
        return 1.0 + next(stalls_us, 0) / turns

    limits = Limits(batch_us=100, batches=5, budget_us=1e5, timer=timer)
    runner = prepared_by(limits, PreparedCall(call=lambda: None, x=None, out=None))

    runner.calibrate()

    assert 100 == runner.found.turns


def test_what_follows_a_capture_is_done_before_a_graph_is_replayed():
    """A peer that registers what a graph has captured does it then, once."""
    said = []
    prepared = PreparedCall(
        call=lambda: said.append("call"), x=None, out=None,
        captured=lambda: said.append("captured"),
    )  # fmt: skip

    def capture(call, calls):
        for _ in range(calls):
            call()
        return lambda: said.append("replayed")

    limits = Limits(batch_us=100, batches=5, budget_us=1e5, capture=capture)
    runner = prepared_by(limits, prepared)

    runner.capture(case_of("all_reduce", 1024, 1))
    runner.call()

    assert ["captured", "replayed"] == said[-2:]
    assert 1 == said.count("captured")
