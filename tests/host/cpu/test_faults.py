"""What a rank is told when another dies, stays away, or calls something else."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from tests.soon import soon

from stretto import algorithms, executors
from stretto.collectives import Operator
from stretto.errors import CollectiveMismatch, CollectiveTimeout, PeerLost
from stretto.executors import Call
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

INTERPRETERS = ["numba", "numpy"]


def plan_of(name, num_ranks, words="push packets staged"):
    """Return a proved plan."""
    program = verify(algorithms.get(name).build(num_ranks))
    return verify_plan(lower(program, Schedule.parse(words)))


def open_session(group, engine):
    """Open a session and warm it up, so that faults meet nothing cold."""
    session = executors.get("cpu").open_session(group, interpreter=engine)
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", group.num_ranks),
        Call(dtype="float32", counts=(4,)),
    )
    launch(x, np.empty_like(x))
    return session


def stays_away(group, engine):
    """Let the last rank never call."""
    group.deadline_s = 0.3
    session = open_session(group, engine)
    x = np.ones(100, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/ring", group.num_ranks, "push bulk staged"),
        Call(dtype="float32", counts=(100,)),
    )
    group.exchange({})  # so that nobody else is late
    if group.rank == group.num_ranks - 1:
        time.sleep(soon(1.5))
        return None
    start = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        launch(x, np.empty_like(x))
    return str(caught.value), time.monotonic() - start


@pytest.mark.parametrize("engine", INTERPRETERS)
def test_a_rank_that_stays_away_is_named_at_the_deadline(ranks, engine):
    """Everybody else names it, the call, and the step, soon after the deadline."""
    results = ranks(3, stays_away, engine)

    for text, waited in results[:2]:
        assert "waiting for [2]" in text
        assert "all_reduce of 100 float32 op=sum by all_reduce/ring" in text
        assert "tile 1 of 1" in text
        assert "wait r" in text
        assert waited < soon(1.5)  # while it is still away


def dies(group, engine, note):
    """Let rank 1 note the time and be killed while everybody calls again and again."""
    session = open_session(group, engine)
    x, out = np.ones(5000, np.float32), np.empty(5000, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/two_shot", group.num_ranks, "push bulk staged"),
        Call(dtype="float32", counts=(5000,)),
    )
    until = time.monotonic() + 0.2
    try:
        while True:
            launch(x, out)
            if group.rank == 1 and time.monotonic() > until:
                note.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
    except PeerLost as e:
        return str(e), time.monotonic() - float(note.read_text())


@pytest.mark.parametrize("engine", INTERPRETERS)
def test_a_killed_rank_is_named_within_a_second(ranks, engine, tmp_path):
    """The group says that it is broken; the interpreter comes back to hear it."""
    results = ranks(3, dies, engine, tmp_path / "died")

    assert results[1] is None
    for text, after in (results[0], results[2]):
        assert text.startswith("rank 1 is lost; rank ")
        assert after < soon(1.0)


CALLS = {
    "size": ("all_reduce/one_shot", "push packets staged", "float32", "sum", (60,)),
    "dtype": ("all_reduce/one_shot", "push packets staged", "int32", "sum", (64,)),
    "operator": ("all_reduce/one_shot", "push packets staged", "float32", "max", (64,)),
    "algorithm": ("all_reduce/ring", "push packets staged", "float32", "sum", (64,)),
    "schedule": ("all_reduce/one_shot", "push bulk staged", "float32", "sum", (64,)),
    "collective": ("broadcast/flat", "push packets staged", "float32", "sum", (64,)),
    "tiles": ("all_reduce/one_shot", "push packets staged", "float32", "sum", (99999,)),
}


def differs(group, engine, kind):
    """Let rank 0 call something else than the others."""
    session = open_session(group, engine)
    usual = ("all_reduce/one_shot", "push packets staged", "float32", "sum", (64,))
    name, words, dtype, op, counts = CALLS[kind] if group.rank == 0 else usual
    x = np.ones(counts[0], dtype)
    call = Call(dtype=dtype, op=Operator(op), counts=counts)
    launch = session.prepare(plan_of(name, group.num_ranks, words), call)
    start = time.monotonic()
    try:
        launch(x, np.empty_like(x))
    except CollectiveMismatch as e:
        return str(e), time.monotonic() - start
    return "", 0.0


@pytest.mark.parametrize("engine", INTERPRETERS)
@pytest.mark.parametrize("kind", CALLS)
def test_ranks_in_different_calls_hear_who_called_what(ranks, engine, kind):
    """Nobody waits for the deadline; everybody reads both calls."""
    name, _, dtype, _, counts = CALLS[kind]

    results = ranks(2, differs, engine, kind)

    heard = [text for text, _ in results if text]
    assert heard
    for text in heard:
        assert f"rank 0 called {name.partition('/')[0]}" in text
        assert f"of {counts[0]} {dtype}" in text
        assert "rank 1 called all_reduce of 64 float32 op=sum" in text
    assert max(waited for _, waited in results) < soon(5.0)


def elsewhere(group, engine):
    """Let rank 1 use another place of its registered memory."""
    session = open_session(group, engine)
    a, b = session.empty((64,), "float32"), session.empty((64,), "float32")
    launch = session.prepare(
        plan_of("all_reduce/two_shot", 2, "push bulk zero_copy"),
        Call(dtype="float32", counts=(64,)),
    )
    x = b if group.rank else a
    with pytest.raises(CollectiveMismatch) as caught:
        launch(x, x)
    return str(caught.value)


@pytest.mark.parametrize("engine", INTERPRETERS)
def test_registered_memory_at_another_offset_is_a_mismatch(ranks, engine):
    """Peers would write to the wrong place, so nobody writes."""
    for text in ranks(2, elsewhere, engine):
        assert "in registered memory at 0x0;" in text
        assert "in registered memory at 0x100" in text


def interrupted(group):
    """Press Control-C on rank 0 while it waits."""
    group.deadline_s = 5.0
    session = open_session(group, "numba")
    x = np.ones(4, np.float32)
    launch = session.prepare(
        plan_of("all_reduce/one_shot", 2), Call(dtype="float32", counts=(4,))
    )
    if group.rank:
        time.sleep(0.5)
        return int(group.broken[0])
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        launch(x, np.empty_like(x))
    return int(group.broken[0])


def test_a_waiting_rank_can_be_interrupted(ranks):
    """Control-C ends the wait at once, and the group with it."""
    assert [1, 1] == ranks(2, interrupted)


def comes_and_closes(group, engine, go, gone):
    """Let rank 1 come late, and close, while rank 0 looks how long it may wait."""
    session = open_session(group, engine)
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


@pytest.mark.parametrize("engine", INTERPRETERS)
def test_who_comes_late_and_closes_has_come(ranks, engine):
    """A closed member makes deadlines short; what it has sent is taken all the same."""
    assert [[2.0] * 4] * 2 == ranks(2, comes_and_closes, engine, os.pipe(), os.pipe())
