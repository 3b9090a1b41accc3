"""What a peer said is heard: before it ended, and by notes that were made long ago."""

import contextlib
import signal
import threading
import time
import uuid

import numpy as np
import pytest
from tests.host.transfer.conftest import SECRET
from tests.soon import soon
from tests.waiting import until

from stretto.errors import EngineLost
from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20


@pytest.mark.parametrize(
    ("is_far", "how"),
    [(False, "say_and_close"), (False, "say_and_end"), (True, "say_and_close")],
)
def test_what_was_said_is_heard(engine, start, is_far, how):
    """However late we look, and while we send. A far process takes its words along."""
    child = start(listen=is_far)
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=64 << 20, arena=True)
    data = np.ones(32 << 20, np.uint8)
    buf = peer.region("buf").wait(WAIT)[: data.size]
    moves = [buf.put(data) for _ in range(2)]
    engine.loop.at(0.0, lambda: time.sleep(0.5))
    child.tell(how, peer=engine.name, tag="last words", count=900)
    engine.notified(b"last words", 900).wait(WAIT)
    for move in moves:
        with contextlib.suppress(EngineLost):
            move.wait(WAIT)
    with pytest.raises(EngineLost):
        peer.region("never").wait(WAIT)


def test_what_the_dead_have_said_is_heard(engine, start):
    """Also by who looks only then: words, and memory, which comes in two parts."""
    told, busy, looks = [], threading.Event(), threading.Event()

    class Follower:
        def came(self, peer):
            busy.set()
            looks.wait(WAIT)

        def heard(self, peer, body):
            told.append(body["nth"])

        def lost(self, peer):
            told.append("lost")

    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    engine.follow("ours", Follower())
    assert busy.wait(WAIT)
    for nth in range(3):
        child.ask("share", name=f"buf{nth}", nbytes=4096, arena=True)
        child.ask("send", peer=engine.name, topic="ours", body={"nth": nth})
    child.end()
    looks.set()
    until(lambda: "lost" in told)

    assert [0, 1, 2, "lost"] == told
    assert ("buf0", "buf1", "buf2") == peer.names


def test_a_note_that_was_made_long_ago_is_sent_as_it_was(engine, start):
    """Others are made anew whenever a ring is full; that gives away nobody's memory."""
    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    peer.notify(b"early")
    for _ in range(6):  # the ring has 1024 places
        for _ in range(300):
            peer._notify(b"often", 1)
        child.ask("notified", tag="often", count=300)
    others = [np.full(9, -1, np.int64) for _ in range(4096)]  # where it may have lain
    for _ in range(9):
        peer.notify(b"early")
    child.ask("notified", tag="early", count=10)
    assert not peer.lost
    del others


def test_engines_that_hear_nothing_cost_one_farewell_together(start):
    """Who closes waits for all of them at once."""
    with Engine(f"closes-{uuid.uuid4().hex[:8]}", secret=SECRET) as closing:
        children = [start(listen=True) for _ in range(3)]
        for child in children:
            closing.connect(child.address).wait(WAIT)
            child.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
    took = time.monotonic() - began
    for child in children:
        child.process.send_signal(signal.SIGCONT)
    assert took < soon(2.5)
