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
    cross,
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
    write_step,
)
from stretto.executors.cpu.shared.slab import PACKET_REGION, STAGE_REGION
from stretto.executors.cpu.words import Code, Common, Header, Status
from stretto.fabric.jit.atomics import call as jump
from stretto.fabric.jit.atomics import compiled, load, pause, store, store_release, take
from stretto.fabric.jit.builtins import (
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
from stretto.fabric.jit.libc import now_ns, sched_yield, thread_ident, usleep
from stretto.trace.rings import RingWord

__all__ = ["address", "launcher", "resume", "spin"]

_WARY = -1000
_SWITCHED_NS, _TAKEN_NS = 2_000, 500_000
"""A yield that took longer let another process run; one that took much longer, another
than a peer, who answers and waits again soon."""
_MOST_HELD = 40
"""How often nothing may move before the GIL is given back: about a microsecond."""
_FAR_NAP_US = 500


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
    yields = load(session + Common.YIELDS.at)
    most = load(session + Common.MOST_YIELDS.at)
    if yields < most:  # the stranger may have gone
        spun = idle <= load(session + Common.SPINS.at)
        store(session + Common.YIELDS.at, min(yields + (1 if spun else 5), most))
    away = load(session + Common.AWAY_NS.at)
    if away > 0:
        store(session + Common.AWAY_NS.at, 0)
        here = _SWITCHED_NS < away < _TAKEN_NS
        spins = Common.BRIEF_SPINS.at if here else Common.LONG_SPINS.at
        store(session + Common.SPINS.at, load(session + spins))


@compiled("int64(int64,int64,int64)")
def _relax(session: int, idle: int, far: int) -> int:
    """Wait a little, longer the longer nothing moved; return whether to look around.

    `far`: only for other hosts, whose word wakes who sleeps. Where peers of this host
    wake it, too, a rank looks once more after it has said that it sleeps.
    """
    spins = load(session + Common.SPINS.at)
    yields = spins + max(load(session + Common.YIELDS.at), 0)
    if idle < spins:
        pause()
    elif idle < yields:
        began = now_ns(session + Common.CLOCK.at)
        sched_yield()
        away = now_ns(session + Common.CLOCK.at) - began
        store(session + Common.AWAY_NS.at, away)
        brief = load(session + Common.BRIEF_SPINS.at)  # a core for each rank?
        alone = load(session + Common.LONG_SPINS.at) > brief
        if away > _TAKEN_NS and alone:  # a stranger: who sleeps is put before it
            store(session + Common.YIELDS.at, _WARY)
    else:
        store(session + Common.AWAY_NS.at, 0)
        hop = load(session + Common.HOP.at)
        if hop:
            if not lie_down(session):
                return 0
            far |= load(session + Common.WAKERS.at) != 0
            nap_us = max(load(session + Common.SLEEP_US.at), far * _FAR_NAP_US)
            jump(load(session + Common.HOP_WAIT.at), hop, nap_us)
            arise(session)
        else:
            usleep(load(session + Common.SLEEP_US.at))
    return idle >= yields + load(session + Common.SLEEPS.at)


@compiled("int64(int64,int64,int64,int64,int64,int64,int64)")
def _do(
    call: int, at: int, epoch: int, stage: int, source: int, target: int, packet: int
) -> int:
    """Do an instruction, or find that it must wait, or why it cannot be done."""
    code = load(at)
    if code == Code.MOVE:
        status = packets(call, at, packet, epoch)
        if status == Status.DONE:
            move(call, at, epoch, stage, source, target, packet)
        return status
    if code == Code.SIGNAL:
        signal(call, at, epoch)
        return Status.DONE
    if code == Code.WAIT:
        return wait(call, at, epoch)
    if code == Code.CROSS:
        return cross(call, at, stage, source, target)
    if code == Code.PUT:
        return put_far(call, at, stage, source, target)
    return raise_far(call, at, epoch)


@compiled("int64(int64,int64,int64)")
def _drained(session: int, hop: int, idle: int) -> int:
    """Send what is left for other hosts; return 0 when that takes longer."""
    while jump(load(session + Common.HOP_BUSY.at), hop, 0):
        if jump(load(session + Common.HOP_PROGRESS.at), hop, 0) > 0:
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
        """Run a lane until its end, or until it must wait, or cannot go on.

        Where it is stays in the table.
        """
        session = load(call + Header.SESSION.at)
        epoch = load(session + Common.EPOCH.at)
        stage = STAGE_REGION * (epoch & 1)
        packet = PACKET_REGION * (epoch & 1)
        along = load(call + Header.TILE.at) * load(call + Header.TILE_BYTES.at)
        source = load(call + Header.INPUT.at) + along
        target = load(call + Header.OUTPUT.at) + along
        status: int = Status.DONE
        at = load(lane + 8)
        began = now = pending = 0
        if with_steps:
            pending = load(session + Common.RING.at) + RingWord.BEGAN.at
            pending += (lane - load(call + Header.LANES.at)) >> 1
            began, now = load(pending), now_ns(session + Common.CLOCK.at)
            if not began:
                began = now
        while load(at) != Code.END:
            status = _do(call, at, epoch, stage, source, target, packet)
            if status != Status.DONE:
                break
            if with_steps:  # it was there when we looked, at `now`
                end = now_ns(session + Common.CLOCK.at)
                write_step(call, at, lane, began, now, end)
                began = now = end
            at = load(at + 8)
        if with_steps:
            store(pending, began if status != Status.DONE else 0)
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
        session = load(call + Header.SESSION.at)
        lanes = load(call + Header.LANES.at)
        num_lanes = load(call + Header.NUM_LANES.at)
        tiles, hop = load(call + Header.TILES.at), load(session + Common.HOP.at)
        while load(call + Header.TILE.at) < tiles:
            waiting = moved = False
            far = 1
            # Lanes of one rank take turns: one that waits leaves the core to the next.
            for lane in range(lanes, lanes + 16 * num_lanes, 16):
                before = load(lane + 8)
                status = lane_of(call, lane)
                if status > Status.WAITING:
                    return status
                if status == Status.WAITING:
                    waiting = True
                    at = load(lane + 8)
                    far &= (load(at) == Code.WAIT) & load(at + 48)
                moved |= load(lane + 8) != before
            if waiting and hop:
                moved |= jump(load(session + Common.HOP_PROGRESS.at), hop, 0) > 0
            if moved:
                # Only who had waited learns anything about where its peers run.
                if idle > 0:
                    _learn(session, idle)
                    if load(session + Common.WAKERS.at):
                        store(load(session + Common.ASLEEP.at), 0)
                idle = 0
            if waiting:
                idle += 1
                if idle == most:
                    return Status.WAITING
                if _relax(session, idle, far):
                    return Status.WAITING
            else:
                # Each tile is an epoch of its own: no flag is lowered, and staging
                # of the other parity may still be read while this one is written.
                epoch = load(session + Common.EPOCH.at)
                store(session + Common.EPOCH.at, epoch + 1)
                store(call + Header.TILE.at, load(call + Header.TILE.at) + 1)
                rewind(call)
        if hop and not _drained(session, hop, idle):
            return Status.WAITING  # sources are the caller's again when they are sent
        if load(session + Common.RING.at):
            end_call(session)
        store_release(session + Common.INSIDE.at, 0)
        return Status.DONE

    make = compiled("int64(int64,int64,int64)")
    done: Callable[[int, int, int], int] = make(_named(walk, with_steps))
    return done


_plain = _compiled_walk(with_steps=False)
_writing = _compiled_walk(with_steps=True)


@compiled("int64(int64,int64,int64)")
def _walk(call: int, idle: int, most: int) -> int:
    """Walk a call, in the variant that is wanted now."""
    ring = load(load(call + Header.SESSION.at) + Common.RING.at)
    if ring and load(ring + RingWord.STEPS.at):
        return _writing(call, idle, most)
    return _plain(call, idle, most)


@compiled("int64(int64,int64,int64)")
def _begin(call: int, x: int, out: int) -> int:
    """Begin a call on two arrays, given by id(); one thread is inside to its end."""
    session = load(call + Header.SESSION.at)
    if not take(session + Common.INSIDE.at, thread_ident()):
        return Status.BUSY
    # From here on another thread is told BUSY; whatever fails gives the word back.
    if bind(call, x, out) != Status.DONE:
        store_release(session + Common.INSIDE.at, 0)
        return Status.UNREGISTERED
    ring = load(session + Common.RING.at)
    if ring:
        begin_call(session, call)
        if load(ring + RingWord.STEPS.at):
            begin_steps(ring)
    return Status.DONE


@compiled("int64(int64)")
def resume(call: int) -> int:
    """Go on with a call that returned WAITING; return a `Status`."""
    session = load(call + Header.SESSION.at)
    idle = load(session + Common.SPINS.at) + max(load(session + Common.YIELDS.at), 0)
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
    if status == Status.DONE:
        session = load(call + Header.SESSION.at)
        idle, status = 0, Status.WAITING
        # Between hosts nothing is over so soon that keeping the GIL would pay.
        if load(call + Header.SHORT.at) and not load(session + Common.HOP.at):
            idle = min(load(session + Common.SPINS.at), _MOST_HELD)
            status = _walk(call, 0, idle)
        if status == Status.WAITING:
            thread = let_go()
            status = _walk(call, idle, 0)
            take_back(thread)
    if status == Status.DONE:
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
