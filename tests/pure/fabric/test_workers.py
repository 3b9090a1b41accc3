"""Threads for what takes long: in order, no more than allowed, ended by nothing."""

import threading

import pytest

from stretto.errors import RendezvousError
from stretto.fabric.workers import Workers

WAIT = 10


def test_tasks_are_done_in_order_by_one_thread_and_faults_end_nothing(monkeypatch):
    """It starts with the first task, and ends when it is told to, after the last."""
    begun, done, said = [], [], []
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args[0]))
    workers = Workers("some", begin=lambda: begun.append(workers.is_here))
    for number in range(20):
        workers.give(lambda n=number: done.append((n, threading.current_thread())))
        workers.give(lambda: 1 / 0)
    workers.stop(WAIT)

    assert list(range(20)) == [n for n, _ in done]
    assert 1 == len({thread for _, thread in done})
    assert [True] == begun
    assert not done[0][1].is_alive()
    assert 20 * [ZeroDivisionError] == said


def test_what_is_left_when_they_are_stopped_is_done_by_one_of_them():
    """It knows that it is: whoever asks would wait for itself."""
    workers, seen, go = Workers("some"), [], threading.Event()
    workers.give(lambda: go.wait(WAIT))
    for _ in range(3):
        workers.give(lambda: seen.append(workers.is_here))
    stopping = threading.Thread(target=workers.stop, args=(WAIT,))
    stopping.start()
    stopping.join(0.05)
    go.set()
    stopping.join(WAIT)

    assert [True] * 3 == seen
    assert not workers.is_here


def test_so_many_work_at_once_as_are_allowed_and_others_follow_an_end():
    """None is there before it is needed; after an end there are others."""
    workers, here = Workers("several"), threading.Barrier(3)
    for _ in range(2):
        for _ in range(6):
            workers.give(lambda: here.wait(WAIT), 3)

        assert 3 == len(workers._threads)
        workers.stop(WAIT)
        assert not here.broken
        assert not workers._threads


def test_without_room_for_a_thread_nothing_is_queued(monkeypatch):
    """Whoever gives hears why; nobody waits for what nobody does."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    workers = Workers("none")
    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(RendezvousError, match="cannot start a thread"):
        workers.give(print)
    assert workers.is_empty
