"""Who waits sleeps in its engine's place, and is woken by whatever ends its wait."""

import threading
import time
import uuid

import numpy as np
import pytest
from tests.waiting import until

from stretto.fabric.channel.words import Attention
from stretto.transfer import Engine
from stretto.transfer.engine import loop as engine_loop

SECRET, WAIT, LONG_S = b"s" * 32, 60, 600.0


@pytest.fixture(params=["near", "tcp"])
def ends(request, monkeypatch):
    """Return two engines; who waits there would sleep for longer than a test lasts."""
    monkeypatch.setattr(engine_loop, "_REST_S", LONG_S)
    job = uuid.uuid4().hex
    with (
        Engine("here", job=job, secret=SECRET) as here,
        Engine("there", job=job, secret=SECRET, listen="127.0.0.1:0") as there,
    ):
        box = there.arena(1 << 20)
        there.share(box, "box")
        where = "there" if request.param == "near" else there.address
        here.connect(where).wait(WAIT)
        there.peer("here").wait(WAIT)
        yield here, there


def resting(engine):
    """Wait until somebody sleeps, or is about to."""
    until(lambda: engine.loop._attention[Attention.RESTING])
    time.sleep(0.01)


def later(engine, call):
    """Have a thread wait; return it when it sleeps, and what it will have got."""
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    resting(engine)
    return thread, got


def test_a_notification_wakes_who_sleeps_for_it(ends):
    """The peer rings, or its bytes do."""
    here, there = ends
    to = there.peers[here.known.identity]
    for _ in range(20):
        thread, _ = later(here, lambda: here.notified(b"now").wait(LONG_S))
        to.notify(b"now")
        thread.join(WAIT)
        assert not thread.is_alive()


def test_what_another_thread_takes_wakes_who_sleeps_for_it(ends):
    """Whoever drains the links takes what belongs to others, too."""
    here, there = ends
    to, over = there.peers[here.known.identity], threading.Event()

    def drains():
        while not over.is_set():
            here.loop.drain()

    drainer = threading.Thread(target=drains)
    drainer.start()
    try:
        waiter = threading.Thread(
            target=lambda: [here.notified(b"now").wait(LONG_S) for _ in range(200)]
        )
        waiter.start()
        for _ in range(200):
            to.notify(b"now")
        waiter.join(WAIT)
        assert not waiter.is_alive()
    finally:
        over.set()
        drainer.join()


def test_what_ends_by_itself_wakes_who_sleeps_for_it(ends):
    """A peer that comes, memory that is shared: nothing of that is a record."""
    here, there = ends
    peer = here.peers[there.known.identity]
    thread, got = later(here, lambda: peer.region("late").wait(LONG_S))
    there.share(np.zeros(64, np.uint8), "late")
    thread.join(WAIT)
    assert ["late"] == [one.name for one in got]


def test_nobody_sleeps_who_has_missed_something(ends):
    """What was taken after one has looked, and before one sleeps, is seen."""
    here, _ = ends
    taken = here.loop.taken
    here.loop.stir()
    assert 2 == here.loop.look(1, taken)


def test_two_threads_that_wait_are_both_woken(ends):
    """One sleeps in the engine's place and takes what comes for the other."""
    here, there = ends
    to = there.peers[here.known.identity]
    first, _ = later(here, lambda: here.notified(b"a").wait(LONG_S))
    second = threading.Thread(target=lambda: here.notified(b"b").wait(LONG_S))
    second.start()
    time.sleep(0.02)
    to.notify(b"b")
    second.join(WAIT)
    to.notify(b"a")
    first.join(WAIT)
    assert not first.is_alive()
    assert not second.is_alive()


def test_who_is_late_sleeps_there_too(ends, monkeypatch):
    """The time for it may be over before a thread has looked once."""
    here, there = ends
    monkeypatch.setattr(engine_loop, "_HELP_S", 0.0)
    monkeypatch.setattr(engine_loop, "_HELP_BY_PYTHON_S", 0.0)
    peer = here.peers[there.known.identity]
    thread, got = later(here, lambda: peer.region("late").wait(LONG_S))
    there.share(np.zeros(64, np.uint8), "late")
    thread.join(WAIT)
    assert ["late"] == [one.name for one in got]
