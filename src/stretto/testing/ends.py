"""Two ends of a carrier in one process, for those who examine it."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.fabric.hop import Carrier, Window

FIRST, SIZE = 4096, 1 << 22
"""Where data may land in a window, and where it ends; before are words."""
WITHIN_S = 20.0
"""What must come, comes by then."""
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def hold(is_so: object, words: str) -> None:
    """Raise AssertionError unless something is so."""
    if not is_so:
        raise AssertionError(words)


class CarrierEnd:
    """A rank's memory, and its hop; what it sends goes to the other rank."""

    by_calls = False
    """Whether it sends by the addresses of its hop's calls, as compiled code does."""

    def __init__(self, carrier: Carrier, rank: int, **about: Any) -> None:
        """Open it; `about` are words of its window that are not the usual ones."""
        self.memory = np.zeros(SIZE, np.uint8)
        self.words = self.memory[:FIRST].view(np.int64)
        window = Window(
            rank=rank, num_ranks=2, address=int(self.memory.ctypes.data),
            puts=(FIRST, SIZE), words=(0, FIRST), secret=b"s" * 32,
        )  # fmt: skip
        self.hop = carrier.open_hop(replace(window, **about))
        self.peer = 1 - rank

    def put(self, data: NDArray[Any], offset: int = FIRST, lane: int = 0) -> bool:
        """Begin to put an array."""
        given = self.peer, lane, int(data.ctypes.data), offset, data.nbytes
        if self.by_calls:
            return self._called(self.hop.calls.put, given)
        return self.hop.put(*given)

    def signal(
        self, value: int, offset: int = 64, lane: int = 0, side: int = 128,
        words: Sequence[int] = (0, 0, 0),
    ) -> bool:  # fmt: skip
        """Raise a word."""
        given = self.peer, lane, offset, value, side
        if self.by_calls:
            return self._called(self.hop.calls.signal, (*given, *words))
        return self.hop.signal(*given, words)

    def _called(self, address: int, words: Sequence[int]) -> bool:
        given = np.array(words, np.int64)
        return bool(_CALL(address)(self.hop.calls.context, int(given.ctypes.data)))

    def landed(self, nbytes: int, offset: int = FIRST) -> NDArray[np.uint8]:
        """Return what lies at a place of the window."""
        return self.memory[offset : offset + nbytes]

    def close_s(self) -> float:
        """Close it, and return how long that took."""
        begun = time.monotonic()
        self.hop.close()
        return time.monotonic() - begun


def connect(ends: Sequence[CarrierEnd], within_s: float = 10.0) -> list[str]:
    """Connect two ends with one another, at once; return what each raised, in words."""
    shares = [json.loads(json.dumps(end.hop.share())) for end in ends]
    raised = [""] * len(ends)

    def run(rank: int) -> None:
        try:
            ends[rank].hop.connect(shares, [1 - rank], within_s)
        except Exception as e:
            raised[rank] = f"{type(e).__name__}: {e}"

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def until(done: Callable[[], object], *ends: CarrierEnd, within_s: float = 0.0) -> None:
    """Let ends progress until something is so."""
    within_s = within_s or WITHIN_S
    stop_at = time.monotonic() + within_s
    while not done():
        hold(time.monotonic() < stop_at, f"it does not come in {within_s} s")
        for end in ends:
            end.hop.progress()


class CarrierPair:
    """Two ends that are connected, and what goes on between them."""

    def __init__(self, one: CarrierEnd, other: CarrierEnd) -> None:
        """Connect them."""
        self.one, self.other = self.both = one, other
        said = connect(self.both)
        hold(said == ["", ""], f"two ends do not connect: {said}")

    def until(self, done: Callable[[], object], within_s: float = 0.0) -> None:
        """Let both progress until something is so."""
        until(done, *self.both, within_s=within_s)

    def put(
        self, data: NDArray[Any], *where: int, by: CarrierEnd | None = None
    ) -> None:
        """Put, as soon as there is room."""
        self.until(lambda: (by or self.one).put(data, *where))

    def signal(self, value: int, *where: Any, by: CarrierEnd | None = None) -> None:
        """Raise a word, as soon as there is room."""
        self.until(lambda: (by or self.one).signal(value, *where))

    def comes(self, value: int, word: int = 8, at: CarrierEnd | None = None) -> None:
        """Wait until a word has a value, or more."""
        self.until(lambda: (at or self.other).words[word] >= value)

    def idle(self) -> None:
        """Wait until nobody is busy."""
        self.until(lambda: not any(end.hop.busy() for end in self.both))


@contextmanager
def joined(carrier: Carrier, **about: Any) -> Iterator[CarrierPair]:
    """Yield two ends that are connected, and close them."""
    ends = CarrierEnd(carrier, 0, **about), CarrierEnd(carrier, 1, **about)
    try:
        yield CarrierPair(*ends)
    finally:
        for end in ends:
            end.hop.close()
