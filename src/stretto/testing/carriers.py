"""What every carrier must do: ours, and carriers of a user's own.

    from stretto.testing import carriers
    carriers.check(MyCarrier())                      # raises AssertionError, which says

or one test each: `@pytest.mark.parametrize("case", carriers.CASES)`, `case(carrier)`.
All ends are in this process; TLS and other hosts are for tests that have them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from stretto.errors import CommunicationError, RendezvousError, StrettoError
from stretto.fabric.hop import MORE, Carrier, Hop
from stretto.fabric.hop.fields import Field, offset_of
from stretto.fabric.patience import readable
from stretto.testing.ends import (
    FIRST,
    SIZE,
    CarrierEnd,
    CarrierPair,
    connect,
    hold,
    joined,
    until,
)

_LATE_S = 1.0
_SOON_S = 10.0


def out_of_turn_it_refuses(carrier: Carrier) -> None:
    """A put before `connect` or after `close` raises; what waits does nothing then."""
    ends = CarrierEnd(carrier, 0), CarrierEnd(carrier, 1)
    data = np.zeros(8, np.uint8)
    for end in ends:
        _refused(lambda end: end.put(data), end, "a put before connect()")
        _refused(lambda end: end.signal(1), end, "a signal before connect()")
    hold(connect(ends) == ["", ""], "two ends do not connect")
    shares = [end.hop.share() for end in ends]
    for end in ends:
        end.hop.close()
        end.hop.close()
        _refused(lambda end: end.put(data), end, "a put after close()")
        _refused(lambda end: end.signal(1), end, "a signal after close()")
        _refused(lambda end: end.hop.share(), end, "share() after close()")
        again = "connect() after close()"
        _refused(lambda end: end.hop.connect(shares, [end.peer], 1.0), end, again)
        hop = end.hop
        hold(not (hop.progress() or hop.wait(1000) or hop.busy()), "it goes on")
        hold(hop.arm() and not hop.descriptors, "a selector waits for a closed hop")


def _refused(call: Callable[[CarrierEnd], object], end: CarrierEnd, words: str) -> None:
    try:
        call(end)
    except CommunicationError:
        return
    raise AssertionError(f"{words} is taken; want CommunicationError")


def data_come_before_their_signal(carrier: Carrier) -> None:
    """Of any size, anywhere, both ways, with the words beside; by methods and calls."""
    rng, nth = np.random.default_rng(0), 0
    with joined(carrier) as pair:
        for size in (0, 1, 8, 8192, 8193, 70_001, 3_000_000) * 2:
            nth += 1
            sent = [rng.integers(0, 256, size, dtype=np.uint8) for _ in pair.both]
            offset = FIRST + int(rng.integers(0, 100))
            for end, data in zip(pair.both, sent, strict=True):
                end.by_calls = nth > 7
                pair.put(data, offset, by=end)
                pair.signal(nth, 64, 0, 128, (nth, size, 7), by=end)
            for end in pair.both:
                pair.comes(nth, at=end)
                same = np.array_equal(end.landed(size, offset), sent[end.peer])
                hold(same, f"{size} bytes come after their signal")
                said = end.words[16:19].tolist()
                hold(said == [nth, size, 7], f"the words beside it are {said}")
            pair.idle()


def a_word_never_falls(carrier: Carrier) -> None:
    """A signal that says less than the word has no effect on it."""
    with joined(carrier) as pair:
        for nth, value in enumerate((7, 5, 9, 8), start=1):
            pair.signal(value)
            pair.signal(nth, 72)
            pair.comes(nth, 9)
            want, got = (7, 7, 9, 9)[nth - 1], pair.other.words[8]
            hold(got == want, f"after {value} a word of {want} is {got}")


def a_lane_keeps_its_order(carrier: Carrier) -> None:
    """Also a signal without data, and what may wait for the next."""
    with joined(carrier) as pair:
        data = np.zeros(1 << 17, np.int64)
        for nth in range(1, 12):
            data[:] = nth
            pair.put(data, FIRST, MORE)
            pair.signal(nth, 64, MORE)
            pair.signal(nth, 72)
            pair.comes(nth, 9)
            hold(pair.other.words[8] == nth, "a signal overtakes another")
            got = pair.other.landed(data.nbytes).view(np.int64)
            hold((got == nth).all(), "a signal overtakes data")
            pair.idle()


def each_lane_is_a_stream(carrier: Carrier) -> None:
    """As many as are asked for, or one; a lane beyond their number is one of these."""
    with joined(carrier, lanes=2) as pair:
        want = 2 if carrier.lanes else 1
        hold({end.hop.lanes for end in pair.both} == {want}, f"want {want} lanes")
        data = np.arange(1000, dtype=np.int64)
        for lane in range(5):
            pair.put(data, FIRST + 8000 * lane, lane)
            pair.signal(1, 64 + 8 * lane, lane, 256)
        for lane in range(5):
            pair.comes(1, 8 + lane)
            got = pair.other.landed(8000, FIRST + 8000 * lane).view(np.int64)
            hold(np.array_equal(data, got), f"lane {lane} lost data")


def what_has_no_room_is_for_later(carrier: Carrier) -> None:
    """It is refused with False, and nothing is lost: also while nobody reads, long."""
    with joined(carrier) as pair:
        one, other = pair.both
        data = np.arange(500, dtype=np.int64)
        late, nth = time.monotonic() + _LATE_S, 0
        while nth < 1000:
            done = one.put(data, FIRST + 4000 * nth) and one.signal(nth + 1)
            nth += done
            one.hop.progress()
            if time.monotonic() > late:
                other.hop.progress()
            elif not done:
                one.hop.wait(1000)
                hold(not one.hop.faults(), f"who is late is lost: {one.hop.faults()}")
        pair.comes(1000)
        for nth in (0, 500, 999):
            got = other.landed(4000, FIRST + 4000 * nth).view(np.int64)
            hold(np.array_equal(data, got), "data are lost")


def who_is_not_busy_may_go(carrier: Carrier) -> None:
    """What was sent arrives although nobody here goes on, or this end is closed."""
    with joined(carrier) as pair:
        one, other = pair.both
        data = np.arange(1 << 17, dtype=np.int64)
        for nth, some in enumerate((data[:0], data[:1], data), start=1):
            pair.put(some)
            pair.signal(nth)
            until(lambda: not one.hop.busy(), *pair.both)
            until(lambda n=nth: other.words[8] == n, other)  # type: ignore[misc]
        other.memory[FIRST:] = 0
        pair.put(data)
        pair.signal(9)
        until(lambda: not one.hop.busy(), *pair.both)
        closing = threading.Thread(target=one.hop.close)
        closing.start()
        until(lambda: other.words[8] == 9, other)
        closing.join()
        got = other.landed(data.nbytes).view(np.int64)
        hold(np.array_equal(data, got), "a close loses what was sent")


def what_reaches_outside_lands_nowhere(carrier: Carrier) -> None:
    """A put is refused here or ends the peer there; a word always ends it."""
    data = np.full(16, 255, np.uint8)
    for offset in (0, FIRST - 8, SIZE - 8, 1 << 40, -8):
        with joined(carrier) as pair:
            taken = False
            with suppress(StrettoError):
                taken = all(end.put(data, offset) for end in pair.both)
            if taken:  # then it is seen there; a signal may be what sends it
                for end in pair.both:
                    end.signal(1, 72)
            _lands_nowhere(pair, ends=taken)
    for offset in (FIRST, -8, 1 << 40, 3):
        for word, side in ((offset, 128), (64, offset))[: 1 + carrier.checks_puts]:
            with joined(carrier) as pair:
                for end in pair.both:
                    hold(end.signal(5, word, 0, side), "a signal is refused")
                _lands_nowhere(pair, ends=True)


def _lands_nowhere(pair: CarrierPair, *, ends: bool) -> None:
    """Wait until both have ended, or are idle; nothing is where it should not be."""
    pair.idle()
    if ends:
        pair.until(lambda: all(end.peer in end.hop.faults() for end in pair.both))
    hold(not any(end.memory[FIRST:].any() for end in pair.both), "data landed")


def who_waits_sleeps_and_is_woken(carrier: Carrier) -> None:
    """By what comes, and by the descriptor of its window; by nothing else for long."""
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    pair = CarrierPair(CarrierEnd(carrier, 0), CarrierEnd(carrier, 1, wake=wake))
    one, other = pair.both
    pair.signal(1)
    pair.comes(1)
    pair.idle()
    pair.until(lambda: _slept(other, 20_000) >= 0.015)

    def wait() -> None:
        while other.words[8] < 2:
            other.hop.wait(10_000_000)
            other.hop.progress()

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: one.signal(2), one)
    until(lambda: not waiter.is_alive(), one, within_s=5)
    pair.idle()
    os.eventfd_write(wake, 1)
    hold(_slept(other, 20_000_000) < _SOON_S, "nobody hears the window's descriptor")
    for end in pair.both:
        end.hop.close()
    os.close(wake)


def _slept(end: CarrierEnd, microseconds: int) -> float:
    begun = time.monotonic()
    end.hop.wait(microseconds)
    return time.monotonic() - begun


def descriptors_wake_who_polls(carrier: Carrier) -> None:
    """Once armed, or by themselves; where there are none, arming says to look again."""
    with joined(carrier) as pair:
        one, other = pair.both
        pair.signal(1)
        pair.comes(1)
        numbers = list(other.hop.descriptors)
        if not numbers:
            hold(not other.hop.is_armed and not other.hop.arm(), "nothing wakes it")
            return
        for nth in range(2, 6):
            pair.idle()
            until(lambda: not other.hop.progress() and other.hop.arm(), other)
            until(lambda n=nth: one.signal(n), one)  # type: ignore[misc]
            stop_at = time.monotonic() + _SOON_S
            while other.words[8] < nth:
                hold(time.monotonic() < stop_at, "a signal wakes nobody")
                one.hop.progress()
                if any(readable(number, 0.005) for number in numbers):
                    other.hop.progress()
                    other.hop.arm()


def fields_take_what_is_put(carrier: Carrier) -> None:
    """Where it has them: in pieces, and no more once they are closed."""
    if not carrier.fields:
        return
    table = np.zeros((1, Field.END), np.int64)
    about: dict[str, Any] = {"fields": int(table.ctypes.data), "num_fields": 1}
    with joined(carrier, **about) as pair:
        hold(pair.one.hop.share()["fields"], "nobody is told of fields")
        sent = (np.arange(100_000) % 251 + 1).astype(np.uint8)
        pieces = np.zeros(100_000, np.uint8)
        at = int(pieces.ctypes.data)
        rows = np.array([[at, 10, 0], [at + 10, 99_990, 10]], np.int64)
        table[0, [Field.COUNT, Field.NBYTES, Field.GENERATION]] = 2, 100_000, 3
        table[0, Field.PIECES] = rows.ctypes.data
        for nth, want in ((1, sent), (2, np.zeros_like(sent))):
            if nth == 2:
                pieces[:] = table[0, Field.PIECES] = 0
            pair.put(sent, offset_of(0, 3))
            pair.signal(nth)
            pair.comes(nth)
            hold(np.array_equal(pieces, want), "a field has what it should not")


def a_peer_that_ends_is_named(carrier: Carrier) -> None:
    """Soon; then nothing is taken for it, nothing is busy, and a close is quick."""
    for size in (0, 8, 1 << 20):
        with joined(carrier, linger_s=0.1) as pair:
            _peer_ends(pair, np.ones(size, np.uint8))


def _peer_ends(pair: CarrierPair, data: Any) -> None:
    one, other = pair.both
    pair.put(data)
    one.signal(1)
    other.hop.close()

    def is_over() -> bool:
        return not (one.put(data) or one.signal(2)) and 1 in one.hop.faults()

    until(is_over, one, within_s=_SOON_S)
    said = one.hop.faults()
    hold(list(said) == [1] and said[1] and one.hop.has_ended, f"want peer 1: {said}")
    until(lambda: not one.hop.busy(), one, within_s=_SOON_S)
    hold(one.close_s() < _SOON_S, "a close waits for who is gone")


def a_close_waits_for_nobody(carrier: Carrier) -> None:
    """With much under way to who reads nothing; and when it was never connected."""
    with joined(carrier, linger_s=0.1) as pair:
        data = np.ones(3_000_000, np.uint8)
        for nth in range(1, 30):
            if not (pair.one.put(data) and pair.one.signal(nth)):
                break
        hold(pair.one.close_s() < _SOON_S, "it waits for who reads nothing")
    end = CarrierEnd(carrier, 0)
    end.hop.share()
    end.hop.close()


def another_secret_is_refused(carrier: Carrier) -> None:
    """So is another carrier, and what was garbled on the way."""
    ends = CarrierEnd(carrier, 0), CarrierEnd(carrier, 1, secret=b"other" * 8)
    for rank, said in enumerate(connect(ends, 1.0)):
        hold("not know this job's secret" in said, f"rank {rank} says {said!r}")
        hold(f"rank {rank} cannot reach rank {1 - rank} on " in said, f"it says {said}")
    mine = dict(ends[0].hop.share())
    for garbled in ({**mine, "carrier": "pigeon"}, {**mine, "host": "x"}, {}):
        try:
            ends[0].hop.connect([mine, garbled], [1], 1.0)
        except RendezvousError:
            continue
        raise AssertionError(f"it connects with {garbled}")
    for end in ends:
        end.hop.close()


def a_forked_child_is_refused(carrier: Carrier) -> None:
    """Whatever it asks; and its parent goes on."""
    with joined(carrier) as pair:
        child = os.fork()
        if not child:
            os._exit(_as_child(pair.one.hop))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        hold(code == 0, f"a child uses what is its parent's (it ended with {code})")
        pair.signal(1)
        pair.comes(1)


def _as_child(hop: Hop) -> int:
    try:
        hop.signal(1, 0, 64, 1, 128, (0, 0, 0))
    except CommunicationError:
        waits = hop.progress() or hop.busy() or hop.wait(1000) or hop.descriptors
        hop.close()
        return 2 if waits else 0
    except BaseException:
        return 3
    return 1


CASES: tuple[Callable[[Carrier], None], ...] = (
    out_of_turn_it_refuses,
    data_come_before_their_signal,
    a_word_never_falls,
    a_lane_keeps_its_order,
    each_lane_is_a_stream,
    what_has_no_room_is_for_later,
    who_is_not_busy_may_go,
    what_reaches_outside_lands_nowhere,
    who_waits_sleeps_and_is_woken,
    descriptors_wake_who_polls,
    fields_take_what_is_put,
    a_peer_that_ends_is_named,
    a_close_waits_for_nobody,
    another_secret_is_refused,
    a_forked_child_is_refused,
)


def check(carrier: Carrier) -> None:
    """Raise AssertionError, with the name of the case, unless a carrier does it all."""
    for case in CASES:
        try:
            case(carrier)
        except AssertionError as e:
            raise AssertionError(f"carrier {carrier.name}, {case.__name__}: {e}") from e
