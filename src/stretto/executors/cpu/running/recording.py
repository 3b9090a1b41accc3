"""What the interpreter writes about calls and steps: into a ring of `stretto.trace`.

A call is some stores and two readings of the clock. Steps are written by a variant of
the interpreter's loop, only while somebody wants them.
"""

from __future__ import annotations

from stretto.executors.cpu.words import RING_ABI, Common, Header
from stretto.fabric.jit.atomics import compiled, load, store, store_release
from stretto.fabric.jit.libc import now_ns
from stretto.trace import rings
from stretto.trace.rings import MOST_LANES, RingWord

assert rings.ABI == RING_ABI, "the words below are those of rings.py"

_RUNNING, _ENDED = 0, 1


@compiled("void(int64,int64)")
def begin_call(session: int, call: int) -> None:
    """Write that a call begins. Readers know a record by its number, stored last."""
    ring = load(session + Common.RING.at)
    number = load(ring) + 1
    nth = number & load(ring + RingWord.MASK.at)
    at = load(ring + RingWord.RECORDS.at) + (nth << 6)
    now, asked = now_ns(session + Common.CLOCK.at), load(ring + RingWord.ENQUEUE.at)
    store_release(at, 0)
    store(at + 8, load(call + Header.KIND.at))
    store(at + 16, load(session + Common.INSIDE.at))
    store(at + 24, asked or now)
    store(at + 32, now)
    store(at + 40, 0)
    store(at + 48, _RUNNING)
    store(ring + RingWord.ENQUEUE.at, 0)
    store(ring + RingWord.CURRENT.at, at)
    store_release(at, number)
    store_release(ring, number)


@compiled("void(int64)")
def end_call(session: int) -> None:
    """Write that it has ended."""
    at = load(load(session + Common.RING.at) + RingWord.CURRENT.at)
    store(at + 40, now_ns(session + Common.CLOCK.at))
    store_release(at + 48, _ENDED)


@compiled("void(int64)")
def begin_steps(ring: int) -> None:
    """Say that no lane waits in a step."""
    for lane in range(MOST_LANES):
        store(ring + RingWord.BEGAN.at + 8 * lane, 0)


@compiled("void(int64,int64,int64,int64,int64,int64)")
def write_step(call: int, at: int, lane: int, began: int, ready: int, end: int) -> None:
    """Write a step: its instruction's place in the table stands for what it is."""
    ring = load(load(call) + Common.RING.at)
    head = load(ring + RingWord.STEP_HEAD.at)
    nth = head & load(ring + RingWord.STEP_MASK.at)
    slot = load(ring + RingWord.STEPS_AT.at) + (nth << 6)
    store(slot, load(ring))
    store(slot + 8, load(call + Header.KIND.at))
    store(slot + 16, (at - call) >> 3)
    store(slot + 24, load(call + Header.TILE.at))
    store(slot + 32, began)
    store(slot + 40, ready - began)
    store(slot + 48, end)
    store(slot + 56, (lane - load(call + Header.LANES.at)) >> 4)
    store_release(ring + RingWord.STEP_HEAD.at, head + 1)
