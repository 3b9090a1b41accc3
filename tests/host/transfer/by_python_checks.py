"""Peers by a hop whose calls are Python's; run by `test_nixl.py`, carrier by carrier.

What is compiled has tests of its own in `test_far.py`.
"""

import threading
import time
import uuid

import numpy as np
import pytest
from tests.host.transfer.carriers import CARRIERS
from tests.host.transfer.conftest import SECRET

from stretto.errors import EngineLost
from stretto.fabric.channel import called
from stretto.transfer import Engine

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30


@pytest.fixture(params=CARRIERS[-1:], scope="module")
def pair(request, over, starts):
    """Return a child that shares a buffer, and our peer for it."""
    child = starts(listen=True, hop=request.param)
    peer = over(request.param).connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=1 << 22)
    peer.region("buf").wait(WAIT)
    return child, peer


def test_threads_put_and_get_at_once(pair):
    """Each gets back what it has put, by parts of its own of the memory."""
    _, peer = pair
    each, faults = (1 << 22) // 4, []

    def work(nth):
        rng = np.random.default_rng(nth)
        mine = peer["buf"][nth * each : (nth + 1) * each]
        try:
            for nbytes in (1, 100, 20_000, 300_000, each) * 2:
                data = rng.integers(0, 256, nbytes, dtype=np.uint8)
                got = np.zeros_like(data)
                mine[:nbytes].put(data, notify=b"put").wait(WAIT)
                mine[:nbytes].get(got).wait(WAIT)
                assert np.array_equal(data, got)
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(nth,)) for nth in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults
    assert not any(thread.is_alive() for thread in threads)


def test_peers_of_this_host_are_served_beside_those_of_others(pair, start):
    """By one engine, each in its own way, and neither waits for the other."""
    _, peer = pair
    near = start()
    by = peer.engine.connect(near.address).wait(WAIT)
    near.tell("echo", peer=peer.engine.name, rounds=200)
    pong, others = peer.engine.notified(b"pong"), peer.engine.notified(b"other", 200)
    for nth in range(200):
        if nth % 20 == 0:
            put = peer["buf"][:300_000].put(np.full(300_000, nth, np.uint8))
        by.notify(b"ping")
        pong.wait(WAIT)
        put.wait(WAIT)
    others.wait(WAIT)
    near.hear()
    got = np.zeros(300_000, np.uint8)
    peer["buf"][:300_000].get(got).wait(WAIT)
    assert (got == 180).all()


def test_what_was_said_before_a_close_is_heard(pair, start):
    """However late we look."""
    hop = pair[1].engine.hop
    child = start(listen=True, hop=hop)
    peer = pair[1].engine.connect(child.address).wait(WAIT)
    peer.engine.loop.at(0.0, lambda: time.sleep(0.3))
    child.tell("say_and_close", peer=peer.engine.name, tag="last", count=900)
    peer.engine.notified(b"last", 900).wait(WAIT)
    with pytest.raises(EngineLost, match="it closed"):
        peer.region("never").wait(WAIT)


def test_who_is_idle_is_roused(pair, monkeypatch):
    """Nobody waits for the end of a nap, however long it is."""
    child, peer = pair
    monkeypatch.setattr(called, "_LONGEST_S", 100.0)
    for _ in range(3):
        naps = []
        while not naps or naps[-1] < 1:
            peer.link.by_python._stirred -= 3600  # so long has nothing come
            time.sleep(0.1)
            naps.append(peer.link.by_python.nap_s(time.monotonic()))
        awake = peer.engine.notified(b"awake").pending().event()
        child.ask("notify", peer=peer.engine.name, tag="awake")
        assert awake.wait(WAIT)
        peer["buf"][:8].put(b"12345678").wait(WAIT)


def test_a_new_connection_hears_nothing_of_the_one_before(pair):
    """What the first has not taken yet is not taken for the second's."""
    child, peer = pair
    engine, hop = peer.engine, peer.engine.hop
    for turn in range(3):
        data = np.full(1 << 22, turn + 1, np.uint8)
        begun = [peer["buf"].put(data) for _ in range(3)]
        peer.close()
        for x in begun:
            x.event().wait(WAIT)
        peer = engine.connect(child.address).wait(WAIT)
        peer.region("buf").wait(WAIT).put(np.full(1 << 22, 9, np.uint8)).wait(WAIT)
        assert [9 << 22] == child.ask("sums", name="buf")
    with Engine(f"other-{uuid.uuid4().hex[:8]}", secret=SECRET, hop=hop) as other:
        fresh = other.connect(child.address).wait(WAIT)
        fresh.region("buf").wait(WAIT)[:5].put(b"alive", notify=b"o").wait(WAIT)
    child.ask("notified", tag="o")
