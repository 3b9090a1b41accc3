"""Runs in concrete orders: all that differ, up to a bound, or some drawn at random.

The second opinion: it knows nothing of what must come before what. It runs the agents,
one action after the other, and looks at what callers find. Memory is what each agent
may see of it: the stores to a cell are a list, and who reads without having acquired
the last one may find an older one (or, with strong memory, the last). A store that
nobody has seen may still be put behind a later one.

All orders means one of each kind. An agent goes on alone, without another order being
tried, when nobody else, however far all others could run without it, comes to a cell
that it is about to touch: then whatever they do, it is the same before and after.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from stretto.testing.referee.checks import Checker
from stretto.testing.referee.machine import (
    GIVE,
    LOAD,
    MEET,
    PLAIN,
    SIGNAL,
    STORE,
    TAKE,
    WAIT,
    Machine,
)
from stretto.testing.referee.values import NOTHING
from stretto.testing.referee.verdict import Fault, Outcome

__all__ = ["explore", "run_at_random"]


class _Message(NamedTuple):
    """One store to a cell, in the order in which stores to it land."""

    value: int
    tag: int
    event: int
    """The store, as a set of one."""
    landed: bool
    """Whether somebody else has seen it."""


_FIRST = (_Message(NOTHING, PLAIN, 0, True),)


class _State:
    """Where all agents are, and what memory holds."""

    __slots__ = ("at", "cells", "flags", "met", "seen", "trace", "value")

    def __init__(self, machine: Machine) -> None:
        n = len(machine.agents)
        self.at, self.value, self.seen = [0] * n, [NOTHING] * n, [0] * n
        self.cells: dict[int, tuple[_Message, ...]] = {}
        self.flags: dict[int, tuple[tuple[int, int], ...]] = {}
        self.met: dict[object, tuple[int, ...]] = {}
        self.trace: list[int] = []

    def copy(self) -> _State:
        other = object.__new__(_State)
        other.at, other.value = self.at[:], self.value[:]
        other.seen, other.trace = self.seen[:], self.trace[:]
        other.cells, other.flags = self.cells.copy(), self.flags.copy()
        other.met = self.met.copy()
        return other

    def key(self) -> object:
        """Return what tells states apart: not how they were reached."""
        return (
            tuple(self.at),
            tuple(self.value),
            tuple(self.seen),
            tuple(sorted(self.cells.items())),
            frozenset((key, frozenset(here)) for key, here in self.met.items()),
        )


class _Runner:
    """What a single action does to a state."""

    def __init__(self, machine: Machine, weak: bool) -> None:
        self.machine, self.weak, self.agents = machine, weak, machine.agents

    def ended(self, s: _State) -> bool:
        return all(a == len(ops) for a, ops in zip(s.at, self.agents, strict=True))

    def enabled(self, s: _State, a: int) -> bool:
        """Return whether an agent's next action can be done."""
        if s.at[a] == len(self.agents[a]):
            return False
        op = self.agents[a][s.at[a]]
        if op[0] == WAIT:
            sent = s.flags.get(op[2])
            return sent is not None and sent[-1][0] >= op[3]
        if op[0] == LOAD:
            return all(tag == PLAIN or self._choices(s, a, c, tag) for c, tag in op[2])
        if op[0] == MEET:
            return a not in s.met.get(op[2], ())
        return True

    def step(self, s: _State, a: int, choose: Any) -> None:
        """Do an agent's next action. `choose(k)` picks one of k ways, 0 the newest."""
        op = self.agents[a][s.at[a]]
        kind, event = op[0], op[1]
        if not s.trace or s.trace[-1] != event:
            s.trace.append(event)
        if kind == LOAD:
            parts = tuple(self._read(s, a, c, tag, choose) for c, tag in op[2])
            if op[3]:
                if NOTHING in parts:
                    cell = op[2][parts.index(NOTHING)][0]
                    name = self.machine.cells.name(cell)
                    text = f"{name} is read as what nobody has written"
                    raise Fault(Outcome.UNDEFINED, text)
                s.value[a] = self.machine.values.combined(parts)
        elif kind == STORE:
            value = s.value[a]
            if op[4]:
                value = self.machine.values.divided(value)
            self._store(s, a, event, op[2], value, op[3], choose)
        elif kind == GIVE:
            self._store(s, a, event, op[2], op[3], PLAIN, choose)
            *rest, last = s.cells[op[2]]
            s.cells[op[2]] = (*rest, last._replace(landed=True))
        elif kind == SIGNAL:
            sent = s.flags.get(op[2], ((0, 0),))
            seen = s.seen[a] if op[4] or not self.weak else sent[-1][1]
            s.flags[op[2]] = (*sent, (op[3], seen))
        elif kind == WAIT:
            # Of all that came in time, the first says the least.
            s.seen[a] |= next(seen for n, seen in s.flags[op[2]] if n >= op[3])
        elif kind == MEET:
            return self._meet(s, a, op)
        else:
            got = self._read(s, a, op[2], PLAIN, choose)
            self.checks[-1].check(op[3], got)
        s.at[a] += 1
        return None

    checks: list[Checker]

    def _meet(self, s: _State, a: int, op: tuple[Any, ...]) -> None:
        here = (*s.met.get(op[2], ()), a)
        if len(here) < op[3]:
            s.met[op[2]] = here
            return
        s.met.pop(op[2], None)
        seen = 0
        for one in here:
            seen |= s.seen[one]
        for one in here:
            s.seen[one] = seen
            s.at[one] += 1

    def _view(self, s: _State, a: int, cell: int) -> tuple[tuple[_Message, ...], int]:
        """Return a cell's stores, and the oldest that an agent may still see."""
        stores = s.cells.get(cell, _FIRST)
        last = len(stores) - 1
        if not self.weak:
            return stores, last
        seen = s.seen[a]
        while last and not stores[last].event & seen:
            last -= 1
        return stores, last

    def _choices(self, s: _State, a: int, cell: int, tag: int) -> list[int]:
        stores, oldest = self._view(s, a, cell)
        every = range(len(stores) - 1, oldest - 1, -1)
        return [i for i in every if tag == PLAIN or stores[i].tag == tag]

    def _read(self, s: _State, a: int, cell: int, tag: int, choose: Any) -> int:
        ways = self._choices(s, a, cell, tag)
        stores = s.cells.get(cell, _FIRST)
        late = tag != PLAIN and stores[-1].tag != tag  # what is polled for may be gone
        chosen = choose(len(ways) + late) if len(ways) + late > 1 else 0
        if chosen == len(ways):
            text = f"{self.machine.cells.name(cell)} is polled for what was stored over"
            raise Fault(Outcome.HANG, text)
        i = ways[chosen]
        found = stores[i]
        if found.event & s.seen[a] == 0:
            s.seen[a] |= found.event
        if not found.landed:
            landed = found._replace(landed=True)
            s.cells[cell] = (*stores[:i], landed, *stores[i + 1 :])
        return found.value

    def _store(
        self,
        s: _State,
        a: int,
        event: int,
        cell: int,
        value: int,
        tag: int,
        choose: Any,
    ) -> None:
        stores, oldest = self._view(s, a, cell)
        last = len(stores) - 1
        while last > oldest and not stores[last].landed:
            last -= 1
        i = len(stores) - (choose(len(stores) - last) if last < len(stores) - 1 else 0)
        made = _Message(value, tag, 1 << event, False)
        kept = 0 if i == len(stores) and self._all_seen(s, cell, stores) else 1
        s.cells[cell] = (*(stores[:i] if kept else stores[-1:]), made, *stores[i:])
        s.seen[a] |= made.event

    def _all_seen(self, s: _State, cell: int, stores: tuple[_Message, ...]) -> bool:
        """Return whether nobody can go back behind a cell's last store."""
        return not self.weak or all(seen & stores[-1].event for seen in s.seen)


class _Choices:
    """A path through choices: what was chosen, and how many ways there were."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.at, self.widths = path, 0, []  # type: ignore[var-annotated]

    def __call__(self, ways: int) -> int:
        chosen = self.path[self.at] if self.at < len(self.path) else 0
        self.at += 1
        self.widths.append(ways)
        return chosen


def explore(
    machine: Machine, *, weak: bool = True, bound: int = 20_000, reduce: bool = True
) -> int:
    """Run every order that can make a difference; return how many ends were reached.

    Raises the first `Fault` that some order has, or `UNDECIDED` when there are more
    states than the bound. Without `reduce`, all orders are tried.
    """
    return _Explorer(machine, weak, bound, reduce).run()


class _Explorer(_Runner):
    def __init__(self, machine: Machine, weak: bool, bound: int, reduce: bool) -> None:
        super().__init__(machine, weak)
        self.bound, self.reduce = bound, reduce
        self.checks = [Checker(machine.values)]
        self.uses: dict[int, list[tuple[int, int, bool]]] = {}
        for a, ops in enumerate(self.agents):
            for at, op in enumerate(ops):
                for cell, writes in _touched(op):
                    self.uses.setdefault(cell, []).append((a, at, writes))
        falls = any(
            op[0] == SIGNAL and last > op[3]
            for ops in self.agents
            for last, op in _signals(ops)
        )
        self.reduce &= not falls

    def run(self) -> int:
        todo, known, ends = [_State(self.machine)], set(), 0
        while todo:
            s = todo.pop()
            try:
                chosen = self._go_on(s)
                if not chosen:
                    if not self.ended(s):
                        raise Fault(Outcome.HANG, "nobody can go on")
                    ends += 1
                    continue
                key = s.key()
                if key in known:
                    continue
                known.add(key)
                if len(known) > self.bound:
                    text = f"more than {self.bound} states"
                    raise Fault(Outcome.UNDECIDED, text)
                for a in chosen:
                    todo += self._after(s, a)
            except Fault as e:
                raise self._told(e, s) from None
        return ends

    def _after(self, s: _State, a: int) -> Iterator[_State]:
        """Yield the states after an agent's action, in every way it can go."""
        paths: list[list[int]] = [[]]
        while paths:
            path = paths.pop()
            other, choose = s.copy(), _Choices(path)
            try:
                self.step(other, a, choose)
            except Fault as e:
                raise self._told(e, other) from None
            for i in range(len(path), len(choose.widths)):
                prefix = [*path, *[0] * (i - len(path))]
                paths += [[*prefix, k] for k in range(1, choose.widths[i])]
            yield other

    def _go_on(self, s: _State) -> list[int]:
        """Do what needs no other order; return the agents between which to choose."""
        while True:
            able = [a for a in range(len(self.agents)) if self.enabled(s, a)]
            if not able or not self.reduce:
                return able
            alone = next((a for a in able if self._alone(s, a)), None)
            if alone is None:
                return able
            choose = _Choices([])
            before = s.copy()
            self.step(s, alone, choose)
            if choose.widths:
                s.at, s.value, s.seen = before.at, before.value, before.seen
                s.cells, s.flags, s.met = before.cells, before.flags, before.met
                s.trace = before.trace
                return [alone]

    def _alone(self, s: _State, a: int) -> bool:
        """Return whether an agent's next action is the same whatever others do."""
        op = self.agents[a][s.at[a]]
        if op[0] in (SIGNAL, WAIT, MEET):
            return True
        others = [
            (b, at)
            for cell, writes in _touched(op)
            for b, at, theirs in self.uses[cell]
            if b != a and at >= s.at[b] and (writes or theirs)
        ]
        if not others:
            return True
        reach = self._reach(s, a)
        return not any(at < reach[b] for b, at in others)

    def _reach(self, s: _State, without: int) -> list[int]:
        """Return how far everybody could come if one agent stood still."""
        at = s.at[:]
        flags = {channel: sent[-1][0] for channel, sent in s.flags.items()}
        tags: set[tuple[int, int]] = set()
        met = {key: set(here) for key, here in s.met.items()}
        moved = True
        while moved:
            moved = False
            for b, ops in enumerate(self.agents):
                if b == without:
                    continue
                start = at[b]
                while at[b] < len(ops) and self._passes(
                    s, b, ops[at[b]], flags, tags, met
                ):
                    at[b] += 1
                moved |= at[b] != start
        return at

    def _passes(
        self,
        s: _State,
        b: int,
        op: tuple[Any, ...],
        flags: dict[int, int],
        tags: set[tuple[int, int]],
        met: dict[Any, set[int]],
    ) -> bool:
        kind = op[0]
        if kind == SIGNAL:
            flags[op[2]] = max(flags.get(op[2], 0), op[3])
        elif kind == WAIT:
            return bool(flags.get(op[2], 0) >= op[3])
        elif kind == MEET:
            here = met.setdefault(op[2], set())
            here.add(b)
            return bool(len(here) >= op[3])
        elif kind == STORE and op[3] != PLAIN:
            tags.add((op[2], op[3]))
        elif kind == LOAD:
            return all(
                tag == PLAIN
                or (cell, tag) in tags
                or any(m.tag == tag for m in s.cells.get(cell, ()))
                for cell, tag in op[2]
            )
        return True

    def _told(self, fault: Fault, s: _State) -> Fault:
        return _with_trace(self.machine, fault, s.trace)


def run_at_random(machine: Machine, seed: int, *, weak: bool = True) -> None:
    """Run once in an order that the seed draws; raise the `Fault` it comes to.

    Some seeds let one rank run as far ahead as it can, or let stores land as late as
    they may, or both.
    """
    rng = random.Random(seed)
    runner = _Runner(machine, weak)
    runner.checks = [Checker(machine.values)]
    s = _State(machine)
    ranks = list(range(machine.num_ranks))
    rng.shuffle(ranks)
    place = {rank: i for i, rank in enumerate(ranks)}
    ahead, lazy = rng.random() < 0.5, rng.random() < 0.5
    agents = list(range(len(machine.agents)))

    def choose(ways: int) -> int:
        return ways - 1 if lazy else rng.randrange(ways)

    try:
        while True:
            rng.shuffle(agents)
            if ahead:
                agents.sort(key=lambda a: place[machine.names[a][0]])
            able = next((a for a in agents if runner.enabled(s, a)), None)
            if able is None:
                break
            runner.step(s, able, choose)
            while rng.random() < 0.7 and runner.enabled(s, able):
                runner.step(s, able, choose)
        if not runner.ended(s):
            raise Fault(Outcome.HANG, "nobody can go on")
    except Fault as e:
        raise _with_trace(machine, e, s.trace) from None


def _with_trace(machine: Machine, fault: Fault, events: list[int]) -> Fault:
    if fault.trace:
        return fault
    lanes = [e for e in events if len(machine.events[e]) > 3]
    last = [machine.spell_event(e) for e in (lanes or events)[-_SHOWN:]]
    return Fault(fault.outcome, fault.text, *last)


_SHOWN = 12


def _touched(op: tuple[Any, ...]) -> list[tuple[int, bool]]:
    """Return the cells of an action, and whether it stores there."""
    if op[0] == LOAD:
        return [(cell, False) for cell, _ in op[2]]
    if op[0] in (STORE, GIVE):
        return [(op[2], True)]
    return [(op[2], False)] if op[0] == TAKE else []


def _signals(ops: list[tuple[Any, ...]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield an agent's signals, each with the one before on its channel."""
    sent: dict[int, int] = {}
    for op in ops:
        if op[0] == SIGNAL:
            yield sent.get(op[2], -1), op
            sent[op[2]] = op[3]
