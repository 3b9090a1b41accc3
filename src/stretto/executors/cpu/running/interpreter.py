"""The interpreter: it walks a call's table, compiled by Numba, a builtin for Python.

It returns when the call is done, when nothing moved for a while (state is in the table:
it resumes), or at a fault. What instructions do is in instructions.py. Its loops exist
twice: once plain, and once writing every step with its times, for as long as somebody
records steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.executors.cpu.running.instructions import (
    arise,
    bind,
    lie_down,
    move,
    packets,
    put_far,
    raise_far,
    rewind,
    signal,
    wait,
)
from stretto.executors.cpu.running.recording import (
    begin_call,
    begin_steps,
    end_call,
    now_ns,
    write_step,
)
from stretto.executors.cpu.shared.slab import PACKET_REGION, STAGE_REGION
from stretto.executors.cpu.words import Code, Header, SessionWord, Status
from stretto.jit.atomics import call as jump
from stretto.jit.atomics import (
    compiled,
    load,
    pause,
    sched_yield,
    store,
    store_release,
    take,
    thread_ident,
    usleep,
)
from stretto.jit.builtins import (
    DATA,
    bad_argument,
    builtin,
    call_one,
    disown,
    held_item,
    let_go,
    number,
    own,
    take_back,
)
from stretto.trace import rings

__all__ = ["address", "launcher", "resume", "spin"]

# Plain integers: Numba freezes them into the code.
_SESSION, _TILES = 8 * Header.SESSION, 8 * Header.TILES
_TILE_BYTES, _TILE = 8 * Header.TILE_BYTES, 8 * Header.TILE
_NUM_LANES, _LANES = 8 * Header.NUM_LANES, 8 * Header.LANES
_INPUT, _OUTPUT = 8 * Header.INPUT, 8 * Header.OUTPUT
_SHORT = 8 * Header.SHORT
_EPOCH = 8 * SessionWord.EPOCH
_SPINS, _YIELDS = 8 * SessionWord.SPINS, 8 * SessionWord.YIELDS
_SLEEPS, _SLEEP_US = 8 * SessionWord.SLEEPS, 8 * SessionWord.SLEEP_US
_LONG, _BRIEF = 8 * SessionWord.LONG_SPINS, 8 * SessionWord.BRIEF_SPINS
_MOST_YIELDS, _WARY = 8 * SessionWord.MOST_YIELDS, -1000
_AWAY, _INSIDE = 8 * SessionWord.AWAY_NS, 8 * SessionWord.INSIDE
_SWITCHED_NS, _TAKEN_NS = 2_000, 500_000
"""A yield that took longer let another process run; one that took much longer, another
than a peer, who answers and waits again soon."""
_MOST_HELD = 40
"""How often nothing may move before the GIL is given back: about a microsecond."""
_FAR_NAP_US = 500
_ASLEEP, _WAKERS = 8 * SessionWord.ASLEEP, 8 * SessionWord.WAKERS
_MOVE, _SIGNAL, _WAIT, _END, _PUT, _RAISE = (int(c) for c in Code)
_HOP, _HOP_BUSY = 8 * SessionWord.HOP, 8 * SessionWord.HOP_BUSY
_HOP_PROGRESS, _HOP_WAIT = 8 * SessionWord.HOP_PROGRESS, 8 * SessionWord.HOP_WAIT
_DONE, _WAITING, _MISMATCH, _UNREGISTERED, _BUSY = (int(s) for s in Status)
_RING, _STEPS = 8 * SessionWord.RING, 8 * rings.RingWord.STEPS
_BEGAN = 8 * rings.RingWord.BEGAN


@compiled("int64(int64,int64,int64)", nogil=False)
def _address(held: int, given: int, count: int) -> int:
    if count != 1:
        bad_argument()
        return 0
    return number(load(load(given) + DATA))


address: Callable[[Any], int] = builtin(_address, ())
"""Return where the data of a NumPy array begin."""


@compiled("void(int64)")
def spin(times: int) -> None:
    """Pause so many times, to be timed."""
    for _ in range(times):
        pause()


@compiled("void(int64,int64)")
def _learn(session: int, idle: int) -> None:
    """Spin briefly while a peer runs on this core: it cannot answer while we spin.

    Called when something moved at last. If that was right after a yield in which
    somebody else ran, for as long as an answer takes, it was the peer.
    """
    yields, most = load(session + _YIELDS), load(session + _MOST_YIELDS)
    if yields < most:  # the stranger may have gone
        spun = idle <= load(session + _SPINS)
        store(session + _YIELDS, min(yields + (1 if spun else 5), most))
    away = load(session + _AWAY)
    if away > 0:
        store(session + _AWAY, 0)
        here = _SWITCHED_NS < away < _TAKEN_NS
        store(session + _SPINS, load(session + (_BRIEF if here else _LONG)))


@compiled("int64(int64,int64,int64)")
def _relax(session: int, idle: int, far: int) -> int:
    """Wait a little, longer the longer nothing moved; return whether to look around.

    `far`: only for other hosts, whose word wakes who sleeps. Where peers of this host
    wake it, too, a rank looks once more after it has said that it sleeps.
    """
    spins = load(session + _SPINS)
    yields = spins + max(load(session + _YIELDS), 0)
    if idle < spins:
        pause()
    elif idle < yields:
        began = now_ns(session)
        sched_yield()
        away = now_ns(session) - began
        store(session + _AWAY, away)
        alone = load(session + _LONG) > load(session + _BRIEF)  # a core for each rank
        if away > _TAKEN_NS and alone:  # a stranger: who sleeps is put before it
            store(session + _YIELDS, _WARY)
    else:
        store(session + _AWAY, 0)
        if load(session + _HOP):
            if not lie_down(session):
                return 0
            far |= load(session + _WAKERS) != 0
            hop_wait, nap_us = load(session + _HOP_WAIT), load(session + _SLEEP_US)
            jump(hop_wait, load(session + _HOP), max(nap_us, far * _FAR_NAP_US))
            arise(session)
        else:
            usleep(load(session + _SLEEP_US))
    return idle >= yields + load(session + _SLEEPS)


@compiled("int64(int64,int64,int64,int64,int64,int64,int64)")
def _do(
    call: int, at: int, epoch: int, stage: int, source: int, target: int, packet: int
) -> int:
    """Do an instruction, or find that it must wait: DONE, WAITING or MISMATCH."""
    code = load(at)
    if code == _MOVE:
        status = packets(call, at, packet, epoch)
        if status == _DONE:
            move(call, at, epoch, stage, source, target, packet)
        return status
    if code == _SIGNAL:
        signal(call, at, epoch)
        return _DONE
    if code == _WAIT:
        return wait(call, at, epoch)
    if code == _PUT:
        return put_far(call, at, stage, source, target)
    return raise_far(call, at, epoch)


@compiled("int64(int64,int64,int64)")
def _drained(session: int, hop: int, idle: int) -> int:
    """Send what is left for other hosts; return 0 when that takes longer."""
    while jump(load(session + _HOP_BUSY), hop, 0):
        if jump(load(session + _HOP_PROGRESS), hop, 0) > 0:
            idle = 0
        idle += 1
        if _relax(session, idle, 1):
            return 0
    return 1


def _named(function: Any, with_steps: bool) -> Any:
    """Return a function that is compiled twice: compiled code is kept by its name."""
    function.__name__ += "_with_steps" * with_steps
    return function


def _compiled_lane(with_steps: bool) -> Callable[[int, int], int]:
    """Return what runs a lane, plain or writing every step."""

    def lane_of(call: int, lane: int) -> int:
        """Run a lane until its end, or until it must wait: DONE, WAITING or MISMATCH.

        Where it is stays in the table.
        """
        session = load(call + _SESSION)
        epoch = load(session + _EPOCH)
        stage = STAGE_REGION * (epoch & 1)
        packet = PACKET_REGION * (epoch & 1)
        along = load(call + _TILE) * load(call + _TILE_BYTES)
        source = load(call + _INPUT) + along
        target = load(call + _OUTPUT) + along
        status, at = _DONE, load(lane + 8)
        began = now = pending = 0
        if with_steps:
            pending = load(session + _RING) + _BEGAN
            pending += (lane - load(call + _LANES)) >> 1
            began, now = load(pending), now_ns(session)
            if not began:
                began = now
        while load(at) != _END:
            status = _do(call, at, epoch, stage, source, target, packet)
            if status != _DONE:
                break
            if with_steps:  # it was there when we looked, at `now`
                end = now_ns(session)
                write_step(call, at, lane, began, now, end)
                began = now = end
            at = load(at + 8)
        if with_steps:
            store(pending, began if status != _DONE else 0)
        store(lane + 8, at)
        return status

    done: Callable[[int, int], int] = compiled("int64(int64,int64)")(
        _named(lane_of, with_steps)
    )
    return done


def _compiled_walk(with_steps: bool) -> Callable[[int, int, int], int]:
    """Return what walks a call, plain or writing every step."""
    lane_of = _compiled_lane(with_steps)

    def walk(call: int, idle: int, most: int) -> int:
        """Walk a call until it is done, or until nothing moved for a while.

        `idle` is how often nothing has moved so far; `most` how often at most before
        the caller is to see to something, or 0.
        """
        session = load(call + _SESSION)
        lanes, num_lanes = load(call + _LANES), load(call + _NUM_LANES)
        tiles, hop = load(call + _TILES), load(session + _HOP)
        while load(call + _TILE) < tiles:
            waiting = moved = False
            far = 1
            for lane in range(lanes, lanes + 16 * num_lanes, 16):
                before = load(lane + 8)
                status = lane_of(call, lane)
                if status == _MISMATCH:
                    return _MISMATCH
                if status == _WAITING:
                    waiting = True
                    at = load(lane + 8)
                    far &= (load(at) == _WAIT) & load(at + 48)
                moved |= load(lane + 8) != before
            if waiting and hop:
                moved |= jump(load(session + _HOP_PROGRESS), hop, 0) > 0
            if moved:
                if idle > 0:
                    _learn(session, idle)
                    if load(session + _WAKERS):
                        store(load(session + _ASLEEP), 0)
                idle = 0
            if waiting:
                idle += 1
                if idle == most:
                    return _WAITING
                if _relax(session, idle, far):
                    return _WAITING
            else:
                store(session + _EPOCH, load(session + _EPOCH) + 1)
                store(call + _TILE, load(call + _TILE) + 1)
                rewind(call)
        if hop and not _drained(session, hop, idle):
            return _WAITING  # sources are the caller's again when they are sent
        if load(session + _RING):
            end_call(session)
        store_release(session + _INSIDE, 0)
        return _DONE

    make = compiled("int64(int64,int64,int64)")
    done: Callable[[int, int, int], int] = make(_named(walk, with_steps))
    return done


_plain = _compiled_walk(with_steps=False)
_writing = _compiled_walk(with_steps=True)


@compiled("int64(int64,int64,int64)")
def _walk(call: int, idle: int, most: int) -> int:
    """Walk a call, in the variant that is wanted now."""
    ring = load(load(call + _SESSION) + _RING)
    if ring and load(ring + _STEPS):
        return _writing(call, idle, most)
    return _plain(call, idle, most)


@compiled("int64(int64,int64,int64)")
def _begin(call: int, x: int, out: int) -> int:
    """Begin a call on two arrays, given by id(); one thread is inside to its end."""
    session = load(call + _SESSION)
    if not take(session + _INSIDE, thread_ident()):
        return _BUSY
    if bind(call, x, out) != _DONE:
        store_release(session + _INSIDE, 0)
        return _UNREGISTERED
    ring = load(session + _RING)
    if ring:
        begin_call(session, call)
        if load(ring + _STEPS):
            begin_steps(ring)
    return _DONE


@compiled("int64(int64)")
def resume(call: int) -> int:
    """Go on with a call that returned WAITING; return a `Status`."""
    session = load(call + _SESSION)
    idle = load(session + _SPINS) + max(load(session + _YIELDS), 0)
    return _walk(call, idle, 0)


@compiled("int64(int64,int64,int64)", nogil=False)
def _launch(held: int, given: int, count: int) -> int:
    """Run a call on `x` and `out`, as a builtin that holds what `launcher` says.

    What is short keeps the GIL at first: to give it back takes longer than the call.
    """
    if count != 2:
        bad_argument()
        return 0
    call = load(held_item(held, 0) + DATA)
    status = _begin(call, load(given), load(given + 8))
    if status == _DONE:
        session = load(call + _SESSION)
        idle, status = 0, _WAITING
        if load(call + _SHORT) and not load(session + _HOP):
            idle = min(load(session + _SPINS), _MOST_HELD)
            status = _walk(call, 0, idle)
        if status == _WAITING:
            thread = let_go()
            status = _walk(call, idle, 0)
            take_back(thread)
    if status == _DONE:
        nothing = held_item(held, 2)
        own(nothing)
        return nothing
    said = number(status)
    result = call_one(held_item(held, 1), said)
    disown(said)
    return result


def launcher(
    table: NDArray[np.int64], until_done: Callable[[int], None]
) -> Callable[[Any, Any], None]:
    """Return what runs a table on two arrays.

    `until_done` sees a call to its end that returned another status than DONE.
    """
    return builtin(_launch, (table, until_done, None))
