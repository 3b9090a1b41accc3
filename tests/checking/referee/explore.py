"""Runs in concrete orders: all that differ, up to a bound, or some drawn at random.

The second opinion: it knows nothing of what must come before what. It runs the agents,
one action after the other, and looks at what callers find.

All orders means one of each kind. An agent goes on alone, without another order being
tried, when nobody else, however far all others could run without it, comes to a cell
that it is about to touch: then whatever they do, it is the same before and after.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.checking.referee.machine import (
    GIVE,
    LOAD,
    MEET,
    PLAIN,
    PUT,
    SIGNAL,
    STORE,
    TAKE,
    WAIT,
    Action,
    Machine,
)
from tests.checking.referee.runs import Runner, State
from tests.checking.referee.verdict import Fault, Outcome

__all__ = ["explore", "run_at_random"]


class _Choices:
    """A path through choices: what was chosen, and how many ways there were."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.at = path, 0
        self.widths: list[int] = []

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


class _Explorer(Runner):
    def __init__(self, machine: Machine, weak: bool, bound: int, reduce: bool) -> None:
        super().__init__(machine, weak)
        if any(op[0] == PUT for ops in self.agents for op in ops):
            raise Fault(Outcome.UNDECIDED, "puts to other hosts are not explored")
        self.bound, self.reduce = bound, reduce
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
        todo, known, ends = [State(self.machine)], set(), 0
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

    def _after(self, s: State, a: int) -> Iterator[State]:
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

    def _go_on(self, s: State) -> list[int]:
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
                s.become(before)
                return [alone]

    def _alone(self, s: State, a: int) -> bool:
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

    def _reach(self, s: State, without: int) -> list[int]:
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
        s: State,
        b: int,
        op: Action,
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

    def _told(self, fault: Fault, s: State) -> Fault:
        return _with_trace(self.machine, fault, s.trace)


def run_at_random(machine: Machine, seed: int, *, weak: bool = True) -> None:
    """Run once in an order that the seed draws; raise the `Fault` it comes to.

    Some seeds let one rank run as far ahead as it can, or let stores land as late as
    they may, or both.
    """
    rng = random.Random(seed)
    runner = Runner(machine, weak)
    s = State(machine)
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


def _touched(op: Action) -> list[tuple[int, bool]]:
    """Return the cells of an action, and whether it stores there."""
    if op[0] == LOAD:
        return [(cell, False) for cell, _ in op[2]]
    if op[0] in (STORE, GIVE):
        return [(op[2], True)]
    return [(op[2], False)] if op[0] == TAKE else []


def _signals(ops: list[Action]) -> Iterator[tuple[int, Action]]:
    """Yield an agent's signals, each with the one before on its channel."""
    sent: dict[int, int] = {}
    for op in ops:
        if op[0] == SIGNAL:
            yield sent.get(op[2], -1), op
            sent[op[2]] = op[3]
