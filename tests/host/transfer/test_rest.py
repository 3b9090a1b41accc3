"""Who waits sleeps in its engine's place, and is woken by whatever ends its wait."""

import os
import threading
import time
import uuid

import numpy as np
import pytest
from tests.waiting import until

from stretto.fabric.channel.words import Attention
from stretto.transfer import Engine
from stretto.transfer.engine import loop as engine_loop
from stretto.transfer.links.slumber import recline
from stretto.transfer.links.words import Nap

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


@pytest.fixture
def nap():
    """Return the words of a sleep that a bell ends, those of its loop, and the bell."""
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    attention, polled = np.zeros(Attention.END, np.int64), np.array([bell], np.int64)
    words = np.zeros(Nap.END, np.int64)
    words[Nap.ATTENTION], words[Nap.COUNT] = attention.ctypes.data, 1
    words[Nap.OWNERS] = words[Nap.POLLED] = polled.ctypes.data
    yield words, attention, bell, polled
    os.close(bell)


def reclined(nap, seconds):
    """Sleep; return how long that took, and of it awake."""
    begun, awake = time.monotonic(), time.thread_time()
    recline(nap[0].ctypes.data, int(1e9 * seconds))
    return time.monotonic() - begun, time.thread_time() - awake


def test_who_was_woken_soon_a_few_times_stays_awake_for_a_moment(nap):
    """If nothing comes then, it is not tried again before that has come soon often."""
    _, attention, bell, _ = nap
    for times in (1, 2, 3, 3):
        os.eventfd_write(bell, 1)
        reclined(nap, 60)
        assert times == attention[Attention.SOON]
    took, awake = reclined(nap, 0.2)
    assert took >= 0.2
    assert awake < 0.05
    assert attention[Attention.SOON] < 0
    for _ in range(-attention[Attention.SOON] + 2):
        os.eventfd_write(bell, 1)
        reclined(nap, 60)
    assert 2 == attention[Attention.SOON]


def test_who_is_woken_late_sleeps(nap):
    """As does whoever was told never to stay awake."""
    _, attention, bell, _ = nap
    for _ in range(2):
        os.eventfd_write(bell, 1)
        reclined(nap, 60)
    ringing = threading.Timer(0.1, lambda: os.eventfd_write(bell, 1))
    ringing.start()
    took, awake = reclined(nap, 60)
    assert took > 0.05
    assert awake < 0.05
    assert 0 == attention[Attention.SOON]
    with Engine("never", spin_us=0.0) as engine:
        assert engine.loop._attention[Attention.SOON] < -1e9


def test_engines_that_were_busy_sleep_when_nothing_comes(ends):
    """What came every millisecond was waited for awake; that ends with it."""
    here, there = ends
    to = there.peers[here.known.identity]
    for _ in range(100):
        thread = threading.Thread(target=lambda: here.notified(b"now").wait(WAIT))
        thread.start()
        time.sleep(0.001)
        to.notify(b"now")
        thread.join(WAIT)
    time.sleep(0.1)
    begun = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - begun < 0.1
