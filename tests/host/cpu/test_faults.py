"""What a rank is told when another dies, stays away, or calls something else."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from tests.soon import soon
from tests.waiting import until

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CollectiveMismatch, CollectiveTimeout
from stretto.executors import Call
from stretto.program import algorithms


def plan_of(name, num_ranks, words="push packets staged"):
    """Return a proved plan."""
    program = verify(algorithms.get(name).build(num_ranks))
    return verify_plan(lower(program, Schedule.parse(words)))


def open_session(group):
    """Open a session and warm it up, so that faults meet nothing cold."""
    session = executors.get("cpu").open_session(group)
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", group.num_ranks),
        Call(dtype="float32", counts=(4,)),
    )
    launch(x, np.empty_like(x))
    return session


def stays_away(group):
    """Let the last rank never call."""
    group.deadline_s = 0.3
    session = open_session(group)
    x = np.ones(100, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/ring", group.num_ranks, "push bulk staged"),
        Call(dtype="float32", counts=(100,)),
    )
    group.exchange({})  # so that nobody else is late
    if group.rank == group.num_ranks - 1:
        until(lambda: group.broken[0])  # the others have given up
        return None
    start = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        launch(x, np.empty_like(x))
    return str(caught.value), time.monotonic() - start


def test_a_rank_that_stays_away_is_named_at_the_deadline(ranks):
    """Everybody else names it, the call, and the step, soon after the deadline."""
    results = ranks(3, stays_away)

    for text, waited in results[:2]:
        assert "waiting for [2]" in text
        assert "all_reduce of 100 float32 op=sum by all_reduce/ring" in text
        assert "tile 1 of 1" in text
        assert "wait r" in text
        assert waited < soon(1.5)


def elsewhere(group):
    """Let rank 1 use another place of its registered memory."""
    session = open_session(group)
    a, b = session.empty((64,), "float32"), session.empty((64,), "float32")
    launch = session.prepare(
        plan_of("all_reduce/two_shot", 2, "push bulk zero_copy"),
        Call(dtype="float32", counts=(64,)),
    )
    x = b if group.rank else a
    with pytest.raises(CollectiveMismatch) as caught:
        launch(x, x)
    return str(caught.value)


def test_registered_memory_at_another_offset_is_a_mismatch(ranks):
    """Peers would write to the wrong place, so nobody writes."""
    for text in ranks(2, elsewhere):
        assert "in registered memory at 0x0;" in text
        assert "in registered memory at 0x100" in text


def interrupted(group):
    """Press Control-C on rank 0 while it waits."""
    group.deadline_s = 5.0
    session = open_session(group)
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", 2), Call(dtype="float32", counts=(4,))
    )
    if group.rank:
        until(lambda: group.broken[0])
        return int(group.broken[0])
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        launch(x, np.empty_like(x))
    return int(group.broken[0])


def test_a_waiting_rank_can_be_interrupted(ranks):
    """Control-C ends the wait at once, and the group with it."""
    assert [1, 1] == ranks(2, interrupted)


def comes_and_closes(group, go, gone):
    """Let rank 1 come late, and close, while rank 0 looks how long it may wait."""
    session = open_session(group)
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", 2), Call(dtype="float32", counts=(4,))
    )
    out = np.empty_like(x)
    group.exchange({})
    if group.rank:
        os.read(go[0], 1)
        launch(x, out)
        os.write(gone[1], b"!")
        return out.tolist()
    start = time.monotonic()

    def deadline_s(_):
        if time.monotonic() - start < 0.3:
            return 20.0
        if group.goes_on:
            group.goes_on = False
            os.write(go[1], b"!")
            os.read(gone[0], 1)  # its data are here now, and it is gone
        return 0.1

    group.goes_on = True
    vars(group).pop("deadline_s")
    group.__class__ = type(
        "Closing", (type(group),), {"deadline_s": property(deadline_s)}
    )
    launch(x, out)
    return out.tolist()


def test_who_comes_late_and_closes_has_come(ranks):
    """A closed member makes deadlines short; what it has sent is taken all the same."""
    assert [[2.0] * 4] * 2 == ranks(2, comes_and_closes, os.pipe(), os.pipe())
