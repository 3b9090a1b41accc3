"""Records in and out in pure Python: the same memory as the compiled functions'.

One process's threads exclude each other by a lock. Between processes Python orders
nothing: so a reader is always woken, whether it says that it sleeps or not.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from stretto.transfer import loader
from stretto.transfer.copying.plain import bytes_at, fence
from stretto.transfer.links.words import (
    NUM_MARKS,
    RECORD,
    RING,
    SLOTS,
    Attention,
    Block,
    Look,
    Said,
    Word,
)

__all__ = ["await_record", "fence_now", "marked", "pop", "post"]


def _word(address: int) -> NDArray[np.int64]:
    return bytes_at(address, 8).view(np.int64)


def _block(link: int) -> list[int]:
    return [int(w) for w in bytes_at(link, 8 * Block.END).view(np.int64)]


def post(link: int, record: int) -> int:
    """Post a record where memory is shared; see the compiled one."""
    with loader.LOCK:
        if (now := loader.current()) is not None:
            return int(now.post(link, record))
        out = _block(link)[Block.OUT]
        tail = int(_word(out + Word.TAIL)[0])
        if tail - int(_word(out + Word.HEAD)[0]) >= SLOTS:
            return 0
        place = out + RING + tail % SLOTS * RECORD
        bytes_at(place, RECORD)[:] = bytes_at(record, RECORD)
        _word(out + Word.TAIL)[0] = tail + 1
        return 3


def pop(link: int, record: int) -> int:
    """Take a record; return whether there was one."""
    with loader.LOCK:
        if (now := loader.current()) is not None:
            return int(now.pop(link, record))
        inner = _block(link)[Block.IN]
        head = int(_word(inner + Word.HEAD)[0])
        if int(_word(inner + Word.TAIL)[0]) <= head:
            return 0
        place = inner + RING + head % SLOTS * RECORD
        bytes_at(record, RECORD)[:] = bytes_at(place, RECORD)
        _word(inner + Word.HEAD)[0] = head + 1
        return 1


def await_record(look: int, tag: int) -> int:
    """Look at links for a while; 2: there is a record. Nothing is taken here."""
    table = bytes_at(look, 8 * Look.LINKS).view(np.int64).tolist()
    attention = table[Look.ATTENTION]
    if not _word(attention + 8 * Attention.IS_HOT)[0]:
        return int(Said.COLD)
    _word(attention + 8 * Attention.LOOKS)[0] += 1
    until = time.monotonic_ns() + table[Look.SPIN_NS]
    at = look + 8 * Look.LINKS
    links = [int(_word(at + 8 * i)[0]) for i in range(table[Look.COUNT])]
    inner = [_block(link)[Block.IN] for link in links]
    ends = [(_word(at + Word.TAIL), _word(at + Word.HEAD)) for at in inner]
    while True:
        if any(tail[0] > head[0] for tail, head in ends):
            return 2
        if time.monotonic_ns() >= until or loader.current() is not None:
            return 0
        time.sleep(0)


def fence_now() -> None:
    """Let nothing after it begin before all before it is seen by everybody."""
    fence()


def marked(marks: int, epoch: int) -> int:
    """Return whether one of the marks says that memory of an epoch is written to."""
    return int(epoch in bytes_at(marks, 8 * NUM_MARKS).view(np.int64).tolist())
