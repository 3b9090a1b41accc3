"""What a rank does while nothing moves: look who is missing, lost, or elsewhere.

The interpreter comes back here when it has waited for a while, and goes on from here.
This is slow and may be: it runs a few hundred times a second at most.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import Plan, spell_step
from stretto.errors import CallError, StrettoError
from stretto.executors import Group
from stretto.executors.cpu.peers.far import FarHosts, FarSlab
from stretto.executors.cpu.peers.leaving import leave
from stretto.executors.cpu.running.encode import Encoded
from stretto.executors.cpu.shared.slab import Slab
from stretto.executors.cpu.words import PRIVATE, Code, Common, Header, Line, Status
from stretto.fabric.patience import Patience
from stretto.trace import MONOTONIC, Clock, Ring

_Line: TypeAlias = tuple[int, int, int, int]

_FAR = 1 << 62
_FIRST_SLEEP_US, _LAST_SLEEP_US = 20, 8000
_TELL_US = 100_000
"""How often a rank that waits tells other hosts where it is."""
_GRACE_US = 300_000
"""How long the hub may take to say who is gone, when a connection has ended."""
_SAY_US = 10_000
"""How long a wait is nobody's business; then whoever looks is told of it."""
_LATE = 32
"""A sleep is at most that part of the wait so far: nobody is much later for it."""


class Awaited(NamedTuple):
    """For whom a lane waits, and in which step of the plan."""

    rank: int
    lane: int
    place: int
    step: str


class CallWatch:
    """Sees a call to its end when it does not end by itself."""

    def __init__(
        self,
        *,
        group: Group,
        slabs: Sequence[Slab | FarSlab],
        words: NDArray[np.int64],
        plan: Plan,
        encoded: Encoded,
        resume: Callable[[int], int],
        way: FarHosts | None = None,
        ring: Ring | None = None,
        clock: Clock = MONOTONIC,
    ) -> None:
        """Remember what to look at."""
        self._group, self._slabs, self._words = group, tuple(slabs), words
        self._plan, self._encoded, self._resume = plan, encoded, resume
        self._clock, self._way, self._ring = clock, way, ring
        self._told_us = self._ended_us = -math.inf
        self._table = encoded.table
        self._at = int(encoded.table.ctypes.data)
        words[Common.SLEEP_US] = _FIRST_SLEEP_US

    def until_done(self, status: int) -> None:
        """Resume the call until it is done; raise what stops it."""
        if status == Status.UNREGISTERED:
            raise CallError(
                f"{self._encoded.text}: peers touch this call's memory, which is not "
                "from comm.empty() of this communicator; use a staged plan"
            )
        if status == Status.BUSY:
            raise CallError(
                f"{self._encoded.text}: {name_thread(self._inside())} is inside this "
                "communicator; one thread at a time may use it: give each one of its "
                "own, by split(0)"
            )
        done = False
        try:
            self._until_done(status)
            done = True
        except StrettoError:
            raise
        except BaseException as e:  # of a signal's handler: the others must hear of it
            how = f"raised {type(e).__name__} in {self._where()}"
            self._group.abandon(how)
            raise
        finally:
            try:
                if not done and self._plan.schedule.across:
                    leave(self._group.rank, self._slabs)
            finally:  # an interrupt may come while it waits
                if self._ring is not None:
                    self._ring.fail()  # if it has not ended
                self._words[Common.SLEEP_US] = _FIRST_SLEEP_US
                self._words[Common.INSIDE] = 0

    def _inside(self) -> int:
        return int(self._words[Common.INSIDE])

    def _until_done(self, status: int) -> None:
        since, seen = self._clock.now_us(), self._progress()
        has_said = False
        patience = Patience(self._group)
        while status != Status.DONE:
            now_us = self._clock.now_us()
            waited_us = now_us - since
            if not has_said and waited_us > _SAY_US:
                has_said = True
                self._say_waits(since)
            self._look_around(status, patience.is_over(since * 1e-6, now_us * 1e-6))
            sleep_us = min(int(waited_us / _LATE), _LAST_SLEEP_US)
            self._words[Common.SLEEP_US] = max(sleep_us, _FIRST_SLEEP_US)
            status = self._resume(self._at)
            if (now := self._progress()) != seen:
                since, seen = self._clock.now_us(), now
                has_said = False
                self._words[Common.SLEEP_US] = _FIRST_SLEEP_US

    def _say_waits(self, since_us: float) -> None:
        """Say whom each lane waits for, for whoever looks at this process."""
        if self._ring is None:
            return
        by_lane: dict[int, list[Awaited]] = {}
        for one in self._waits():
            by_lane.setdefault(one.lane, []).append(one)
        self._ring.say_waits(
            [
                {
                    "rank": self._ring.rank,
                    "comm": 0,
                    "seq": int(self._ring.words[0]),
                    "lane": lane,
                    "step": waits[0].place,
                    "tile": int(self._table[Header.TILE]),
                    "peers": sorted({one.rank for one in waits}),
                    "text": waits[0].step,
                    "since_ns": int(since_us * 1e3),
                }
                for lane, waits in by_lane.items()
            ]
        )

    def _look_around(self, status: int, is_over: bool) -> None:
        if self._way is not None:
            self._look_far(self._way)
        elsewhere = self._somebody_elsewhere() or self._in_exchanges()
        if status == Status.UNREACHED:
            raise self._group.fail((), self._where(), refused=self._unreached())
        if status == Status.MISMATCH or elsewhere:
            raise self._group.fail((), self._where(), mismatch=self._who_called_what())
        if is_over or int(self._group.broken[0]):
            raise self._group.fail(self._missing(), self._where())

    def _look_far(self, way: FarHosts) -> None:
        """Tell other hosts where we are, and see whose connection has ended."""
        now = self._clock.now_us()
        if now - self._told_us > _TELL_US:
            self._told_us = now
            way.tell()
        ended = way.faults()
        if not ended:
            self._ended_us = -math.inf
            return
        if self._ended_us < 0:
            self._ended_us = now
        if now - self._ended_us < _GRACE_US or int(self._group.broken[0]):
            return  # the hub may know more
        awaited = [one.rank for one in self._waits() if one.rank in ended]
        peer = awaited[0] if awaited else min(ended)
        how = f"cannot be reached by {way.carrier}: {ended[peer]}"
        raise self._group.lose(peer, how, self._where())

    def _progress(self) -> tuple[int, ...]:
        lanes = self._lanes()
        return (int(self._table[Header.TILE]), *lanes)

    def _lanes(self) -> list[int]:
        """Return the index in the table of each lane's next instruction."""
        first = (int(self._table[Header.LANES]) - self._at) // 8
        count = int(self._table[Header.NUM_LANES])
        nexts = self._table[first + 1 : first + 2 * count : 2]
        return [(int(n) - self._at) // 8 for n in nexts]

    def _calls(self) -> list[_Line]:
        return [slab.call() for slab in self._slabs]

    def _somebody_elsewhere(self) -> bool:
        """Return whether a peer that came is in another call than we are."""
        calls = self._calls()
        mine = calls[self._group.rank]
        return any(
            call[Line.EPOCH] == mine[Line.EPOCH] and _differ(mine, call)
            for call in calls
        )

    def _in_exchanges(self) -> dict[int, int]:
        """Return who is in an exchange instead of this call, and in which.

        Whoever has begun more of them than we have is ahead of us, or elsewhere; it is
        elsewhere when it has not been in this call before.
        """
        begun = [slab.exchange() for slab in self._slabs]  # before the calls: see them
        calls = self._calls()
        mine, epoch = begun[self._group.rank][0], calls[self._group.rank][Line.EPOCH]
        return {
            q: fingerprint
            for q, (number, fingerprint) in enumerate(begun)
            if number > mine and calls[q][Line.EPOCH] not in range(epoch, _FAR)
            if calls[q][Line.EPOCH]  # 0: just changing
        }

    def _missing(self) -> list[int]:
        """Return who has not come; if all have, whom we wait for."""
        calls = self._calls()
        mine = calls[self._group.rank][Line.EPOCH]
        absent = [q for q, c in enumerate(calls) if 0 < mine > c[Line.EPOCH]]
        return absent or sorted({one.rank for one in self._waits()})

    def _waits(self) -> list[Awaited]:
        """Return, for each lane that waits, for whom and in which step."""
        found = []
        for lane, at in enumerate(self._lanes()):
            words = self._table[at : at + 8].tolist()
            index, peers = -1, set[int]()
            if words[0] == Code.WAIT:
                index, peers = words[5], {words[4]}
            elif words[0] == Code.MOVE:
                first = at + 9 + 3 * words[5]
                ends = range(first, first + 3 * words[6], 3)
                index, peers = words[7], {int(self._table[i + 2]) for i in ends}
                peers -= {self._group.rank}
            elif words[0] == Code.CROSS:
                index, peers = int(self._table[at + 8]), {int(self._table[at + 9])}
            elif words[0] in (Code.PUT, Code.RAISE):
                index, peers = int(self._table[at + 11]), {words[2]}
            step = self._spell(lane, index) if peers else ""
            found += [Awaited(q, lane, index, step) for q in sorted(peers)]
        return found

    def _spell(self, lane: int, index: int) -> str:
        rank = self._group.rank
        step = self._plan.ranks[rank][lane][index]
        place = self._plan.users_place(step)
        return spell_step(rank, step) + (f" ({place})" if place else "")

    def _where(self) -> str:
        steps = "; ".join(sorted({one.step for one in self._waits()}))
        tile = int(self._table[Header.TILE]) + 1
        return (
            f"rank {self._group.rank} in {self._encoded.text}, "
            f"tile {tile} of {self._encoded.tiles}, at {steps or 'its end'}"
        )

    def _unreached(self) -> str:
        """Return whose memory the kernel does not copy from, and why."""
        for at in self._lanes():
            words = self._table[at : at + 11].tolist()
            if words[0] == Code.CROSS and words[10]:
                return (
                    f"the kernel does not copy from the array of rank {words[9]}: "
                    f"{os.strerror(words[10])}; with STRETTO_ACROSS=0 nothing is "
                    "copied so"
                )
        return "the kernel does not copy from a peer's array"

    def _who_called_what(self) -> str:
        calls = self._calls()
        mine = calls[self._group.rank][Line.EPOCH]
        elsewhere = self._in_exchanges()
        said = []
        for rank, (slab, line) in enumerate(zip(self._slabs, calls, strict=True)):
            if rank in elsewhere:
                said.append(f"rank {rank} called {slab.describe(elsewhere[rank])}")
                continue
            if line[Line.EPOCH] < mine:
                said.append(f"rank {rank} has not come")
                continue
            what = slab.describe(line[Line.FINGERPRINT])
            where = [f"{n:#x}" for n in line[Line.INPUT_OFFSET :] if n != PRIVATE]
            at = f" in registered memory at {' and '.join(where)}" if where else ""
            verb = "called" if line[Line.EPOCH] == mine else "has gone on to"
            said.append(f"rank {rank} {verb} {what}{at}")
        return "; ".join(said)


def name_thread(ident: int) -> str:
    """Return the words for a thread, in a sentence about it."""
    if ident == threading.get_ident():
        return "this thread (by a signal's handler, or while it collects garbage)"
    names = [t.name for t in threading.enumerate() if t.ident == ident]
    return f"thread {names[0]!r}" if names else "another thread"


def _differ(mine: _Line, other: _Line) -> bool:
    """Return whether two ranks are in different calls, or in one with other memory."""
    pairs = zip(mine[Line.INPUT_OFFSET :], other[Line.INPUT_OFFSET :], strict=True)
    return mine[Line.FINGERPRINT] != other[Line.FINGERPRINT] or any(
        a != b and PRIVATE not in (a, b) for a, b in pairs
    )
