"""A hop by NIXL, over the TCP transport of its UCX: for meaning, not for speed.

`test_nixl.py` runs it.

The library is that of a wheel (nixl-cu12 or -cu13), which may lie in the folder that
STRETTO_TEST_NIXL names.
"""

import os
import sys
import time

import numpy as np
import pytest

from stretto import hop
from stretto.errors import RendezvousError

if os.environ.get("STRETTO_TEST_NIXL"):
    sys.path.append(os.environ["STRETTO_TEST_NIXL"])
os.environ.setdefault("UCX_TLS", "tcp,self")
from stretto.hop.nixl import library

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(library.missing()), reason=library.missing() or "here"),
]
FIRST, SIZE = 4096, 1 << 22


def make(rank):
    memory = np.zeros(SIZE, dtype=np.uint8)
    window = hop.Window(
        rank=rank, num_ranks=2, address=memory.ctypes.data, puts=(FIRST, SIZE),
        words=(0, FIRST), secret=b"s" * 32,
    )  # fmt: skip
    return memory, hop.get("nixl").open_hop(window)


@pytest.fixture
def pair():
    ends = [make(rank) for rank in (0, 1)]
    shares = [way.share() for _, way in ends]
    for rank, (_, way) in enumerate(ends):
        way.connect(shares, [1 - rank], 5.0)
    yield ends
    for _, way in ends:
        way.close()


def until(done, ways, within_s=20.0):
    """Let all progress until something is so."""
    stop_at = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < stop_at, "it does not come"
        for way in ways:
            way.progress()


@pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20])
def test_what_was_put_is_there_when_the_signal_is(pair, nbytes):
    """Both ways at once, again and again, with the words beside."""
    ways = [way for _, way in pair]
    rng = np.random.default_rng(nbytes)
    for nth in range(1, 6):
        sent = [rng.integers(0, 256, nbytes, dtype=np.uint8) for _ in ways]
        for rank, way in enumerate(ways):
            args = (1 - rank, 0, sent[rank].ctypes.data, FIRST, nbytes)
            assert way.put(*args)
            assert way.signal(1 - rank, 0, 64, nth, 128, (nth, rank, 7))
        for rank, (memory, _) in enumerate(pair):
            flag = memory[64:72].view(np.int64)
            until(lambda f=flag, n=nth: f[0] >= n, ways)
            assert np.array_equal(sent[1 - rank], memory[FIRST : FIRST + nbytes])
            assert [nth, 1 - rank, 7] == memory[128:152].view(np.int64).tolist()
        until(lambda: not any(way.busy() for way in ways), ways)


def test_who_waits_is_woken(pair):
    """By what comes, long before the time is over."""
    (memory, one), (_, other) = pair
    flag = memory[64:72].view(np.int64)
    other.signal(0, 0, 64, 1, 128, (0, 0, 0))
    until(lambda: flag[0] == 1, [one, other])
    until(lambda: not one.progress() | other.progress() | one.busy(), [one])
    began = time.monotonic()
    one.wait(20_000)
    slept = time.monotonic() - began
    other.signal(0, 0, 64, 2, 128, (0, 0, 0))
    until(lambda: flag[0] == 2, [one, other])

    assert slept >= 0.015


def test_too_much_at_once_is_for_later(pair):
    """Nothing is lost: what has no room is refused, and goes when there is."""
    (memory, one), (_, other) = pair
    flag, sent = memory[64:72].view(np.int64), 0
    for nth in range(1, 2001):
        while not other.signal(0, 0, 64, nth, 128, (nth, 0, 0)):
            one.progress()
            other.progress()
        sent = nth
    until(lambda: flag[0] == sent, [one, other])

    assert 2000 == memory[128:136].view(np.int64)[0]


@pytest.mark.parametrize("nbytes", [0, 8, 1 << 20])
def test_who_has_sent_may_go_about_its_business(pair, nbytes):
    """When it is no longer busy, its peer alone sees all of it."""
    (memory, one), (_, other) = pair
    flag = memory[64:72].view(np.int64)
    data = np.arange(max(nbytes, 8) // 8, dtype=np.int64)
    for nth in range(1, 30):
        if nbytes:
            assert other.put(0, 0, data.ctypes.data, FIRST, nbytes)
        assert other.signal(0, 0, 64, nth, 128, (nth, 0, 0))
        until(lambda: not other.busy(), [other, one])
        until(lambda n=nth: flag[0] == n, [one], within_s=5)


def test_signals_of_a_lane_stay_in_order(pair):
    """Although NIXL keeps none between requests: a word without data waits, too."""
    (memory, one), (_, other) = pair
    flags = memory[64:192].view(np.int64)
    data = np.full(1 << 17, 7, np.int64)
    for nth in range(1, 20):
        data[:] = nth
        assert other.put(0, 0, data.ctypes.data, FIRST, data.nbytes)
        assert other.signal(0, 0, 64, nth, 256, (0, 0, 0))
        assert other.signal(0, 0, 128, nth, 256, (0, 0, 0))
        until(lambda n=nth: flags[8] == n, [one, other])
        assert flags[0] == nth
        assert (memory[FIRST : FIRST + data.nbytes].view(np.int64) == nth).all()
        until(lambda: not other.busy(), [one, other])


@pytest.mark.parametrize("offset", [FIRST, -8, 1 << 40, 3])
def test_a_word_outside_of_the_window_ends_the_connection(pair, offset):
    """Nothing is written, and the fault says what it was."""
    (memory, one), (_, other) = pair
    other.signal(0, 0, offset, 5, 128, (1, 2, 3))
    until(lambda: one.faults(), [one, other])

    assert {1: "it sent what makes no sense"} == one.faults()
    assert not memory[64:128].any()


def test_who_does_not_know_the_secret_raises_no_word(pair):
    """Its notifications begin otherwise."""
    (memory, one), (_, other) = pair
    other._token = b"another" * 2 + b"!!"
    other.signal(0, 0, 64, 5, 128, (1, 2, 3))
    until(lambda: one.faults(), [one, other])

    assert not memory[64:128].any()


def test_another_backend_is_named():
    """With what to set alike."""
    _, way = make(0)
    shares = [way.share(), {**way.share(), "backend": "LIBFABRIC"}]
    with pytest.raises(RendezvousError, match="rank 1 is reached by nixl LIBFABRIC, "):
        way.connect(shares, [1], 1.0)
    shares[1] = {**way.share(), "agent": "00"}
    with pytest.raises(RendezvousError, match=r"rank 0 cannot reach rank 1 on .*NIXL"):
        way.connect(shares, [1], 1.0)
    way.close()
