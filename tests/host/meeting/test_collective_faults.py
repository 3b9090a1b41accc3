"""Faults inside collectives: every rank gets the right answer, and soon."""

import os
import signal
import time

import numpy as np
import pytest
from tests.shared_names import shared_names
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


def caught(call, *arguments):
    """Return the error a call raises, its text and how long it took."""
    begin = time.monotonic()
    try:
        call(*arguments)
    except stretto.StrettoError as e:
        return type(e).__name__, str(e), time.monotonic() - begin
    return "nothing", "", time.monotonic() - begin


def lose_one(comm, bad):
    x = np.ones(1000, np.float32)
    comm.all_reduce(x)
    if comm.rank == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    first = caught(lambda: [comm.all_reduce(x) for _ in range(1 << 30)])
    later = comm.barrier, comm.check, lambda: comm.all_reduce(x)
    return first, *map(caught, later)


def test_a_rank_killed_between_calls_is_named_to_all_others():
    """At once; and every later call says that the communicator is broken."""
    with pytest.raises(RankFailed, match=r"rank 0 of 3 .* SIGKILL") as e:
        stretto.spawn(lose_one, 0, num_ranks=3)

    assert {1, 2} == set(e.value.results)
    for first, *later in e.value.results.values():
        assert PeerLost.__name__ == first[0]
        assert "rank 0 was killed by SIGKILL" in first[1]
        assert first[2] < soon(1.0)
        for kind, text, took_s in later:
            assert CommunicatorBroken.__name__ == kind
            assert "rank 0 was killed by SIGKILL" in text
            assert took_s < soon(0.3)


def kill_busy(comm):
    """Rank 1 is killed while all are at work; rank 2 was not even calling."""
    x = comm.empty(1 << 20)
    x[:] = 0
    comm.all_reduce(x)  # what is timed later is no preparation
    if comm.rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), 9))
    if comm.rank == 2:
        time.sleep(0.4)
    return caught(lambda: [comm.all_reduce(x) for _ in range(1 << 30)])


def test_a_rank_killed_inside_a_call_is_named_also_to_late_comers():
    """Whoever comes to the call later hears it at once."""
    with pytest.raises(RankFailed) as e:
        stretto.spawn(kill_busy, num_ranks=3)

    for kind, text, took_s in e.value.results.values():
        assert PeerLost.__name__ == kind
        assert "rank 1 was killed by SIG" in text
        assert took_s < soon(1.0)
    assert {0, 2} == set(e.value.results)


WORDS = {
    "collective": ("all_gather", "all_reduce"),
    "barrier": ("barrier", "all_reduce"),
    "size": ("90", "100"),
    "tiles": ("99999", "100"),
    "dtype": ("int32", "float32"),
    "op": ("max", "sum"),
    "root": ("root=0", "root=1"),
    "algorithm": ("all_reduce/ring", "all_reduce/one_shot"),
    "schedule": ("bulk", "packets"),
    "memory": ("rank 1 called",),
}


def differ(world):
    """Make each mistake in a group of its own; return what each rank heard."""
    return {how: make_mistake(world.split(0), how) for how in WORDS}


def make_mistake(comm, how):
    """Return what a call is told that differs on rank 1, and what the next one is."""
    x = np.ones(100, np.float32)
    large = comm.empty(1 << 20)
    odd = comm.rank == 1
    pins = {
        "algorithm": "all_reduce/ring push packets",
        "schedule": "all_reduce/one_shot push bulk",
    }
    pin = pins[how] if odd and how in pins else "all_reduce/one_shot push packets"
    calls = {
        "collective": lambda: comm.all_gather(x) if odd else comm.all_reduce(x),
        "barrier": lambda: comm.barrier() if odd else comm.all_reduce(x),
        "size": lambda: comm.all_reduce(x[:90] if odd else x),
        "tiles": lambda: comm.all_reduce(
            np.ones(99999, np.float32) if odd else x, algorithm="all_reduce/one_shot"
        ),
        "dtype": lambda: comm.all_reduce(x.astype(np.int32) if odd else x),
        "op": lambda: comm.all_reduce(x, op="max" if odd else "sum"),
        "root": lambda: comm.broadcast(x, root=int(odd)),
        "memory": lambda: comm.all_reduce(large.copy() if odd else large),
    }
    first = caught(calls.get(how, lambda: comm.all_reduce(x, algorithm=pin)))
    again = caught(comm.barrier)
    return (again, caught(comm.barrier)) if first[0] == "nothing" else (first, again)


def test_ranks_that_call_different_things_are_told_who_called_what():
    """On every rank: inside the call, or at the next one; then the group is broken."""
    for heard in stretto.spawn(differ, num_ranks=3):
        for how, ((kind, text, took_s), later) in heard.items():
            assert CollectiveMismatch.__name__ == kind, f"{how}: {text}"
            for word in ("rank 0", "rank 1", "rank 2", *WORDS[how]):
                assert word in text, how
            assert took_s < 10.0  # not the deadline of 30 s
            assert CommunicatorBroken.__name__ == later[0]
            assert "CollectiveMismatch" in later[1]


def stay_away(comm):
    x = np.ones(10, np.float32)
    comm.all_reduce(x)
    while comm.rank == 1 and not comm._group.broken[0]:
        time.sleep(0.01)  # until the others have given up
    return caught(comm.all_reduce, x), caught(comm.all_reduce, x)


def test_a_rank_that_does_not_come_is_named_at_the_deadline():
    """The others give up; when it comes, it hears so at once."""
    results = stretto.spawn(stay_away, num_ranks=3, deadline_s=1)

    for rank, ((kind, text, took_s), (later, _, _)) in enumerate(results):
        assert CollectiveTimeout.__name__ == kind
        assert "rank 1 did not come within 1 s" in text
        assert (0.0 if rank == 1 else 0.9) < took_s < soon(0.3 if rank == 1 else 2.5)
        assert CommunicatorBroken.__name__ == later


def go_early(comm):
    if comm.rank == 1:
        return ("left", "", 0.0)
    return caught(comm.all_reduce, np.ones(10, np.float32))


def test_waiting_for_a_rank_that_has_closed_ends_early():
    """Long before the deadline, naming it."""
    results = stretto.spawn(go_early, num_ranks=3)

    assert "left" == results.pop(1)[0]
    for kind, text, took_s in results:
        assert PeerLost.__name__ == kind
        assert "rank 1 closed its communicator and will not come" in text
        assert took_s < 10.0  # not the deadline of 30 s


def misuse(comm):
    """Make a call that is refused, one that is not, and one after the end."""
    refused = caught(comm.reduce_scatter, np.ones(comm.num_ranks + 1))
    x = np.ones(2)
    comm.all_reduce(x)
    comm.close()
    return refused, x.tolist(), caught(comm.barrier)


def test_a_refused_call_breaks_nothing():
    """Arguments are refused before anything is sent; a closed one says so."""
    for refused, x, closed in stretto.spawn(misuse, num_ranks=2):
        assert CallError.__name__ == refused[0]
        assert "not divisible by 2 ranks; use reduce_scatter_v" in refused[1]
        assert [2.0, 2.0] == x
        assert CallError.__name__ == closed[0]
        assert "closed" in closed[1]


def give_up(comm):
    half = comm.split(0)
    x = np.ones(10, np.float32)
    try:
        with half:
            if comm.rank == 1:
                raise KeyError("mine")
            half.all_reduce(x)
    except KeyError:
        pass
    except PeerLost as e:
        text = str(e)
    comm.all_reduce(x)
    return "mine" if comm.rank == 1 else text


def test_who_leaves_its_block_by_an_exception_is_named_to_the_others():
    """That group is broken with the reason; the world goes on."""
    zero, one, two = stretto.spawn(give_up, num_ranks=3)

    assert "mine" == one
    for text in (zero, two):
        assert "rank 1 raised KeyError: 'mine'; this communicator is broken" in text


def split_and_lose(comm):
    half = comm.split(comm.rank % 2)
    x = np.ones(10, np.float32)
    half.all_reduce(x)
    if comm.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    return caught(half.all_reduce, x), float(x[0]), caught(comm.all_reduce, x)


def test_only_communicators_of_the_lost_rank_are_broken():
    """The even half goes on without rank 3."""
    with pytest.raises(RankFailed) as e:
        stretto.spawn(split_and_lose, num_ranks=4)

    for rank in (0, 2):
        half, value, whole = e.value.results[rank]
        assert ("nothing", 4.0) == (half[0], value)
        assert PeerLost.__name__ == whole[0]
    half, _, _ = e.value.results[1]
    assert PeerLost.__name__ == half[0]
    assert "rank 1 (world rank 3) was killed by SIGKILL" in half[1]


CONNECT = """
import numpy as np, stretto
comm = stretto.connect()
x = comm.empty(1 << 16)
x[:] = 1
comm.all_reduce(x)
say("ready")
while True:
    comm.all_reduce(x)
"""


def test_nothing_is_left_when_all_ranks_are_killed_at_once(start):
    """No memory, no process, in the middle of the work."""
    before = shared_names()
    env = {"WORLD_SIZE": "3", "MASTER_PORT": "77"}
    ranks = [start(CONNECT, RANK=str(r), **env) for r in range(3)]
    assert ["ready"] * 3 == [rank.hear() for rank in ranks]
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.end()

    assert set() == shared_names() - before


OPENS = """
import stretto
from stretto.runtime.calls.joining import spawn
def until_broken(group, **how):
    say("met")
    while not group.broken[0]:
        time.sleep(0.001)
    raise group.fault.to_error()
spawn.Communicator = until_broken
try:
    stretto.connect({rank}, 3, "job", deadline_s=20.0)
except StrettoError as e:
    say("heard", e.blamed)
"""


def test_who_leaves_as_it_opens_after_a_fault_is_not_to_blame(start):
    """Rank 1 looks when both others have ended; it is told who died, not who heard."""
    ranks = [start(OPENS.format(rank=rank)) for rank in range(3)]
    assert [one.hear() for one in ranks] == ["met"] * 3
    ranks[1].kill(signal.SIGSTOP)
    ranks[0].kill()
    assert ranks[2].hear() == "heard (0,)"
    assert ranks[2].end()[1] == ""
    ranks[1].kill(signal.SIGCONT)
    assert ranks[1].hear() == "heard (0,)"
