"""What the interpreter writes about calls and steps: into a ring of `stretto.trace`.

A call is some stores and two readings of the clock. Steps are written by a variant of
the interpreter's loop, only while somebody wants them.
"""

from __future__ import annotations

import time

from stretto.executors.cpu.words import RING_ABI, Header, SessionWord
from stretto.jit.atomics import clock_gettime, compiled, load, store, store_release
from stretto.trace import rings

__all__ = ["begin_call", "begin_steps", "end_call", "now_ns", "write_step"]

assert rings.ABI == RING_ABI, "the words below are those of rings.py"

# Plain integers: Numba freezes them into the code.
_CLOCK, _RING = 8 * SessionWord.CLOCK, 8 * SessionWord.RING
_INSIDE = 8 * SessionWord.INSIDE
_KIND, _LANES, _TILE = 8 * Header.KIND, 8 * Header.LANES, 8 * Header.TILE
_MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 0))
_MASK, _RECORDS = 8 * rings.RingWord.MASK, 8 * rings.RingWord.RECORDS
_ENQUEUE, _CURRENT = 8 * rings.RingWord.ENQUEUE, 8 * rings.RingWord.CURRENT
_STEP_HEAD, _STEP_MASK = 8 * rings.RingWord.STEP_HEAD, 8 * rings.RingWord.STEP_MASK
_STEPS_AT, _BEGAN = 8 * rings.RingWord.STEPS_AT, 8 * rings.RingWord.BEGAN
_MOST_LANES = rings.MOST_LANES
_RUNNING, _ENDED = 0, 1


@compiled("int64(int64)")
def now_ns(session: int) -> int:
    """Return the time on this host's clock."""
    clock_gettime(_MONOTONIC, session + _CLOCK)
    return load(session + _CLOCK) * 1_000_000_000 + load(session + _CLOCK + 8)


@compiled("void(int64,int64)")
def begin_call(session: int, call: int) -> None:
    """Write that a call begins. Readers know a record by its number, stored last."""
    ring = load(session + _RING)
    number = load(ring) + 1
    at = load(ring + _RECORDS) + ((number & load(ring + _MASK)) << 6)
    now, asked = now_ns(session), load(ring + _ENQUEUE)
    store_release(at, 0)
    store(at + 8, load(call + _KIND))
    store(at + 16, load(session + _INSIDE))
    store(at + 24, asked or now)
    store(at + 32, now)
    store(at + 40, 0)
    store(at + 48, _RUNNING)
    store(ring + _ENQUEUE, 0)
    store(ring + _CURRENT, at)
    store_release(at, number)
    store_release(ring, number)


@compiled("void(int64)")
def end_call(session: int) -> None:
    """Write that it has ended."""
    at = load(load(session + _RING) + _CURRENT)
    store(at + 40, now_ns(session))
    store_release(at + 48, _ENDED)


@compiled("void(int64)")
def begin_steps(ring: int) -> None:
    """Say that no lane waits in a step."""
    for lane in range(_MOST_LANES):
        store(ring + _BEGAN + 8 * lane, 0)


@compiled("void(int64,int64,int64,int64,int64,int64)")
def write_step(call: int, at: int, lane: int, began: int, ready: int, end: int) -> None:
    """Write a step: its instruction's place in the table stands for what it is."""
    ring = load(load(call) + _RING)
    head = load(ring + _STEP_HEAD)
    slot = load(ring + _STEPS_AT) + ((head & load(ring + _STEP_MASK)) << 6)
    store(slot, load(ring))
    store(slot + 8, load(call + _KIND))
    store(slot + 16, (at - call) >> 3)
    store(slot + 24, load(call + _TILE))
    store(slot + 32, began)
    store(slot + 40, ready - began)
    store(slot + 48, end)
    store(slot + 56, (lane - load(call + _LANES)) >> 4)
    store_release(ring + _STEP_HEAD, head + 1)
