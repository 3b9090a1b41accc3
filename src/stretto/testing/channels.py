"""What every channel must do: over shared memory, and by any carrier.

    from stretto.testing import channels
    channels.check()                                 # over shared memory
    channels.check(MyCarrier())                      # raises AssertionError, which says

or one test each: `@pytest.mark.parametrize("case", channels.CASES)`, `case(carrier)`.
Both ends are in this process.
"""

from __future__ import annotations

import gc
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from stretto.fabric.channel import SLOTS, Channel, Record, Word, halves, window_of
from stretto.fabric.channel.words import RECORD, RING
from stretto.fabric.hop import Carrier, Hop
from stretto.fabric.memory import Shared, word_at
from stretto.fabric.patience import readable
from stretto.fabric.wire import Descriptor
from stretto.testing.ends import WITHIN_S, connect, hold

BODY = RING + SLOTS * RECORD
"""Where a half's bytes begin that are the caller's."""
ROOM = 1 << 20
_HALF, _BOTH = halves(ROOM)
_SOON_S = 5.0


class ChannelEnd:
    """One end, and what came to it; with a hop where a carrier lies between."""

    hop: Hop | None = None
    channel: Channel
    other: ChannelEnd

    def __init__(self, rank: int, carrier: Carrier | None, fd: int = -1) -> None:
        """Make its memory, or map what the other has made."""
        self.rank, self.got = rank, list[Record]()
        self.memory = Shared(_BOTH) if fd < 0 else Shared.of_peer(_BOTH, os.dup(fd))
        self.wake = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        if carrier is not None:
            about = window_of(self.memory, _HALF, rank, secret=b"s" * 32, linger_s=0.1)
            self.hop = carrier.open_hop(about)

    def meet(self, other: ChannelEnd) -> None:
        """Be one end of a channel whose other end is that."""
        self.other = other
        self.channel = Channel(
            self.memory, _HALF, is_first=not self.rank, hop=self.hop,
            wake=None if self.hop else other.wake,
        )  # fmt: skip
        self.memory.close()

    def turn(self) -> None:
        """Let both ends go on, and take what has come here and there."""
        for end in (self, self.other):
            end.channel.progress()
            end.got += end.channel.records()
            end.channel.settle()

    def say(self, *words: int) -> None:
        """Post a record; while there is no room the other end takes some."""
        self.channel.say(words[0], *words[1:], give_up=self.turn)

    def put(self, data: np.ndarray, at: int = 0) -> None:
        """Put an array to the other's body."""
        source = int(data.ctypes.data)
        self.channel.put(source, BODY + at, data.nbytes, self.turn)

    def body(self, nbytes: int, at: int = 0) -> bytes:
        """Return what has come to our body."""
        return self.channel.read(BODY + at, nbytes)

    def until(self, done: Callable[[], object]) -> None:
        """Let both ends go on until something is so."""
        stop_at = time.monotonic() + WITHIN_S
        while not done():
            hold(time.monotonic() < stop_at, f"it does not come in {WITHIN_S} s")
            self.turn()

    def close(self) -> None:
        """End it."""
        self.channel.close()
        self.memory.close()
        self.wake.close()


@contextmanager
def linked(carrier: Carrier | None) -> Iterator[tuple[ChannelEnd, ChannelEnd]]:
    """Yield two ends of a channel, and close them."""
    one = ChannelEnd(0, carrier)
    other = ChannelEnd(1, carrier, -1 if carrier else one.memory.fd)
    if carrier is not None:
        said = connect((one, other))  # type: ignore[arg-type]
        hold(said == ["", ""], f"two ends do not connect: {said}")
    one.meet(other)
    other.meet(one)
    try:
        yield one, other
    finally:
        one.close()
        other.close()


def records_come_in_order_and_once(carrier: Carrier | None) -> None:
    """Both ways, more than there is room for at once; all eight words."""
    with linked(carrier) as (one, other):
        for nth in range(3 * SLOTS):
            one.say(7, nth, -nth, 3, 4, 5, 6, 1 << 62)
            if nth % 3 == 0:
                other.say(8, nth)
        one.until(lambda: len(other.got) == 3 * SLOTS and len(one.got) == SLOTS)
        want = [(7, nth, -nth, 3, 4, 5, 6, 1 << 62) for nth in range(3 * SLOTS)]
        hold(other.got == want, "records are lost, doubled or out of order")
        hold([nth for _, nth, *_ in one.got] == [*range(0, 3 * SLOTS, 3)], "so back")
        hold(one.channel.posted == other.channel.come == 3 * SLOTS, "it miscounts")
        hold(other.channel.taken == 3 * SLOTS, "it miscounts what was taken")


def what_was_put_is_there_with_its_record(carrier: Carrier | None) -> None:
    """Of any size, also nothing; both ways at once."""
    rng = np.random.default_rng(0)
    with linked(carrier) as ends:
        for nth, nbytes in enumerate((0, 1, 8, 8192, 70_001, ROOM) * 2, start=1):
            sent = [rng.integers(0, 256, nbytes, dtype=np.uint8) for _ in ends]
            for end, data in zip(ends, sent, strict=True):
                end.put(data)
                end.say(1, nbytes)
            for end, data in zip(ends, reversed(sent), strict=True):
                end.until(lambda e=end, n=nth: len(e.got) == n)  # type: ignore[misc]
                same = end.body(nbytes) == data.tobytes()
                hold(same, f"{nbytes} bytes come after their record")


def who_has_no_room_may_give_up(carrier: Carrier | None) -> None:
    """Nothing of what it gave up comes; the rest does, and it goes on."""
    with linked(carrier) as (one, other):

        def give_up() -> None:
            late.append(time.monotonic())
            if len(late) > 1 and late[-1] - late[0] > 0.02:
                raise EOFError

        late: list[float] = []
        with suppress(EOFError):
            for nth in range(1, 3 * SLOTS):
                one.channel.say(1, nth, give_up=give_up)
            raise AssertionError("there is room for everything")
        hold(nth <= SLOTS + 1, f"{nth} records find room in {SLOTS} places")
        one.until(lambda: len(other.got) == nth - 1)
        one.say(2, 0)
        one.until(lambda: len(other.got) == nth)
        hold([got[0] for got in other.got] == [1] * (nth - 1) + [2], "one came twice")


def a_word_that_grows_is_seen(carrier: Carrier | None) -> None:
    """Without a record; also the last of many."""
    with linked(carrier) as (one, other):
        seen = word_at(one.channel.out + Word.STAGED)
        for value in (1, 64, 1 << 40):
            other.channel.tell(Word.STAGED, value)
            one.until(lambda v=value: seen[0] == v)  # type: ignore[misc]


def threads_post_and_take_at_once(carrier: Carrier | None) -> None:
    """Each record comes once, and those of one thread in their order."""
    with linked(carrier) as (one, other):
        faults: list[BaseException] = []

        def post(mine: int) -> None:
            try:
                for nth in range(500):
                    one.channel.say(mine, nth, give_up=lambda: time.sleep(0.0001))
            except BaseException as e:
                faults.append(e)

        threads = [threading.Thread(target=post, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        other.until(lambda: len(other.got) == 2000 or faults)
        for thread in threads:
            thread.join()
        hold(not faults, f"a thread cannot post: {faults}")
        for mine in range(4):
            nths = [got[1] for got in other.got if got[0] == mine]
            hold(nths == [*range(500)], f"records of thread {mine} are out of order")


def who_sleeps_is_woken(carrier: Carrier | None) -> None:
    """By a descriptor, or by looking again soon, where the carrier wakes nobody."""
    with linked(carrier) as (one, other):
        channel = other.channel
        one.say(1)
        other.until(lambda: len(other.got) == 1)
        channel.asleep[0] = 1
        numbers: Sequence[int] = [other.wake.number]
        if other.hop is not None:
            numbers = other.hop.descriptors
        naps = channel.by_python is not None and channel.by_python.naps
        hold(numbers or naps, "nothing wakes who sleeps, and it does not nap")
        if naps:
            hold(channel.arm() and not channel.is_stuck, "it cannot sleep")
            return
        stop_at = time.monotonic() + WITHIN_S
        while channel.progress() or not channel.arm():
            hold(time.monotonic() < stop_at, "something always stirs")
        one.say(2)
        while not any(readable(number, 0.005) for number in numbers):
            hold(time.monotonic() < stop_at, "nobody wakes it")
            one.channel.progress()
        other.until(lambda: len(other.got) == 2)


def a_peer_that_ends_is_named(carrier: Carrier | None) -> None:
    """Then nobody waits for it; what is shared has no end of its own."""
    with linked(carrier) as (one, other):
        other.channel.close()
        hold(other.channel.gone[0], "who closes does not know that it is over")
        if carrier is None:
            hold(one.channel.fault == "", "shared memory has ended")
            return
        stop_at = time.monotonic() + _SOON_S
        while not one.channel.fault:
            hold(time.monotonic() < stop_at, "nobody hears of the end")
            with suppress(EOFError):
                one.channel.say(1, give_up=_never)
            one.channel.progress()
        telling = threading.Thread(target=one.channel.tell, args=(Word.STAGED, 9))
        telling.start()
        telling.join(_SOON_S)
        was_over = not telling.is_alive()
        one.channel.gone[0] = 1
        telling.join()
        hold(was_over, "who gives room back waits for who is gone")
        hold(not one.channel.is_stuck, "it is busy for who is gone")


def _never() -> None:
    raise EOFError


def nothing_comes_after_a_close(carrier: Carrier | None) -> None:
    """By a carrier: what is put later lands nowhere. Who shares memory is asked."""
    if carrier is None:
        return
    with linked(carrier) as (one, other):
        one.say(1)
        one.until(lambda: other.got)
        other.channel.close()
        before = other.body(ROOM)
        data = np.ones(4096, np.uint8)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            with suppress(EOFError):
                one.channel.put(int(data.ctypes.data), BODY, data.nbytes, _never)
                one.channel.say(2, give_up=_never)
            one.channel.progress()
        hold(other.body(ROOM) == before, "bytes land after a close")
        hold(not list(other.channel.records()), "a record comes after a close")


def nothing_is_left_of_it(carrier: Carrier | None) -> None:
    """Descriptors and mappings are given back, by whoever ends first."""

    def use(first: int) -> None:
        with linked(carrier) as ends:
            ends[0].say(1)
            ends[0].until(lambda: ends[1].got)
            ends[first].channel.close()

    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
        return len(os.listdir("/proc/self/fd")), maps.count("/memfd:stretto")  # noqa: PTH208

    for turn in range(2):  # what a library keeps for itself, it has then
        use(turn)
    gc.collect()
    before = held()
    for turn in range(6):
        use(turn % 2)
    stop_at = time.monotonic() + _SOON_S
    while any(map(operator.gt, after := held(), before)):  # fewer of one are not enough
        if time.monotonic() > stop_at:
            break
        gc.collect()
        time.sleep(0.01)
    hold(after[0] <= before[0], f"descriptors: {before[0]} before, {after[0]} after")
    hold(after[1] <= before[1], f"mappings: {before[1]} before, {after[1]} after")


CASES: tuple[Callable[[Carrier | None], None], ...] = (
    records_come_in_order_and_once,
    what_was_put_is_there_with_its_record,
    who_has_no_room_may_give_up,
    a_word_that_grows_is_seen,
    threads_post_and_take_at_once,
    who_sleeps_is_woken,
    a_peer_that_ends_is_named,
    nothing_comes_after_a_close,
    nothing_is_left_of_it,
)


def check(carrier: Carrier | None = None) -> None:
    """Raise AssertionError, with the name of the case, unless a channel does it all."""
    by = "shared memory" if carrier is None else carrier.name
    for case in CASES:
        try:
            case(carrier)
        except AssertionError as e:
            raise AssertionError(f"a channel by {by}, {case.__name__}: {e}") from e
