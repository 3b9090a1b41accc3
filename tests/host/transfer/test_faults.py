"""Whatever happens to a peer, it is named in time, and memory is never written late."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from tests.host.transfer.carriers import CARRIERS
from tests.soon import soon

from stretto.errors import (
    EngineLost,
    RendezvousError,
    StaleMemory,
    TransferCancelled,
    TransferError,
    TransferTimeout,
    UnknownNameError,
)
from stretto.fabric.memory import word_at
from stretto.transfer import Engine
from stretto.transfer.engine import meet
from stretto.transfer.links.words import MARKS

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 20


@pytest.fixture(params=["near", *CARRIERS])
def pair(request, over, start):
    """Return a child that shares a buffer, and our peer for it."""
    path, engine = request.param, over(request.param)
    is_far = path in CARRIERS
    child = start(listen=is_far, hop=path if is_far else "tcp")
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=64 << 20, arena=True)
    peer.region("buf").wait(WAIT)
    return child, peer


@pytest.fixture(params=CARRIERS)
def far(request, over):
    """Return a carrier that is here."""
    over(request.param)
    return request.param


def test_a_dead_peer_is_named_within_a_second(pair):
    """To whoever waits for it, transfers to it, or asks it for anything."""
    child, peer = pair
    data = np.ones(64 << 20, np.uint8)
    begun = [peer["buf"].put(data) for _ in range(4)]
    waits = peer.region("never")
    child.process.kill()
    killed = time.monotonic()
    with pytest.raises(EngineLost, match=f"engine '{child.name}' is gone"):
        waits.wait(WAIT)
    assert time.monotonic() - killed < soon(1.0)
    for x in begun:
        x.event().wait(WAIT)
        if x.error is not None:
            assert child.name == x.error.peer
            assert 0 <= x.error.bytes_done <= 64 << 20
    assert time.monotonic() - killed < soon(1.5)
    with pytest.raises(EngineLost, match=r"has ended|hung up|reset|ended the conn"):
        peer.notify(b"anybody")
    assert "lost" in peer.explain()


def test_the_other_side_hears_of_it_too(pair):
    """A peer that is gone is nobody's peer any more; its name can come again."""
    child, peer = pair
    engine = peer.engine
    assert [engine.name] == child.ask("peers")
    peer.close()
    for _ in range(100):
        if not child.ask("peers"):
            break
        time.sleep(0.01)
    assert [] == child.ask("peers")
    again = engine.connect(child.address).wait(WAIT)
    again.region("buf").wait(WAIT).put(np.full(64 << 20, 2, np.uint8)).wait(WAIT)
    assert [128 << 20] == child.ask("sums", name="buf")


def test_nothing_arrives_under_a_lease_that_has_ended(pair):
    """Whatever was under way stops before `end` returns."""
    child, peer = pair
    token = bytes.fromhex(child.ask("lease", name="it"))
    region = peer["buf"]
    region[:8].put(b"12345678", lease=token).wait(WAIT)
    data = np.full(64 << 20, 7, np.uint8)
    begun = [region.put(data, lease=token) for _ in range(3)]
    child.ask("end", name="it")
    before = child.ask("sums", name="buf")
    results = []
    for x in begun:
        try:
            results.append(x.wait(WAIT))
        except StaleMemory as e:
            results.append(e)
    with pytest.raises(StaleMemory, match="given to someone else meanwhile"):
        region[:8].put(b"abcdefgh", lease=token).wait(WAIT)
    assert before == child.ask("sums", name="buf")
    region[:8].put(b"\0" * 8).wait(WAIT)


def test_the_owner_waits_for_a_writer_that_sleeps(engine, start):
    """A stopped writer keeps memory from being given away, until it is killed."""
    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    lease = engine.lease()
    mark = word_at(peer.link.inner + MARKS + 8 * 5)
    mark[0] = lease.epoch  # as the child would, in the midst of a copy
    with pytest.raises(TransferTimeout, match=r"still writes .* let the memory rest"):
        lease.end(0.2)
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait(10)
    lease.end(5)


def test_a_deadline_ends_a_transfer_and_says_how_far_it_came(pair):
    """The peer sleeps, or the copy is too long for it."""
    child, peer = pair
    if not peer.is_far:
        x = peer["buf"].put(np.ones(64 << 20, np.uint8), deadline=1e-6)
        with pytest.raises(TransferTimeout, match="not done before its deadline"):
            x.wait(WAIT)
        return
    os.kill(child.process.pid, signal.SIGSTOP)
    try:
        x = peer["buf"].put(np.ones(64 << 20, np.uint8), deadline=0.3)
        begun = time.monotonic()
        with pytest.raises(
            TransferTimeout, match=f"engine '{child.name}', {peer.engine.hop}: not"
        ):
            x.wait(WAIT)
        assert time.monotonic() - begun < soon(1.0)
        assert peer.engine.hop == x.error.path
    finally:
        os.kill(child.process.pid, signal.SIGCONT)


def test_what_did_not_get_through_is_said_by_page(over, start, far):
    """Of a get, pages that are said to be through, are; all others are named."""
    child = start(listen=True, hop=far)
    peer = over(far).connect(child.address).wait(WAIT)
    layout = "B=256 X=262144 uint8"
    child.ask("share", name="pages", nbytes=64 << 20, layout=layout)
    child.ask("fill", name="pages", seed=4)
    region, got = peer.region("pages").wait(WAIT), np.zeros(64 << 20, np.uint8)
    mine = peer.engine.share(got, f"mine-{child.name}", layout)
    order = np.random.default_rng(5).permutation(256)
    x = region[np.arange(256)].get(mine[order])
    time.sleep(0.01)
    child.process.kill()
    x.event().wait(WAIT)
    if x.error is not None:
        want = np.random.default_rng(4).integers(0, 256, 64 << 20, dtype=np.uint8)
        failed = set(x.error.blocks_failed)
        assert failed <= set(range(256))
        assert len(failed) == 256 - x.error.blocks_done
        for nth, page in enumerate(order):
            if int(page) not in failed:
                there = want.reshape(256, -1)[nth]
                assert np.array_equal(there, got.reshape(256, -1)[page])
    mine.engine.unshare(mine)


def test_what_is_cancelled_lands_nowhere_afterwards(pair):
    """A get leaves our memory alone once `cancel` has returned."""
    child, peer = pair
    child.ask("fill", name="buf", seed=3)
    for turn in range(6):
        got = np.zeros(64 << 20, np.uint8)
        x = peer["buf"].get(got)
        time.sleep(0.002 * turn)
        cancelled = x.cancel()
        before = got.copy()
        if cancelled:
            with pytest.raises(TransferCancelled, match="cancelled"):
                x.wait(WAIT)
        time.sleep(0.02)
        assert np.array_equal(before, got)
    check = np.zeros(1 << 20, np.uint8)
    peer["buf"][: 1 << 20].get(check).wait(WAIT)
    want = np.random.default_rng(3).integers(0, 256, 64 << 20, dtype=np.uint8)
    assert np.array_equal(want[: 1 << 20], check)


@pytest.mark.parametrize("pair", ["tcp"], indirect=True)  # what is near is too quick
def test_being_cancelled_in_an_event_loop_cancels_the_transfer(pair):
    """As `asyncio.wait_for` does."""
    child, peer = pair
    os.kill(child.process.pid, signal.SIGSTOP)
    x = peer["buf"].put(np.ones(64 << 20, np.uint8))
    try:
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(_awaited(x), 0.2))
        with pytest.raises(TransferCancelled, match="cancelled"):
            x.wait(WAIT)
    finally:
        os.kill(child.process.pid, signal.SIGCONT)


async def _awaited(x):
    return await x


@pytest.mark.parametrize("seed", range(8))
def test_garbled_records_cost_the_connection_and_nothing_else(engine, start, seed):
    """From a peer that knows the secret, and shares memory with us."""
    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=1 << 16)
    peer.region("buf").wait(WAIT)
    rng = random.Random(seed)
    for _ in range(20):
        words = [rng.choice([rng.randrange(1, 8), rng.getrandbits(62), -1, 0])
                 for _ in range(8)]  # fmt: skip
        words[0] = rng.choice([1, 2, 3, 4, 5, 9])
        try:
            peer.post(struct.pack("=8q", *words))
        except EngineLost:
            break
    with Engine(f"other-{seed}", secret=b"s" * 32) as other:
        fresh = other.connect(child.address).wait(WAIT)
        fresh.region("buf").wait(WAIT)[:3].put(b"yes").wait(WAIT)
        assert child.ask("read", name="buf")[0].startswith(b"yes".hex())


@pytest.mark.parametrize("change", ["shift", "layout", "only", "lease", "tokens"])
def test_a_request_that_reaches_outside_is_refused(engine, start, change):
    """The owner trusts nothing of it."""
    from stretto.transfer.copying.words import Mode
    from stretto.transfer.copying.work import CopyWork
    from stretto.transfer.layouts import Layout
    from stretto.transfer.plans import plan
    from stretto.transfer.ways.request import pack_request
    from stretto.transfer.ways.staged import Sending
    from stretto.transfer.ways.transfer import Transfer

    child = start()
    peer = engine.connect(child.address).wait(WAIT)
    child.ask("share", name="buf", nbytes=4096)
    region = peer.region("buf").wait(WAIT)
    layout, data = Layout("N=64 uint8"), np.ones(64, np.uint8)
    made = plan(layout, layout)
    work = CopyWork(made, made.runs()[0], [data.ctypes.data], [0], mode=Mode.PACK)
    header = {
        "op": "put", "region": "buf", "layout": str(layout), "shift": 0,
        "other": str(layout), "only": [], "tokens": None,
        "lease": [region.slot, region.epoch], "sum": False, "inline": True,
    }  # fmt: skip
    header |= {
        "shift": {"shift": 4090},
        "layout": {"layout": "N=8192 uint8", "other": "N=8192 uint8"},
        "only": {"only": [["N", 0, 1 << 40]]},
        "lease": {"lease": [1 << 40, 1]},
        "tokens": {"tokens": "many"},
    }[change]
    x = Transfer(engine.loop, peer, "stage", nbytes=64, pieces=1)
    number = peer.number()
    sending = Sending(peer, number, [work], checked=False)
    peer.begin(x, pack_request(header, None, sending.inline()), sending, number)
    refused = r"no part|picked|range|someone else|hung up"
    with pytest.raises(TransferError, match=refused):
        x.wait(WAIT)
    assert [0] == child.ask("sums", name="buf")


def test_an_idle_engine_sleeps(pair):
    """Less than a hundredth of a core, on both sides, however quick it was before."""
    child, peer = pair
    peer["buf"][:5].put(b"alive").wait(WAIT)
    for _ in range(30):  # until all is loaded
        before = time.process_time(), _cpu_s(child.process.pid)
        time.sleep(1.0)
        spent = time.process_time() - before[0], _cpu_s(child.process.pid) - before[1]
        if max(spent) <= 0.02:
            break

    assert max(spent) <= 0.02


def _cpu_s(pid):
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_either_engine_may_close_while_they_connect(far):
    """At any moment: whoever is left hears of it, or had met the other before."""
    for turn in range(16):
        how = {"secret": b"s" * 32, "job": uuid.uuid4().hex, "hop": far}
        with (
            Engine("there", listen="127.0.0.1:0", **how) as there,
            Engine("here", **how) as here,
        ):
            found = here.connect(there.address)
            time.sleep(0.002 * (turn // 2))
            if turn % 2:
                here.close()
                assert found.event().wait(WAIT)
                continue
            there.close()
            with contextlib.suppress(EngineLost, RendezvousError):
                assert "there" == found.wait(WAIT).name


def test_who_hangs_up_at_once_costs_nobody_else_anything(start):
    """Before the loop has even looked who it was."""
    with Engine("here", secret=b"s" * 32, listen="127.0.0.1:0") as here:
        peer = here.connect(start(listen=True).address).wait(WAIT)
        here.loop.call(lambda: time.sleep(0.3))
        host, port = here.address.rsplit(":", 1)
        linger = struct.pack("ii", 1, 0)
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=5) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        time.sleep(0.5)
        peer.check()


def test_whoever_is_quicker_may_speak_first(far, monkeypatch):
    """What a peer says before we know that it is one is heard."""
    hello = meet.Talk._hello

    def slowly(talk):
        hello(talk)
        time.sleep(0.3)

    monkeypatch.setattr(meet.Talk, "_hello", slowly)
    how = {"secret": b"s" * 32, "job": uuid.uuid4().hex, "hop": far}
    with (
        Engine("there", listen="127.0.0.1:0", **how) as there,
        Engine("here", **how) as here,
    ):
        there.share(np.arange(8), "numbers")
        peer = here.connect(there.address).wait(WAIT)
        assert ("numbers",) == peer.names


def test_engines_of_two_carriers_do_not_meet(start, over):
    """Both are named; a carrier that is not here, or does not exist, is refused."""
    with pytest.raises(UnknownNameError, match="carrier"):
        Engine("here", hop="ucxx")
    if len(CARRIERS) == 1:
        return  # the rest is by libraries, each in a process of its own
    other = CARRIERS[1]
    engine, child = over(other), start(listen=True)
    said = f"it refuses us: it is reached by '{other}', we by 'tcp'; pass hop= alike"
    with pytest.raises(RendezvousError, match=said):
        engine.connect(child.address).wait(WAIT)
