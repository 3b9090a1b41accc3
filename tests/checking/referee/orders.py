"""One run that stands for all: every two accesses that conflict must have an order.

Agents do the same whatever they read, flags only grow, and so whoever can go on, can go
on later too. When any two accesses to a cell, one of them a store, come in the same
order in every run, then every run is this one. So one run is made, and what is known
about the order of everything is carried along, as sets of events:

    before   what came before in every run: handed on by every signal and packet
    seen     the stores among it that have landed for this agent: handed on by signals
             that release. A packet hands on itself and nothing else.

A put to another host is read and stored at some later time, by nobody who has an order.
So its event comes before nothing but a signal that releases, sent to that rank by its
lane afterwards: who waits for that has it landed, and hands it on. When a call ends,
its own puts have been read; whether they have landed does not follow.

With strong memory what came before has been seen. A store that somebody has read, be
it who made it, has landed: such loads ask where it lands (memory-model.md, A1 and A2).
"""

from __future__ import annotations

from collections import deque

from tests.checking.referee.actions import (
    GIVE,
    LOAD,
    MEET,
    NOWHERE,
    PUT,
    SIGNAL,
    STORE,
    WAIT,
    Action,
)
from tests.checking.referee.cells import PLAIN
from tests.checking.referee.checks import Checker
from tests.checking.referee.machine import Machine
from tests.checking.referee.values import NOTHING
from tests.checking.referee.verdict import Fault, Outcome

__all__ = ["run_ordered"]


class _Agent:
    __slots__ = ("at", "before", "flying", "ops", "seen", "value")

    def __init__(self, ops: list[Action]) -> None:
        self.ops = ops
        self.at = self.before = self.seen = 0
        self.value: dict[int, int] = {}
        self.flying: dict[int, int] = {}
        """By rank on another host, the puts that went there."""


def run_ordered(machine: Machine, *, weak: bool = True) -> None:
    """Run the machine once; raise the `Fault` that some run of it has."""
    _Run(machine, weak).run()


class _Run:
    def __init__(self, machine: Machine, weak: bool) -> None:
        self.machine, self.weak = machine, weak
        n = machine.cells.total
        self.agents = [_Agent(ops) for ops in machine.agents]
        self.value = [NOTHING] * n
        self.tag = [PLAIN] * n
        self.writer = [0] * n
        """The event of a cell's last store, as a set; 0: none yet."""
        self.readers = [0] * n
        """The events that have read it since."""
        self.known = [0] * n
        """What came before its last store."""
        self.again = [False] * n
        """Whether packets of one epoch were stored in a cell a second time."""
        self.signals: list[list[tuple[int, int, int, int]]]
        self.signals = [[] for _ in machine.channels]
        """For each channel what was sent: the value, what came before, what is seen,
        and what has landed by then of what was put to another host."""
        self.flown = 0
        """All puts to other hosts so far."""
        self.able = deque(self.agents)
        """Who can go on, as far as we know; the others are in one of these:"""
        self.met: dict[object, list[_Agent]] = {}
        self.waiting: dict[int, list[_Agent]] = {}
        """Those that wait, by channel."""
        self.polling: dict[int, list[_Agent]] = {}
        """Those that poll, by cell."""
        self.checker = Checker(machine.values)

    def run(self) -> None:
        """Let everybody go on as far as they can, until all have ended."""
        while self.able:
            self._advance(self.able.popleft())
        left = [one for one in self.agents if one.at < len(one.ops)]
        if left:
            raise Fault(Outcome.HANG, "nobody can go on", *_waiting(self, left))

    def _advance(self, agent: _Agent) -> None:
        ops, stop = agent.ops, len(agent.ops)
        while agent.at < stop:
            op = ops[agent.at]
            kind = op[0]
            if kind == LOAD:
                if not self._load(agent, op):
                    return
            elif kind == STORE:
                value = agent.value.get(op[5], NOTHING)
                if op[4]:
                    value = self.machine.values.divided(value)
                self._store(agent, op[1], op[2], value, op[3])
                if op[2] in self.polling:
                    self.able += self.polling.pop(op[2])
            elif kind == SIGNAL:
                self._signal(agent, op)
            elif kind == WAIT:
                if not self._wait(agent, op):
                    return
            elif kind == MEET:
                if not self._meet(agent, op):
                    return
                continue
            elif kind == PUT:
                self._put(agent, op)
            elif kind == GIVE:
                self._store(agent, op[1], op[2], op[3], PLAIN)
                self.readers[op[2]] = self.writer[op[2]]  # landed when lanes begin
            else:
                self._take(agent, op)
            agent.at += 1

    def _take(self, agent: _Agent, op: Action) -> None:
        _, event, cell, want = op
        self._read(agent, 1 << event, cell, PLAIN)
        try:
            self.checker.check(want, self.value[cell])
        except Fault as e:
            raise Fault(e.outcome, e.text, *self._last_writer(cell)) from None

    # Memory.

    def _load(self, agent: _Agent, op: Action) -> bool:
        _, event, cells, to = op
        for cell, tag in cells:
            if tag != PLAIN and self.tag[cell] != tag:
                self.polling.setdefault(cell, []).append(agent)
                return False
        bit = 1 << event
        values = []
        for cell, tag in cells:
            self._read(agent, bit, cell, tag)
            values.append(self.value[cell])
        if to != NOWHERE:
            if NOTHING in values:
                self._undefined(event, cells[values.index(NOTHING)][0])
            combined = self.machine.values.combined
            agent.value[to] = combined(tuple(values)) if len(values) > 1 else values[0]
        return True

    def _read(self, agent: _Agent, bit: int, cell: int, tag: int) -> None:
        writer = self.writer[cell]
        if tag != PLAIN:
            if self.again[cell] and writer & ~agent.before:
                text = "whoever polls may find what it stored before"
                self._race(bit, cell, writer, text)
            agent.before |= self.known[cell] | writer
            agent.seen |= writer if self.weak else agent.before
        elif writer & ~agent.seen:
            text = "what one stores may land after the other reads"
            self._race(bit, cell, writer, text)
        agent.before |= bit
        agent.seen |= bit
        self.readers[cell] |= bit

    def _put(self, agent: _Agent, op: Action) -> None:
        """Let somebody without an order read a cell now, and store it where it goes."""
        _, event, source, target, rank = op
        value, bit = self.value[source], 1 << event
        if value == NOTHING:
            self._undefined(event, source)
        before, seen = agent.before, agent.seen
        self._read(agent, bit, source, PLAIN)
        self._store(agent, event, target, value, PLAIN)
        agent.before, agent.seen = before, seen
        self.flown |= bit
        agent.flying[rank] = agent.flying.get(rank, 0) | bit

    def _store(
        self, agent: _Agent, event: int, cell: int, value: int, tag: int
    ) -> None:
        bit = 1 << event
        readers, writer = self.readers[cell], self.writer[cell]
        if value == self.value[cell] and tag == PLAIN:  # whoever reads, reads the same
            readers &= ~self.flown
        if readers:
            if readers & ~agent.before:
                text = "one may read after the other has stored"
                self._race(bit, cell, readers & ~agent.before, text)
        elif writer & ~agent.seen:
            text = "the store of one may land after that of the other"
            self._race(bit, cell, writer, text)
        agent.before |= bit
        agent.seen |= bit
        self.again[cell] = tag != PLAIN and self.tag[cell] == tag
        self.value[cell], self.tag[cell] = value, tag
        self.writer[cell], self.readers[cell] = bit, 0
        self.known[cell] = agent.before

    # Who waits for whom.

    def _signal(self, agent: _Agent, op: Action) -> None:
        _, _, channel, value, releases, far = op
        sent = self.signals[channel]
        if sent and sent[-1][0] > value:
            self._fault_falls(op)
        # A word that was released once carries that on: a later store to it
        # that orders reads only takes nothing back.
        seen = agent.seen if releases else sent[-1][2] if sent else 0
        landed = agent.flying.get(far, 0) if releases else 0
        sent.append((value, agent.before, seen, landed))
        if channel in self.waiting:
            self.able += self.waiting.pop(channel)

    def _wait(self, agent: _Agent, op: Action) -> bool:
        _, _, channel, awaited = op
        sent = self.signals[channel]
        if not sent or sent[-1][0] < awaited:
            self.waiting.setdefault(channel, []).append(agent)
            return False
        for value, before, seen, landed in sent:  # noqa: B007
            if value >= awaited:
                break
        agent.before |= before | landed
        agent.seen |= (seen if self.weak else before) | landed
        return True

    def _meet(self, agent: _Agent, op: Action) -> bool:
        """Wait until all are there; the last one hands everybody's order round."""
        here = self.met.setdefault(op[2], [])
        here.append(agent)
        if len(here) < op[3]:
            return False
        before = seen = 0
        flying: dict[int, int] = {}
        for one in here:
            before |= one.before
            seen |= one.seen
            for rank, puts in one.flying.items():
                flying[rank] = flying.get(rank, 0) | puts
        if (
            len(op[2]) == 3 and op[2][-1] == "end"
        ):  # a call ends when its puts have been read
            for puts in flying.values():
                before |= puts
        for one in here:
            one.before, one.seen, one.flying = before, seen, dict(flying)
            one.at += 1
        self.able += here[:-1]
        return True

    # What is wrong.

    def _race(self, bit: int, cell: int, others: int, why: str) -> None:
        machine = self.machine
        event, other = bit.bit_length() - 1, others.bit_length() - 1
        later = machine.call_of(event) != machine.call_of(other)
        outcome = Outcome.OVERWRITTEN if later else Outcome.RACE
        first, second = machine.spell_event(other), machine.spell_event(event)
        text = f"{machine.cells.name(cell)}: {why}"
        raise Fault(outcome, text, f"one: {first}", f"the other: {second}")

    def _undefined(self, event: int, cell: int) -> None:
        name = self.machine.cells.name(cell)
        text = f"{name} is read, and nobody has written it"
        raise Fault(Outcome.UNDEFINED, text, self.machine.spell_event(event))

    def _fault_falls(self, op: Action) -> None:
        text = "a flag falls: its waiters may or may not see it"
        raise Fault(Outcome.RACE, text, self.machine.spell_event(op[1]))

    def _last_writer(self, cell: int) -> tuple[str, ...]:
        writer = self.writer[cell]
        if not writer:
            return ()
        last = self.machine.spell_event(writer.bit_length() - 1)
        return (f"stored last: {last}",)


def _waiting(run: _Run, left: list[_Agent]) -> list[str]:
    """Return what those who are left wait for, lanes only when there are some."""
    machine = run.machine
    events = [one.ops[one.at][1] for one in left]
    lanes = [event for event in events if len(machine.events[event]) > 3]
    return [machine.spell_event(event) for event in lanes or events][:8]
