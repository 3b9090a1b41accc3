"""Write that a call was enqueued into a ring of records, in a tenth of a microsecond.

A ring's first words are those of `stretto.trace`, which a test compares: how many
records there are so far, their number less one (a power of two), their address, and
when the next call was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stretto.jit.atomics import clock_gettime, compiled, load, store, store_release

__all__ = ["ASKED", "ENQUEUED", "MASK", "RECORDS", "SCRATCH", "enqueue", "enqueuer"]

MASK, RECORDS, ASKED, SCRATCH = 8, 16, 24, 8 * 24
"""Offsets in a ring; two words for the system's clock are at the last."""
ENQUEUED = 3
_MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 0))


@compiled("int64(int64,int64,int64)", nogil=False)
def enqueue(ring: int, kind: int, stream: int) -> int:
    """Write a record of a call of that kind, on that stream; return its number."""
    number = load(ring) + 1
    at = load(ring + RECORDS) + ((number & load(ring + MASK)) << 6)
    asked = load(ring + ASKED)
    if asked:
        store(ring + ASKED, 0)
    else:
        clock_gettime(_MONOTONIC, ring + SCRATCH)
        asked = load(ring + SCRATCH) * 1_000_000_000 + load(ring + SCRATCH + 8)
    store_release(at, 0)
    store(at + 8, kind)
    store(at + 16, stream)
    store(at + 24, asked)
    store(at + 32, 0)
    store(at + 40, 0)
    store(at + 48, ENQUEUED)
    store_release(at, number)
    store_release(ring, number)
    return number


def enqueuer() -> Callable[[int, int, int], int]:
    """Return `enqueue` as it is called fastest: without Numba's dispatcher."""
    (made,) = getattr(enqueue, "overloads", {}).values() or (None,)
    found: Callable[[int, int, int], int]
    found = getattr(made, "entry_point", None) or enqueue
    return found
