"""What a carrier that comes with a library does, over TCP: for meaning, not for speed.

`test_libraries.py` runs it, in a process for each: STRETTO_TEST_LIBRARY names the
carrier. Nobody else loads these libraries, for they bear one another badly.
"""

import os
import threading
import time

import numpy as np
import pytest
from tests.pure.hop.ends import FIRST, joined, until

CARRIER = os.environ["STRETTO_TEST_LIBRARY"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def pair():
    with joined(CARRIER) as ends:
        yield ends


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


def test_who_waits_sleeps_and_is_woken(pair):
    """While nothing comes it sleeps; what comes wakes it, long before the time is over.

    What a library tells itself may wake it, too.
    """
    (memory, one), (_, other) = pair
    flag = memory[64:72].view(np.int64)
    other.signal(0, 0, 64, 1, 128, (0, 0, 0))
    until(lambda: flag[0] == 1, [one, other])
    until(lambda: not other.busy(), [one, other])

    def slept():
        began = time.monotonic()
        one.wait(20_000)
        return time.monotonic() - began >= 0.015

    until(slept, [one, other])

    def wait():
        while flag[0] < 2:
            one.wait(10_000_000)
            one.progress()

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    other.signal(0, 0, 64, 2, 128, (0, 0, 0))
    until(lambda: not waiter.is_alive(), [other], within_s=5)


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
    """A word without data waits for what was put before it, too."""
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
