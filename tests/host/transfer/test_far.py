"""Peers of other hosts: prepared transfers, lanes, TLS, and who is busy or hostile."""

import gc
import random
import shutil
import struct
import threading
import time
import uuid

import numpy as np
import pytest
from tests.host.hop.test_tls import authority

from stretto.errors import CallError, EngineLost, RendezvousError, StaleMemory
from stretto.fabric.channel.words import SLOTS
from stretto.fabric.hop.fields import offset_of
from stretto.fabric.hop.tcp.words import PUT, SIGNAL, Link
from stretto.transfer import Engine, Layout

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 60
SECRET = b"s" * 32
PAGES = Layout("B=32 X=24576 uint8")


def unique(name):
    """Return a name that no other run of these tests has on this host."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def met(child, engine, nbytes=PAGES.part_bytes, layout=None):
    """Connect with a child that shares a buffer; return the peer, and the memory."""
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=nbytes, layout=layout)
    return peer, peer.region("buf").wait(WAIT)


@pytest.mark.parametrize("layout", [str(PAGES), "B=3072 X=256 uint8"])
@pytest.mark.parametrize("nbytes", [1, 3, 32])
def test_what_is_prepared_moves_the_same_bytes_again_and_again(
    engine, start, layout, nbytes
):
    """Straight, of one piece and of many; by the stage, where runs are short."""
    child = start(listen=True)
    _, region = met(child, engine, layout=layout)
    rng = np.random.default_rng(nbytes)
    pages = Layout(layout).num_pages
    ours = rng.integers(0, 256, PAGES.part_bytes, dtype=np.uint8)
    got = np.zeros_like(ours)
    mine = engine.share(ours, "mine", layout)
    back = engine.share(got, "back", layout)
    there, here = rng.permutation(pages)[:nbytes], rng.permutation(pages)[:nbytes]
    put = region[there].prepare_put(mine[here], notify=b"put")
    get = region[there].prepare_get(back[here])
    for _ in range(3):
        ours[:] = rng.integers(0, 256, ours.size, dtype=np.uint8)
        got[:] = 0
        put()
        get()
        rows = (ours.reshape(pages, -1), got.reshape(pages, -1))
        assert np.array_equal(rows[0][here], rows[1][here])
    child.ask("notified", tag="put", count=3)
    held = np.frombuffer(bytes.fromhex(child.ask("read", name="buf")[0]), np.uint8)
    assert np.array_equal(held.reshape(pages, -1)[there], rows[0][here])
    rest = np.setdiff1d(np.arange(pages), there)
    assert not held.reshape(pages, -1)[rest].any()


def test_what_was_prepared_fails_when_the_memory_is_taken_back(engine, start):
    """In both directions; the connection goes on."""
    child = start(listen=True)
    peer, region = met(child, engine)
    data = np.ones(1 << 16, np.uint8)
    put, get = region[: 1 << 16].prepare_put(data), region[:8].prepare_get(data[:8])
    put()
    get()
    child.ask("unshare", name="buf")
    data[:] = 7
    for call in (put, get):
        with pytest.raises(StaleMemory, match="given to someone else meanwhile"):
            call()
    assert [1 << 16] == child.ask("sums", name="buf")
    child.ask("share", name="other", nbytes=100)
    peer.region("other").wait(WAIT)[:5].put(b"alive").wait(WAIT)


def test_every_notification_of_a_burst_arrives(engine, start):
    """Of more than a ring has room for, to a peer that computes; then it is lost."""
    child = start(listen=True)
    peer = engine.connect(child.address).wait(WAIT)
    peer.notify(b"burst")
    child.tell("compute", seconds=0.2)
    for _ in range(3 * SLOTS):
        peer.notify(b"burst")
    child.hear()
    child.ask("notified", tag="burst", count=3 * SLOTS + 1)
    child.process.kill()
    for _ in range(1000):
        if peer.lost:
            break
        time.sleep(0.001)
    with pytest.raises(EngineLost, match=f"engine '{child.name}' is gone"):
        peer.notify(b"burst")


def test_two_that_notify_in_turns_hear_each_other(engine, start):
    """Whoever waits takes what it waits for, and leaves what is somebody else's."""
    child = start(listen=True)
    peer = engine.connect(child.address).wait(WAIT)
    child.tell("echo", peer=engine.name, rounds=300)
    pong, other = engine.notified(b"pong"), engine.notified(b"other", 300)
    for _ in range(300):
        peer.notify(b"ping")
        pong.wait(WAIT)
    other.wait(WAIT)
    child.hear()
    assert not pong.done()


def test_what_is_not_used_any_more_is_not_kept(engine, start):
    """However often something is prepared: neither here nor at the peer."""
    child = start(listen=True)
    peer, region = met(child, engine)
    data = np.ones(64, np.uint8)
    for nth in range(60):
        region[nth : nth + 8].prepare_put(data[:8])()
        region[nth : nth + 8].prepare_get(data[:8])()
    gc.collect()
    for _ in range(200):
        if child.ask("counts") == [0, 0] and len(peer.link.fields._free) >= 2047:
            break
        time.sleep(0.01)
    assert [0, 0] == child.ask("counts")
    assert not peer.quick


def test_a_peer_that_computes_in_python_answers_at_once(engine, start):
    """Its engine needs no interpreter for what is prepared."""
    child = start(listen=True)
    _, region = met(child, engine, nbytes=1 << 20)
    data = np.ones(1 << 20, np.uint8)
    calls = [region[:8].prepare_put(data[:8]), region[:8].prepare_get(data[:8]),
             region.view.prepare_put(data)]  # fmt: skip
    for call in calls:
        call()
    child.tell("compute", seconds=1.5)
    time.sleep(0.2)
    took = []
    for nth in range(30):
        begun = time.monotonic()
        calls[nth % 3]()
        took.append(time.monotonic() - begun)
    child.hear()

    assert sorted(took)[15] < 0.1  # its threads change over every 1.5 seconds


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({"lanes": 3}, {}), ({}, {"lanes": 2}),
     ({"rails": ["127.0.0.1", "127.0.0.2"]}, {"rails": ["127.0.0.3", "127.0.0.1"]}),
     ({"rails": ["127.0.0.1", "127.0.0.2"], "lanes": 5}, {})],
)  # fmt: skip
def test_several_lanes_carry_parts_of_one_transfer(start, ours, theirs):
    """By the interfaces that are named; nothing is announced before all has come."""
    child = start(listen=True, **theirs)
    with Engine(unique("lanes"), secret=SECRET, **ours) as engine:
        peer, region = met(child, engine, nbytes=8 << 20)
        many = max(len(ours.get("rails", ())), ours.get("lanes", 1),
                   len(theirs.get("rails", ())), theirs.get("lanes", 1))  # fmt: skip
        assert many == peer.link.hop.lanes
        ends = {sock.getsockname()[0] for sock in peer.link.hop._every}
        assert set(ours.get("rails", ["127.0.0.1"])) == ends
        rng = np.random.default_rng(1)
        data = rng.integers(0, 256, 8 << 20, dtype=np.uint8)
        got = np.zeros_like(data)
        region.view.prepare_put(data)()
        assert [int(data.sum())] == child.ask("sums", name="buf")
        region.view.prepare_get(got)()
        assert np.array_equal(data, got)
        region.put(data[::-1].copy()).wait(WAIT)
        region.get(got).wait(WAIT)
        assert np.array_equal(data[::-1], got)
        links = peer.link.hop._links
        assert (links[:, Link.SENT] > 0).all()


@pytest.mark.parametrize("lanes", [0, 65])
def test_so_many_lanes_there_cannot_be(lanes):
    """The error says how many."""
    with pytest.raises(CallError, match=f"lanes={lanes}; want 1 to 64"):
        Engine("lanes", lanes=lanes)


def test_an_interface_that_is_not_there_is_named(start):
    """By whoever connects."""
    child = start(listen=True)
    with (
        Engine(unique("rails"), secret=SECRET, rails=["nowhere9"]) as engine,
        pytest.raises(RendezvousError, match="nowhere9"),
    ):
        engine.connect(child.address).wait(WAIT)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_all_of_it_goes_over_tls_where_that_is_asked_for(start, tmp_path, monkeypatch):
    """The connection, and the lanes; who does not speak it is told so."""
    folder = authority(tmp_path, "job")
    child = start(listen=True, environment={"STRETTO_TLS": folder})
    with (
        Engine(unique("plain"), secret=SECRET) as engine,
        pytest.raises(RendezvousError, match=r"does one of us|speaks TLS"),
    ):
        engine.connect(child.address).wait(WAIT)
    monkeypatch.setenv("STRETTO_TLS", folder)
    with Engine(unique("tls"), secret=SECRET, lanes=2) as engine:
        peer, region = met(child, engine, nbytes=1 << 20)
        data = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
        region.put(data, notify=b"put").wait(WAIT)
        child.ask("notified", tag="put")
        got = np.zeros_like(data)
        get = region.view.prepare_get(got)
        get()
        assert np.array_equal(data, got)
        kinds = {s.family.name for s in peer.link.hop._sockets.values()}
        assert {"AF_UNIX"} == kinds  # the thread's, which encrypts
    monkeypatch.setenv("STRETTO_TLS", authority(tmp_path, "other"))
    with (
        Engine(unique("other"), secret=SECRET) as engine,
        pytest.raises(
            RendezvousError, match=r"TLS: .*certificates of one CA|does one of us"
        ),
    ):
        engine.connect(child.address).wait(WAIT)


def frames(seed):
    """Return bytes that no rank of ours would send."""
    rng = random.Random(seed)
    huge = 1 << 60
    return [
        rng.randbytes(500),
        struct.pack("=3q", PUT, 4096, huge),
        struct.pack("=3q", PUT, -8, 16),
        struct.pack("=3q", PUT, huge, 16) + bytes(16),
        struct.pack("=3q", PUT, offset_of(3, 1), -1),
        struct.pack("=3q", PUT, offset_of(4095, 1), 16),
        struct.pack("=7q", SIGNAL, 1 << 40, 1, 256, 0, 0, 0),
        struct.pack("=7q", SIGNAL, 0, 7, 256, 0, 0, 0),  # records that never came
    ][seed]


@pytest.mark.parametrize("seed", range(8))
def test_garbled_frames_cost_the_connection_and_nothing_else(engine, start, seed):
    """From a peer that knows the secret; others are served on, and nobody spins."""
    child = start(listen=True)
    peer, _ = met(child, engine, nbytes=1 << 16)
    with Engine(unique("other"), secret=SECRET) as other:
        fresh = other.connect(child.address).wait(WAIT)
        region = fresh.region("buf").wait(WAIT)
        put = region[:4].prepare_put(b"good")
        (sock,) = peer.link.hop._sockets.values()
        sock.setblocking(True)
        sock.sendall(frames(seed))
        for _ in range(20):
            put()
            region[4:8].put(b"evil"[::-1]).wait(WAIT)
        until = time.monotonic() + 10
        while not peer.lost and time.monotonic() < until:
            time.sleep(0.01)
        assert "hung up" in peer.lost
        with pytest.raises(EngineLost, match="hung up"):
            peer.check()
        assert child.ask("peers") == [other.name]
        assert child.ask("read", name="buf")[0].startswith(b"goodlive".hex())


def test_what_is_put_to_a_field_that_is_closed_takes_no_memory(engine, start):
    """A peer may say that a terabyte follows; it is read and dropped."""
    child = start(listen=True)
    peer, _ = met(child, engine)
    (sock,) = peer.link.hop._sockets.values()
    sock.setblocking(True)
    sock.sendall(struct.pack("=3q", PUT, offset_of(3, 1), 1 << 40))
    for _ in range(50):
        sock.sendall(bytes(1 << 20))
    with Engine(unique("other"), secret=SECRET) as other:
        fresh = other.connect(child.address).wait(WAIT)
        fresh.region("buf").wait(WAIT)[:5].put(b"alive").wait(WAIT)
    assert child.ask("read", name="buf")[0].startswith(b"alive".hex())


def test_after_a_new_connection_what_was_prepared_before_says_so(engine, start):
    """It is prepared again, and goes on."""
    child = start(listen=True)
    peer, region = met(child, engine)
    put = region[:8].prepare_put(b"12345678")
    put()
    peer.close()
    with pytest.raises(EngineLost, match="this engine closed the connection"):
        put()
    again = engine.connect(child.address).wait(WAIT)
    again.region("buf").wait(WAIT)[:8].prepare_put(b"abcdefgh")()
    assert child.ask("read", name="buf")[0].startswith(b"abcdefgh".hex())


def test_what_another_thread_found_waiting_is_gone_on_with(near_peer):
    """The engine's thread sleeps where room wakes nobody: it has to be told."""
    threads = []

    class Waiting:
        """Something that has no room, three times."""

        failed = ""

        def pump(self):
            threads.append(threading.current_thread())
            return len([t for t in threads if t is not threading.main_thread()]) > 3

        def stop(self):
            return

    time.sleep(0.1)  # until its thread sleeps
    near_peer._sending[-2] = Waiting()
    near_peer.pump()
    until = time.monotonic() + 5
    while -2 in near_peer._sending and time.monotonic() < until:
        time.sleep(0.01)
    assert -2 not in near_peer._sending


@pytest.fixture
def near_peer():
    """Yield an engine's peer over TCP, both of this process."""
    job = uuid.uuid4().hex
    with (
        Engine("there", job=job, secret=SECRET, listen="127.0.0.1:0") as there,
        Engine("here", job=job, secret=SECRET) as here,
    ):
        yield here.connect(there.address).wait(WAIT)
