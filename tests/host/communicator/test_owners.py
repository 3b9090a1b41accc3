"""One thread at a time, and nobody is misled when something breaks in or differs."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from tests.host.meeting.test_collective_faults import caught
from tests.soon import soon
from tests.waiting import Flag, until

import stretto

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]


VERBS = ("known", "new", "empty", "split")


def use_from_two_threads(world, folder):
    """Make each kind of call beside another, each in a group of its own."""
    found = {}
    for verb in VERBS:
        with world.split(0) as comm:
            found[verb] = use_beside(comm, verb, Flag(folder, verb))
    return found


def use_beside(comm, verb, told_so):
    """Rank 1 comes late, so that rank 0's first thread is inside for a while."""
    x, y = np.ones(1000, np.float32), np.ones(1000, np.float32)
    for array in (x, y):
        comm.all_reduce(array)
        array[:] = 1
    told = []
    if comm.rank == 0:
        first = threading.Thread(target=lambda: comm.all_reduce(x), name="first")
        first.start()
        until(lambda: any(s.inside() for s in comm._sessions.values()))
        calls = {
            "known": lambda: comm.all_reduce(y),
            "new": lambda: comm.all_gather(y),
            "empty": lambda: comm.empty(10),
            "split": lambda: comm.split(0),
        }
        told = caught(calls[verb])
        told_so.up()
        first.join()
    else:
        told_so.wait()
        comm.all_reduce(x)
    y[:] = 1
    comm.all_reduce(y)
    return told, float(x[0]), float(y[0])


def test_a_second_thread_is_told_which_is_inside(tmp_path):
    """It breaks nothing: the first call goes on, and later ones."""
    every = stretto.spawn(use_from_two_threads, tmp_path, num_ranks=2, deadline_s=30)

    for verb in VERBS:
        results = [found[verb] for found in every]
        assert [[2.0, 2.0]] * 2 == [sums for _, *sums in results]
        kind, text, took_s = results[0][0]
        assert "CallError" == kind
        assert "thread 'first' is inside this communicator" in text
        assert took_s < soon(0.3)


def use_two(world, turns):
    """Each thread has a communicator of its own."""
    comms, found = [world.split(0) for _ in range(2)], [0.0, 0.0]

    def work(i):
        for _ in range(turns):
            x = np.full(500, i + 1, np.float32)
            comms[i].all_reduce(x)
            found[i] += float(x.sum())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_two_threads_on_two_communicators_are_fine():
    """And right."""
    want = [300 * 500 * 2.0, 300 * 500 * 4.0]

    assert [want] * 2 == stretto.spawn(use_two, 300, num_ranks=2)


class Alarm(Exception):
    """What the handler raises."""


def interrupt(comm, folder):
    """A signal's handler raises on rank 1, which waits for rank 0."""
    x = np.ones(10, np.float32)
    comm.all_reduce(x)
    if comm.rank == 1:

        def ring(*_):
            raise Alarm("late")

        signal.signal(signal.SIGALRM, ring)
        try:
            signal.setitimer(signal.ITIMER_REAL, soon(0.3))
            comm.all_reduce(x)
        except Alarm:
            for rank in (0, 2):
                Flag(folder, f"heard-{rank}").wait()
            return "alarm"
    if comm.rank == 0:
        until(lambda: comm._group.broken[0])
    heard = caught(comm.all_reduce, x)
    Flag(folder, f"heard-{comm.rank}").up()
    return heard


def test_what_a_handler_raises_in_a_call_is_told_to_all(tmp_path):
    """At once, with whose it was; nobody waits until the deadline."""
    zero, one, two = stretto.spawn(interrupt, tmp_path, num_ranks=3, deadline_s=20)

    assert "alarm" == one
    for kind, text, took_s in (zero, two):
        assert "PeerLost" == kind
        assert "rank 1 raised Alarm" in text, "wherever in its call the handler came"
        assert took_s < soon(2.0)


def pass_on(comm):
    """Everybody waits for the one before; rank 2 is killed."""
    x, y = np.ones(10, np.float32), np.ones(10, np.float32)
    if comm.rank == 2:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        try:
            if comm.rank == 0:
                comm.recv(y, 2)
            else:
                comm.recv(y, 0)
        except stretto.StrettoError as e:
            return type(e).__name__, str(e), time.monotonic()
        comm.send(x, 1)


def test_a_rank_killed_in_transfers_is_named_by_all():
    """Also by those that only waited for one that waited for it."""
    with pytest.raises(stretto.RankFailed) as e:
        stretto.spawn(pass_on, num_ranks=3)

    assert {0, 1} == set(e.value.results)
    for kind, text, _ in e.value.results.values():
        assert "PeerLost" == kind
        assert text.startswith("rank 2 was killed by SIGKILL")
    times = [when for *_, when in e.value.results.values()]
    assert abs(times[0] - times[1]) < soon(1.0)


CASES = [(verb, warm) for verb in ("split", "empty") for warm in (False, True)]


def call_or_exchange(world):
    """Return what each case tells, each in a group of its own."""
    found = {}
    for verb, warm in CASES:
        with world.split(0) as comm:
            found[verb, warm] = differ(comm, verb, warm)
        world.barrier()
    return found


def differ(comm, verb, warm):
    """Rank 1 is in an exchange, the others in a collective."""
    x = np.ones(10, np.float32)
    if warm:
        comm.all_reduce(x)
    if comm.rank == 1:
        return caught(getattr(comm, verb), 0)
    return caught(comm.all_reduce, x)


def test_a_collective_against_an_exchange_is_a_mismatch():
    """On all ranks, long before the deadline; the text says who called what."""
    for told in stretto.spawn(call_or_exchange, num_ranks=3, deadline_s=20):
        for verb, warm in CASES:
            kind, text, took_s = told[verb, warm]
            assert "CollectiveMismatch" == kind
            assert f"rank 1 called {verb}" in text
            assert "called all_reduce of 10 float32" in text
            assert took_s < soon(3.0)


def run_ahead(comm):
    """The root of a broadcast is in an exchange while the others still receive."""
    x = np.ones(200_000, np.float32)
    for turn in range(20):
        if comm.rank == 2 and turn % 5 == 0:
            time.sleep(0.05)
        comm.broadcast(x)
        comm.empty(16)
    return float(x[0])


def test_a_rank_that_is_only_ahead_is_not_elsewhere():
    """It has done its part of the call."""
    assert [1.0] * 3 == stretto.spawn(run_ahead, num_ranks=3, deadline_s=20)


def raises_between_calls(comm):
    """Rank 3 raises and closes; rank 0 wants its first transfer with it."""
    comm.barrier()
    if comm.rank == 3:
        time.sleep(0.1)
        comm.close()
        return None
    x = np.ones(1, np.float32)
    call = {0: lambda: comm.recv(x, 3)}.get(comm.rank, lambda: comm.reduce(x, root=0))
    kind, text, _ = caught(call)
    comm.close()
    return kind, text.partition(" [")[0]


def test_the_first_cause_is_told_before_who_heard_of_it_closes():
    """Who waits for rank 0 hears of rank 3, too: rank 0 gave up because of it."""
    first, *others = stretto.spawn(raises_between_calls, num_ranks=4, deadline_s=10)[:3]

    assert "PeerLost" == first[0]
    assert "rank 3 closed its communicator" in first[1]
    assert [first] * 2 == others
