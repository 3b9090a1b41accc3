"""UCX's hop among many threads, and beside peers that end: what is freed stays so.

`test_libraries.py` runs it, in a process of its own. What fails here may end the
process: all blocks of memory that are freed are checked, and filled then.
"""

import contextlib
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.nightly import examples
from tests.pure.hop.ends import FIRST, joined, make, until

from stretto.errors import RendezvousError
from stretto.fabric.hop.ucx import library
from stretto.fabric.hop.ucx.carrier import UcxHop
from stretto.fabric.hop.ucx.words import PeerWord

pytestmark = pytest.mark.timeout(60)
SECONDS = examples(100) / 100
"""How long threads meet in each test: at night longer."""


def at_once(*works):
    """Run functions in threads of their own; raise what the first one raised."""
    raised = []

    def run(work):
        try:
            work()
        except Exception as e:
            raised.append(e)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_any_threads_may_use_a_hop_at_once():
    """Some wait, some put, some ask; an engine's loop and its callers do just that."""
    data, rounds = np.ones(1 << 15, np.uint8), 0
    stop_at = time.monotonic() + SECONDS
    while rounds < 2 or time.monotonic() < stop_at:
        rounds += 1
        with joined("ucx") as ((memory, one), (_, other)):
            flag, done = memory[64:72].view(np.int64), threading.Event()

            def waits(way, done=done):
                while not done.is_set():
                    way.wait(50)
                    way.arm()

            def puts(done=done, flag=flag, one=one, other=other):
                try:
                    for nth in range(1, 300):
                        put = other.put, (0, 0, data.ctypes.data, FIRST, data.size)
                        said = other.signal, (0, 0, 64, nth, 128, (nth, 0, 0))
                        for call, given in (put, said):
                            until(lambda c=call, g=given: c(*g), [one, other])
                        until(lambda n=nth: flag[0] >= n, [one, other])
                finally:
                    done.set()

            at_once(puts, lambda w=one: waits(w), lambda w=other: waits(w))
            assert (memory[FIRST : FIRST + data.size] == 1).all()


def test_a_hop_may_be_closed_while_it_connects():
    """By another thread, at any moment; then `connect` says so, or who is gone."""
    stop_at, turn = time.monotonic() + SECONDS, 0
    while time.monotonic() < stop_at:
        turn += 1
        ends = [make("ucx", rank) for rank in (0, 1)]
        shares = [way.share() for _, way in ends]
        said = []

        def connect(ends=ends, shares=shares, said=said):
            for rank, (_, way) in enumerate(ends):
                try:
                    way.connect(shares, [1 - rank], 5.0)
                except RendezvousError as e:
                    said.append(str(e))

        def close(ends=ends, turn=turn):
            time.sleep(3e-4 * (turn % 12))
            for _, way in ends:
                way.close()

        at_once(connect, close)
        assert all("been closed" in why or "cannot reach" in why for why in said)


def test_threads_connect_pairs_of_their_own_at_once():
    """And let go of them, again and again."""

    def pairs():
        stop_at = time.monotonic() + SECONDS
        while time.monotonic() < stop_at:
            with joined("ucx") as ((memory, one), (_, other)):
                other.signal(0, 0, 64, 1, 128, (0, 0, 0))
                until(lambda: memory[64:72].view(np.int64)[0] == 1, [one, other])

    at_once(pairs, pairs)


@pytest.mark.parametrize("sent", [0, 8, 1 << 20])
def test_a_peer_that_has_gone_is_named(sent):
    """Before it was connected with, or with data under way to it; nothing else ends."""
    for turn in range(6):
        (_, one), (_, other) = ends = [make("ucx", rank) for rank in (0, 1)]
        shares = [way.share() for _, way in ends]
        if turn % 2:
            one.connect(shares, [1], 5.0)
        other.connect(shares, [0], 5.0)
        data = np.ones(max(sent, 1), np.uint8)
        if sent:
            other.put(0, 0, data.ctypes.data, FIRST, sent)
        one.close()
        other.signal(0, 0, 64, 1, 128, (0, 0, 0))
        until(other.faults, [other])
        assert [0] == list(other.faults())
        assert not other.put(0, 0, data.ctypes.data, FIRST, 1)
        other.close()


def test_a_peer_that_left_before_is_named_too():
    """Its address leads nowhere."""
    (_, one), (_, other) = ends = [make("ucx", rank) for rank in (0, 1)]
    shares = [way.share() for _, way in ends]
    one.close()
    other.connect(shares, [0], 5.0)
    until(other.faults, [other])
    other.close()


@pytest.mark.parametrize("has_cards", [False, True])
def test_cards_that_are_passed_over_are_said(tmp_path, monkeypatch, has_cards):
    """A UCX without InfiniBand would go by TCP, and nobody would know."""
    ucp, cards = library.load(), tmp_path / "cards"
    if has_cards:
        (cards / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(library, "_CARDS", cards)
    library.passed_over.cache_clear()
    said = library.passed_over()
    library.passed_over.cache_clear()

    assert "tcp" in ucp.fabrics()
    if not has_cards or "ib" in ucp.fabrics():
        assert "" == said
    else:
        assert said.startswith("this host has mlx5_0, but UCX ")
        assert said.endswith("set STRETTO_UCX=system")


@pytest.mark.parametrize("answers", [False, True])
def test_who_hears_last_words_of_a_peer_that_has_gone_lives_on(answers):
    """UCX would answer each put of its own, and end this process where it cannot."""
    with joined("ucx") as ((memory, here), (there, gone)):
        if answers:
            here.signal(1, 0, 0, 7, 64, (1, 2, 3))
            until(lambda: there[:8].view(np.int64)[0] == 7, (here, gone))
        sent = 0
        for nth in range(200):
            at = FIRST + 64 * nth
            if not gone.put(0, 0, there.ctypes.data + at, at, 64):
                break
            sent += gone.signal(0, 0, 8, nth + 1, 64, (1, 2, 3))
        gone.close()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            here.progress()
            if not here.put(1, 0, memory.ctypes.data + FIRST, FIRST, 64):
                break

    assert sent > 0


@pytest.mark.parametrize("nbytes", [8, 4096, 1 << 20])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_where_ucx_puts_by_itself_it_does(monkeypatch, nbytes, is_mapped):
    """As with RDMA: shared memory stands for it, which it takes if nobody may die."""
    monkeypatch.setattr(UcxHop, "hears_of_death", False)
    with joined("ucx") as ((memory, here), (there, other)):
        assert 0 == other._peers[0, PeerWord.BY_MESSAGES]
        flag = memory[:8].view(np.int64)
        for turn in range(1, 9):
            data = there[FIRST:][:nbytes] if is_mapped else np.zeros(nbytes, np.uint8)
            data[:] = 16 * turn + np.arange(nbytes) % 13
            at = int(data.ctypes.data)
            until(lambda at=at: other.put(0, 0, at, FIRST, nbytes), (here, other))
            until(lambda n=turn: other.signal(0, 0, 0, n, 64, (n, 2, 3)), (here, other))
            until(lambda n=turn: flag[0] == n, (here, other))
            assert (data == memory[FIRST:][:nbytes]).all()
            assert [turn, 2, 3] == memory[64:88].view(np.int64).tolist()


def test_several_rails_keep_messages_in_order(monkeypatch):
    """Users may have asked UCX for two: no signal overtakes what it announces."""
    monkeypatch.setenv("UCX_MAX_EAGER_RAILS", "2")
    monkeypatch.setenv("UCX_MULTI_LANE_MAX_RATIO", "1000000")
    monkeypatch.setenv("UCX_NET_DEVICES", "all")
    with joined("ucx") as ((memory, here), (there, other)):
        flag = memory[:8].view(np.int64)
        for turn in range(1, 20):
            there[FIRST:][:100_000] = turn
            other.put(0, 0, there.ctypes.data + FIRST, FIRST, 100_000)
            other.signal(0, 0, 0, turn, 64, (1, 2, 3))
            until(lambda n=turn: flag[0] == n or here.faults(), (here, other))
            assert not here.faults()
            assert (memory[FIRST:][:100_000] == turn).all()


def test_what_was_sent_before_a_close_is_there(monkeypatch):
    """Though nobody read it then."""
    monkeypatch.setenv("UCX_TCP_SNDBUF", "8k")
    with joined("ucx") as ((memory, here), (there, other)):
        flag, sent = memory[:8].view(np.int64), 0
        for nth in range(1, 41):
            other.put(0, 0, there.ctypes.data + FIRST, FIRST, 7000)
            sent += other.signal(0, 0, 0, nth, 64, (1, 2, 3))
        closing = threading.Thread(target=other.close)
        closing.start()
        until(lambda: flag[0] == sent or here.faults(), (here,))
        closing.join()
        assert sent == flag[0]


def listening():
    """Return the addresses at which this process listens."""
    mine = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    found = [row.split()[1] for row in rows if row.split()[3] == "0A"
             and row.split()[9] in mine]  # fmt: skip
    halves = [at.split(":") for at in found]
    return {(socket.inet_ntoa(bytes.fromhex(a)[::-1]), int(p, 16)) for a, p in halves}


def test_it_listens_where_its_address_is_and_nowhere_else():
    """And what strangers send there ends nobody, and is not told line by line."""
    before = listening()
    with joined("ucx") as ends:
        (_, a), (memory, b) = ends
        found = listening() - before
        assert {"127.0.0.1"} == {address for address, _ in found}
        for where in found:
            for noise in (b"GET / HTTP/1.1\r\n\r\n" * 999, b"\xff" * 99_999):
                with socket.create_connection(where) as stranger:
                    stranger.sendall(noise)
        data = np.arange(8)
        assert a.put(1, 0, data.ctypes.data, FIRST, 64)
        assert a.signal(1, 0, 0, 1, 8, (0, 0, 0))
        until(lambda: memory[:8].view(np.int64)[0] == 1, [a, b])

    assert np.array_equal(memory[FIRST : FIRST + 64].view(np.int64), data)
