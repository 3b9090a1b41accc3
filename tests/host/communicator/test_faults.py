"""Faults are answers: who died, who differs, who did not come; then broken for good."""

import os
import signal
import time

import numpy as np
import pytest
from tests.soon import soon

import stretto
from stretto import (
    CallError,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorBroken,
    PeerLost,
    RankFailed,
)

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]

DIFFERENCES = ("size", "dtype", "operator", "collective", "algorithm", "memory")


def told(call, *args, **options):
    """Return the class and words of what a call raises, and how long it took."""
    start = time.monotonic()
    try:
        call(*args, **options)
    except stretto.StrettoError as e:
        return type(e).__name__, str(e), time.monotonic() - start
    return "", "", time.monotonic() - start


def dies(comm):
    """Rank 1 is killed; the others say what their calls say, now and later."""
    x = np.ones(1000, np.float32)
    comm.all_reduce(x)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 2:
        time.sleep(0.5)  # a late comer
    first = told(comm.all_reduce, x)
    return first, told(comm.all_reduce, x), told(comm.barrier), told(comm.check)


def differs(world):
    """Ranks call different things; return what each is told, twice, by what differs.

    Every time in a group of its own, which alone is broken by it.
    """
    x, odd, found = np.ones(100, np.float32), world.rank == 1, {}
    for what in DIFFERENCES:
        comm = world.split(0)
        large = comm.empty(1 << 20)
        if odd:
            large = np.ones(1 << 20, np.float32)
        calls = {
            "size": lambda c: c.all_reduce(x[:50] if odd else x),
            "dtype": lambda c: c.all_reduce(x.view(np.int32) if odd else x),
            "operator": lambda c: c.all_reduce(x, op="max" if odd else "sum"),
            "collective": lambda c: c.barrier() if odd else c.all_reduce(x),
            "memory": lambda c, x=large: c.all_reduce(x),
            "algorithm": lambda c: c.all_reduce(
                x, algorithm="all_reduce/ring" if odd else "all_reduce/one_shot"
            ),
        }
        found[what] = told(calls[what], comm), told(comm.barrier)
        comm.close()
    world.barrier()
    return found


def does_not_come(comm):
    """Rank 0 stays away; the others wait until the deadline."""
    comm.barrier()
    if comm.rank == 0:
        while not comm._group.broken[0]:
            time.sleep(0.01)  # until the others have given up
        return told(comm.barrier)
    return told(comm.all_reduce, np.ones(3))


def misuses(comm):
    """A call that is refused breaks nothing."""
    refused = told(comm.reduce_scatter, np.ones(comm.num_ranks + 1))
    x = np.ones(2)
    comm.all_reduce(x)
    comm.close()
    return refused, x.tolist(), told(comm.barrier)


def test_a_killed_rank_is_named_at_once():
    """PeerLost within a second, also to late comers; then CommunicatorBroken."""
    with pytest.raises(RankFailed, match=r"rank 1 .*SIGKILL") as caught:
        stretto.spawn(dies, num_ranks=3)

    assert {0, 2} == set(caught.value.results)
    for first, *later in caught.value.results.values():
        assert PeerLost.__name__ == first[0]
        assert "rank 1" in first[1]
        assert first[2] < soon(1.0)
        for kind, words, took in later:
            assert CommunicatorBroken.__name__ == kind
            assert "PeerLost" in words
            assert took < soon(0.3)


def test_ranks_that_differ_are_told_who_called_what():
    """CollectiveMismatch on every rank inside the call; then that group is broken."""
    for found in stretto.spawn(differs, num_ranks=3, deadline_s=10.0):
        for what in DIFFERENCES:
            (kind, words, _), (later, reason, _) = found[what]
            assert CollectiveMismatch.__name__ == kind, f"{what}: {words}"
            assert "rank 1 called" in words
            assert CommunicatorBroken.__name__ == later
            assert "CollectiveMismatch" in reason


def test_a_rank_that_never_comes_is_named_at_the_deadline():
    """CollectiveTimeout says who is missing; the late one is told, too."""
    late, *waited = stretto.spawn(does_not_come, num_ranks=3, deadline_s=1.0)

    for kind, words, took in waited:
        assert CollectiveTimeout.__name__ == kind, words
        assert "rank 0" in words
        assert 0.9 < took < soon(2.4)
    assert late[0] in (CollectiveTimeout.__name__, CommunicatorBroken.__name__)


def test_a_refused_call_breaks_nothing():
    """Arguments are refused before anything is sent; a closed one says so."""
    for refused, x, closed in stretto.spawn(misuses, num_ranks=2):
        assert CallError.__name__ == refused[0]
        assert "not divisible by 2 ranks; use reduce_scatter_v" in refused[1]
        assert [2.0, 2.0] == x
        assert CallError.__name__ == closed[0]
        assert "closed" in closed[1]
