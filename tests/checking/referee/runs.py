"""What one action does to a state: memory is what each agent may see of it.

The stores to a cell are a list. Who reads without having acquired the last one may find
an older one (or, with strong memory, the last), and a store that nobody has seen may
still be put behind a later one. Whatever can go several ways is asked of `choose`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tests.checking.referee.checks import Checker
from tests.checking.referee.machine import (
    GIVE,
    LOAD,
    MEET,
    NOWHERE,
    PLAIN,
    SIGNAL,
    STORE,
    WAIT,
    Action,
    Machine,
)
from tests.checking.referee.values import NOTHING
from tests.checking.referee.verdict import Fault, Outcome

__all__ = ["Choose", "Runner", "State"]

Choose: TypeAlias = Callable[[int], int]
"""Picks one of so many ways; 0 is the newest store."""


class _Message(NamedTuple):
    """One store to a cell, in the order in which stores to it land."""

    value: int
    tag: int
    event: int
    """The store, as a set of one."""
    landed: bool
    """Whether somebody else has seen it."""


_FIRST = (_Message(NOTHING, PLAIN, 0, True),)


class State:
    """Where all agents are, and what memory holds."""

    __slots__ = ("at", "cells", "checker", "flags", "met", "seen", "trace", "value")

    def __init__(self, machine: Machine) -> None:
        n = len(machine.agents)
        self.at, self.seen = [0] * n, [0] * n
        self.value: list[dict[int, int]] = [{} for _ in range(n)]
        self.cells: dict[int, tuple[_Message, ...]] = {}
        self.flags: dict[int, tuple[tuple[int, int], ...]] = {}
        self.met: dict[object, tuple[int, ...]] = {}
        self.checker = Checker(machine.values)
        self.trace: list[int] = []

    def copy(self) -> State:
        """Return the same, to go another way from."""
        other = object.__new__(State)
        other.at, other.value = self.at[:], self.value[:]
        other.seen, other.trace = self.seen[:], self.trace[:]
        other.cells, other.flags = self.cells.copy(), self.flags.copy()
        other.met, other.checker = self.met.copy(), self.checker.copy()
        return other

    def become(self, other: State) -> None:
        """Take over where another one is."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def key(self) -> object:
        """Return what tells states apart: not how they were reached."""
        return (
            tuple(self.at),
            tuple(tuple(kept.values()) for kept in self.value),
            tuple(self.seen),
            tuple(sorted(self.cells.items())),
            frozenset((key, frozenset(here)) for key, here in self.met.items()),
            frozenset(self.checker.agreed.items()),
        )


class Runner:
    """What a single action does to a state."""

    def __init__(self, machine: Machine, weak: bool) -> None:
        self.machine, self.weak, self.agents = machine, weak, machine.agents

    def ended(self, s: State) -> bool:
        """Return whether all agents have done all they have to."""
        return all(a == len(ops) for a, ops in zip(s.at, self.agents, strict=True))

    def enabled(self, s: State, a: int) -> bool:
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

    def step(self, s: State, a: int, choose: Choose) -> None:
        """Do an agent's next action. `choose(k)` picks one of k ways, 0 the newest."""
        op = self.agents[a][s.at[a]]
        kind, event = op[0], op[1]
        if not s.trace or s.trace[-1] != event:
            s.trace.append(event)
        if kind == LOAD:
            parts = tuple(self._read(s, a, c, tag, choose) for c, tag in op[2])
            if op[3] != NOWHERE:
                if NOTHING in parts:
                    cell = op[2][parts.index(NOTHING)][0]
                    name = self.machine.cells.name(cell)
                    text = f"{name} is read as what nobody has written"
                    raise Fault(Outcome.UNDEFINED, text)
                s.value[a] = {**s.value[a], op[3]: self.machine.values.combined(parts)}
        elif kind == STORE:
            value = s.value[a].get(op[5], NOTHING)
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
            s.checker.check(op[3], got)
        s.at[a] += 1
        return None

    def _meet(self, s: State, a: int, op: Action) -> None:
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

    def _view(self, s: State, a: int, cell: int) -> tuple[tuple[_Message, ...], int]:
        """Return a cell's stores, and the oldest that an agent may still see."""
        stores = s.cells.get(cell, _FIRST)
        last = len(stores) - 1
        if not self.weak:
            return stores, last
        seen = s.seen[a]
        while last and not stores[last].event & seen:
            last -= 1
        return stores, last

    def _choices(self, s: State, a: int, cell: int, tag: int) -> list[int]:
        stores, oldest = self._view(s, a, cell)
        every = range(len(stores) - 1, oldest - 1, -1)
        return [i for i in every if tag == PLAIN or stores[i].tag == tag]

    def _read(self, s: State, a: int, cell: int, tag: int, choose: Choose) -> int:
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
        s: State,
        a: int,
        event: int,
        cell: int,
        value: int,
        tag: int,
        choose: Choose,
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

    def _all_seen(self, s: State, cell: int, stores: tuple[_Message, ...]) -> bool:
        """Return whether nobody can go back behind a cell's last store."""
        return not self.weak or all(seen & stores[-1].event for seen in s.seen)
