"""What the agents of lanes do, worked out step by step and kept.

Plans that are laid out alike share most of their steps: what a step comes to in a lane,
in every block and tile and on every thread, is the same for all of them.

Legend: r rank, b block, t tile, e epoch, i element of a slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.checking.referee.actions import (
    LOAD,
    MEET,
    NOWHERE,
    PUT,
    SIGNAL,
    STORE,
    WAIT,
    Action,
)
from tests.checking.referee.calls import Call, LaidOut
from tests.checking.referee.cells import Cells
from tests.checking.referee.verdict import Fault, Outcome

from stretto.compiler.plan import Move, Signal, Space, Step, Wait

__all__ = ["Body", "Lanes", "Ways", "in_turn"]


class Ways(NamedTuple):
    """How calls are run."""

    threads: bool = False
    """Whether each thread of a block is an agent."""
    silent: bool = False
    """Whether slices that are empty announce nothing, as on GPUs."""
    roll_call: bool = False
    """Whether nobody ends a call before everybody has begun it."""


Body = tuple[tuple[int, ...], list[Action]]
"""An agent of a lane: its name (rank, call, lane, block, thread), and what it does."""


class Lanes:
    """The steps of lanes as actions, for calls of one layout; all events, by number."""

    def __init__(self, laid: Sequence[LaidOut], cells: Cells, ways: Ways) -> None:
        self.laid, self.cells, self.ways = laid, cells, ways
        self.events: list[tuple[Any, ...]] = []
        """What an event is: an agent's name, tile and step; a caller's say only when"""
        self.channels: dict[tuple[int, ...], int] = {}
        self._lanes: dict[tuple[int, ...], tuple[Sequence[Step], list[Body]]] = {}
        """By call, rank, lane, agents and steps; the steps too, so that none goes."""
        self._steps: dict[tuple[int, ...], tuple[Step, list[list[Action]]]] = {}
        """By call, rank, lane and step, with how often it has come in the lane before:
        what it comes to, by block, tile and thread."""

    def event(self, what: tuple[Any, ...]) -> int:
        """Return the number of a new event."""
        self.events.append(what)
        return len(self.events) - 1

    def channel(self, ends: tuple[int, ...]) -> int:
        """Return the number of a channel."""
        return self.channels.setdefault(ends, len(self.channels))

    def many(self, call: Call, number: int, rank: int) -> int:
        """Return how many agents a rank's lanes are in a call."""
        lanes, blocks = call.plan.ranks[rank], call.plan.schedule.blocks
        return len(lanes) * blocks * self._threads(number)

    def _threads(self, number: int) -> int:
        return self.laid[number].tile if self.ways.threads else 1

    def agents(
        self,
        call: Call,
        at: tuple[int, int, int],
        begin: Action,
        end: Action,
    ) -> list[Body]:
        """Return the agents of a lane, `at` a call, rank and lane of it."""
        _, rank, lane = at
        steps = call.plan.ranks[rank][lane]
        key = (*at, begin[3], id(steps))
        found = self._lanes.get(key)
        if found is None:
            before: Counter[int] = Counter()
            does = []
            for step in steps:
                does.append(self._does(at, step, before[id(step)]))
                before[id(step)] += 1
            made, engines = self._bodies(call, at, does)
            whole = [(name, [begin, *body, end]) for name, body in made]
            whole += engines
            found = self._lanes[key] = (steps, whole)
        return found[1]

    def _bodies(
        self, call: Call, at: tuple[int, int, int], does: list[list[list[Action]]]
    ) -> tuple[list[Body], list[Body]]:
        """Return the agents of a lane, and copy engines that work for them."""
        number, rank, lane = at
        threads, tiles = self._threads(number), self.laid[number].tiles
        steps = call.plan.ranks[rank][lane]
        apart = call.copies[rank] if call.copies is not None else None
        order = list(in_turn(call.together(rank, lane), steps, tiles, apart))
        engines: list[Body] = []
        made: list[Body] = []
        for block in range(call.plan.schedule.blocks):
            for thread in range(threads):
                body: list[Action] = []
                for nth, group, when in order:
                    here = [(block * tiles + t) * threads + thread for t in when]
                    one = [[a for at in here for a in does[i][at]] for i in group]
                    copies = apart is not None and nth >= apart
                    step = steps[group[0]]
                    if copies and isinstance(step, Move) and len(group) > 1:
                        who = (rank, number, lane, block, thread, when[-1], step)
                        body += self._by_engines(engines, one, who, (nth, threads))
                    else:
                        body += _side_by_side(one)
                made.append(((rank, number, lane, block, thread), body))
        return made, engines

    def _by_engines(
        self,
        engines: list[Body],
        moves: list[list[Action]],
        who: tuple[Any, ...],
        group: tuple[int, int],
    ) -> list[Action]:
        """Return how moves run each by itself: all but the first by agents of theirs.

        They begin together, when what comes before is done, and are waited for. `who`
        is the event that this is for a thread, with the first move; `group` says which
        group it is, and how many threads there are.
        """
        nth, threads = group
        event = self.event(who)
        key = ("copies", *who[:4], who[5], nth)  # alike on all threads
        begin = (MEET, event, (*key, "begin"), len(moves) * threads)
        end = (MEET, event, (*key, "end"), len(moves) * threads)
        for one in moves[1:]:
            engines.append(((*who[:4], len(engines)), [begin, *one, end]))
        return [begin, *moves[0], end]

    def _does(
        self, at: tuple[int, int, int], step: Step, before: int
    ) -> list[list[Action]]:
        """Return what a step of a lane comes to, by block, tile and thread."""
        key = (*at, id(step), before)
        found = self._steps.get(key)
        if found is not None:
            return found[1]
        number, rank, lane = at
        laid, threads = self.laid[number], self._threads(number)
        move = _Does.of(step, laid) if isinstance(step, Move) else None
        made: list[list[Action]] = []
        for block in range(laid.call.plan.schedule.blocks):
            for tile in range(laid.tiles):
                first = len(self.events)
                self.events += [
                    (rank, number, lane, block, thread, tile, step)
                    for thread in range(threads)
                ]
                if move is not None:
                    made += self._move(first, move, number, block, tile)
                else:
                    made += self._sync(first, threads)
        self._steps[key] = (step, made)
        return made

    def _sync(self, first: int, threads: int) -> list[list[Action]]:
        """Return a signal or wait on every thread: they meet before, or after."""
        rank, number, lane, block, _, tile, step = self.events[first]
        if not 0 <= step.rank < len(self.laid[number].buffers):
            raise Fault(Outcome.OUTSIDE, f"rank {rank} names rank {step.rank}")
        value = self.laid[number].epoch + tile << 20 | step.n
        does: Action
        if isinstance(step, Signal):
            ends = (rank, lane, step.rank, step.lane, block)
            far = step.rank if self._is_far(number, rank, step.rank) else NOWHERE
            does = (SIGNAL, first, self.channel(ends), value, step.release, far)
        else:
            assert isinstance(step, Wait)
            ends = (step.rank, step.lane, rank, lane, block)
            does = (WAIT, first, self.channel(ends), value)
        if threads == 1:
            return [[does]]
        meets: list[list[Action]] = [
            [(MEET, first + i, ("step", first), threads)] for i in range(threads)
        ]
        meets[0].insert(1 if does[0] == SIGNAL else 0, does)
        return meets

    def _is_far(self, number: int, rank: int, other: int) -> bool:
        hosts = self.laid[number].call.plan.hosts
        return 0 <= other < len(hosts) and hosts[rank] != hosts[other]

    def _refuse_far(self, number: int, rank: int, step: Move) -> None:
        """Raise when a move reaches another host otherwise than by a plain put."""
        every = (*step.dsts, *step.srcs)
        away = [one for one in every if self._is_far(number, rank, one.rank)]
        if not away:
            return
        dst, plain = step.dsts[0], not any(one.packets for one in every)
        single = len(every) == 2 and len(away) == 1 and dst is away[0]
        staged = dst.space is Space.STAGE and step.srcs[0].rank == rank
        if not (single and plain and staged and not step.finish):
            text = f"rank {rank} reaches rank {away[0].rank}, elsewhere, by no put"
            raise Fault(Outcome.OUTSIDE, text)

    def _move(
        self, first: int, does: _Does, number: int, block: int, tile: int
    ) -> list[list[Action]]:
        """Return what a move is in a tile of a block, on every thread."""
        laid, place, step = self.laid[number], self.cells.at, does.step
        epoch = laid.epoch + tile
        start = (tile * laid.call.plan.schedule.blocks + block) * laid.tile
        self._refuse_far(number, self.events[first][0], step)
        slices: list[_Slice] = []
        for nth, size in enumerate(does.sizes):
            count = min(laid.tile, size - start)
            if count > 0:
                one = (block, start, count - 1)
                srcs = [place(number, s, nth, one, epoch) for s in step.srcs]
                dsts = [place(number, d, nth, one, epoch) for d in step.dsts]
                slices.append(_Slice(range(count), srcs, dsts))
            else:
                slices.append(_NONE)
        at = (number, block, epoch)
        if not self.ways.threads:
            return [self._part(first, does, slices, at, 0)]
        return [
            self._part(
                first + i,
                does,
                [one._replace(here=one.here[i : i + 1]) for one in slices],
                at,
                i,
            )
            for i in range(laid.tile)
        ]

    def _part(
        self,
        event: int,
        does: _Does,
        slices: list[_Slice],
        at: tuple[int, int, int],
        thread: int,
    ) -> list[Action]:
        """Return what one agent does of a move, for its part of the slices."""
        number, block, epoch = at
        step, head = does.step, self.cells.head
        done: list[Action] = []
        for nth, (here, srcs, dsts) in enumerate(slices):
            announced = does.packets and not self.ways.silent
            announced = announced and not (self.ways.threads and here)
            if announced:
                polled = tuple(
                    (head(number, src, nth, (block, thread), epoch), epoch)
                    for src in step.srcs
                    if src.packets
                )
                if polled:
                    done.append((LOAD, event, polled, NOWHERE))
            far = step.dsts[0].rank
            if here and self._is_far(number, self.events[event][0], far):
                source, target = srcs[0][0], dsts[0][0]
                done += [(PUT, event, source + i, target + i, far) for i in here]
                continue
            for i in here:
                read = tuple([(cell + i, tag) for cell, tag in srcs])
                done.append((LOAD, event, read, 0))
                for (cell, tag), divide in zip(dsts, does.divides, strict=True):
                    done.append((STORE, event, cell + i, tag, divide, 0))
            for dst in step.dsts if announced else ():
                if dst.packets:
                    cell = head(number, dst, nth, (block, thread), epoch)
                    done.append((STORE, event, cell, epoch, False, 0))
        clash = _in_no_order(step, slices) if does.can_clash else None
        if clash is not None:
            text = f"a move reads and writes {self.cells.name(clash)} in no order"
            raise Fault(Outcome.RACE, text, str(self.events[event]))
        return done


def in_turn(
    groups: Sequence[range], steps: Sequence[Step], tiles: int, apart: int | None
) -> Iterator[tuple[int, range, range]]:
    """Yield groups as they run, each with its number, and the tiles that it does then.

    A kernel does tile after tile. From group `apart` on follow copies, each of all
    tiles, and what ranks tell one another once, after them.
    """
    kernel = len(groups) if apart is None else apart
    for tile in range(tiles):
        for nth in range(kernel):
            yield nth, groups[nth], range(tile, tile + 1)
    for nth in range(kernel, len(groups)):
        copies = isinstance(steps[groups[nth][0]], Move)
        yield nth, groups[nth], range(0 if copies else tiles - 1, tiles)


class _Does(NamedTuple):
    """A move, and what of it is the same in every block and tile."""

    step: Move
    sizes: list[int]
    """Elements of each of its atoms."""
    packets: bool
    divides: list[bool]
    """For each destination, whether sums are divided there when the operator is."""
    can_clash: bool
    """Whether two of its elements may be one cell: not those of other memories."""

    @classmethod
    def of(cls, step: Move, laid: LaidOut) -> _Does:
        """Look at a move; `Fault` when its atoms are none."""
        if not 0 <= step.start < step.stop <= len(laid.sizes):
            raise Fault(Outcome.OUTSIDE, f"atoms {step.start}:{step.stop}")
        locs = (*step.dsts, *step.srcs)
        divides = laid.summed and step.finish
        return cls(
            step,
            laid.sizes[step.start : step.stop],
            any(loc.packets for loc in locs),
            [divides and dst.space is Space.OUTPUT for dst in step.dsts],
            len(locs) > len({(loc.rank, loc.packets) for loc in locs})
            or step.stop - step.start > 1,
        )


class _Slice(NamedTuple):
    """The part of an atom that an agent moves."""

    here: range
    """Its elements, counted in the slice of the block."""
    srcs: list[tuple[int, int]]
    """Where that slice begins in each source, and its tag."""
    dsts: list[tuple[int, int]]


_NONE = _Slice(range(0), [], [])


def _in_no_order(step: Move, slices: list[_Slice]) -> int | None:
    """Return a cell that elements of a move store and others read or store, or None."""
    if len(slices) == 1 and len(step.dsts) == 1:  # no other atom, no other store
        here, srcs, dsts = slices[0]
        for to, _ in dsts:
            for cell, _ in srcs:
                if 0 < abs(cell - to) < len(here):
                    return max(cell, to) + here[0]
        return None
    written: dict[int, tuple[int, int, int]] = {}
    read: dict[int, tuple[int, int]] = {}
    for nth, (here, srcs, dsts) in enumerate(slices):
        for i in here:
            for nr, (cell, _) in enumerate(dsts):
                who = (nth, i, nr if step.dsts[nr].packets else -1)
                if written.setdefault(cell + i, who) != who:
                    return cell + i
            for cell, _ in srcs:
                read[cell + i] = (nth, i)
    for cell, (nth, i, _) in written.items():
        if read.get(cell, (nth, i)) != (nth, i):
            return cell
    return None


def _side_by_side(steps: Sequence[list[Action]]) -> list[Action]:
    """Return what moves do at once: all that they load, then all that they store."""
    done = [action for one in steps for action in one]
    if len(steps) == 1 or not done or done[0][0] in (SIGNAL, WAIT, MEET):
        return done
    polls: list[Action] = []
    loads: list[Action] = []
    stores: list[Action] = []
    for action in done:
        if action[0] == LOAD and action[3] == NOWHERE:
            polls.append(action)
        elif action[0] == LOAD:
            loads.append((*action[:3], len(loads)))
        else:
            stores.append((*action[:5], max(0, len(loads) - 1)))
    return [*polls, *loads, *stores]
