"""Write that a call was enqueued into a ring of records, in 0.1 us.

A ring's first words are those of `stretto.trace`, which a test compares: how many
records there are so far, their number less one (a power of two), their address, and
when the next call was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stretto.fabric.jit.atomics import compiled, load, store, store_release
from stretto.fabric.jit.builtins import (
    DATA,
    bad_argument,
    builtin,
    held_item,
    integer,
    own,
    raised,
)
from stretto.fabric.jit.libc import now_ns

MASK, RECORDS, ASKED, SCRATCH = 8, 16, 24, 8 * 24
"""Offsets in a ring; two words for the system's clock are at the last."""
ENQUEUED = 3


@compiled("void(int64,int64,int64)", nogil=False)
def _enqueue(ring: int, kind: int, stream: int) -> None:
    number = load(ring) + 1
    at = load(ring + RECORDS) + ((number & load(ring + MASK)) << 6)
    asked = load(ring + ASKED)
    if asked:
        store(ring + ASKED, 0)
    else:
        asked = now_ns(ring + SCRATCH)
    store_release(at, 0)
    store(at + 8, kind)
    store(at + 16, stream)
    store(at + 24, asked)
    store(at + 32, 0)
    store(at + 40, 0)
    store(at + 48, ENQUEUED)
    store_release(at, number)
    store_release(ring, number)


@compiled("int64(int64,int64,int64)", nogil=False)
def _noted(held: int, given: int, count: int) -> int:
    """Write a record of a call on a stream, as a builtin."""
    if count != 1:
        bad_argument()
        return 0
    stream = integer(load(given))
    if stream == -1 and raised():
        return 0
    words = load(held_item(held, 0) + DATA)
    _enqueue(load(words), load(words + 8), stream)
    nothing = held_item(held, 1)
    own(nothing)
    return nothing


def noter(ring: int, kind: int) -> Callable[[int], None]:
    """Return what writes that a call of a kind was enqueued on a stream."""
    return builtin(_noted, (np.array([ring, kind], np.int64), None))
