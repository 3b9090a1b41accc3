"""Which algorithm under which schedule serves a call: the caller's, a table's, or ours.

In this order: what the caller pins; a profile (a table of what was measured, shipped in
`stretto/topology/profiles` or written by `stretto tune`); else what the simulator finds
cheapest. The answer depends only on what all ranks know, so all find the same.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from stretto.arrays import CPU
from stretto.compiler.plan import Schedule
from stretto.errors import CallError, TopologyError, UnknownNameError, reading
from stretto.program import algorithms
from stretto.program.lang import Algorithm
from stretto.registry import texts
from stretto.runtime.choice.beside import Beside
from stretto.runtime.choice.plans import works
from stretto.runtime.choice.question import (
    ACROSS,
    HALF,
    STAGED,
    WHOLE,
    ZERO_COPY,
    Choice,
    Question,
)
from stretto.runtime.choice.rowrules import RowRule, ranks_in, text_in
from stretto.runtime.choice.seats import for_seats
from stretto.runtime.choice.sizes import parse_size

Pin: TypeAlias = str | Algorithm | tuple[str | Algorithm, str] | Beside | None
"""What a caller asks for: a catalogue name, with the words of a schedule after it when
wanted; an algorithm of one's own; either, paired with a schedule's words; or whatever
leaves most of a GPU to others."""

PACKETS_UP_TO = 16 << 10
"""Bytes a chunk up to which data that announce themselves beat a flag after them."""


def parse_pin(
    pin: str | Algorithm | tuple[str | Algorithm, str],
) -> tuple[Algorithm, Schedule | None]:
    """Return the algorithm and the schedule that a caller asks for."""
    given, words = pin, ""
    if isinstance(pin, tuple) and len(pin) == 2 and isinstance(pin[1], str):
        pin, words = pin
    if isinstance(pin, str):
        name, _, more = pin.partition("#")[0].strip().partition(" ")
        pin, words = algorithms.get(name), f"{more} {words}".strip()
    if not isinstance(pin, Algorithm):
        raise CallError(
            f"algorithm={given!r:.60}; want a name such as 'all_reduce/ring push "
            f"packets', or what @algorithm made"
        )
    words = words or pin.schedule
    try:
        return pin, Schedule.parse(words) if words else None
    except CallError as e:
        raise CallError(f"algorithm={given!r:.60}: {e}") from None


def completed(pin: Any, collective: str) -> Any:
    """Return what a caller asks for, with its whole name: `ring` of an all_reduce.

    What is none of the forms is returned as it is, for others to refuse.
    """
    name = pin[0] if isinstance(pin, tuple) and pin else pin
    if not isinstance(name, str) or "/" in name.strip().partition(" ")[0]:
        return pin
    name = f"{collective}/{name.strip()}"
    return (name, *pin[1:]) if isinstance(pin, tuple) else name


def members_of_pin(pin: Pin) -> tuple[int, ...]:
    """Return the members of the algorithm that a caller asks for; nothing: all."""
    asked = pin[0] if isinstance(pin, tuple) and pin else pin
    if isinstance(asked, str):
        return _members_of(asked.strip().partition(" ")[0])
    return asked.members if isinstance(asked, Algorithm) else ()


@functools.lru_cache(maxsize=256)
def _members_of(name: str) -> tuple[int, ...]:
    return algorithms.get(name).members


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of a profile: for such calls, by size, what to use."""

    collective: str
    memory: str
    fewest: int
    most: int
    sizes: tuple[tuple[int, str], ...]
    """Up to so many bytes: this pin."""
    dtypes: str = ""
    """The class of element types that it is about; nothing: all."""
    least: int = 0
    """Of smaller calls it says nothing."""
    one_way: bool = False
    """Whether it is only about permutations in which nobody sends and receives."""
    beside: bool = False
    """Whether it was measured beside a matmul and a late rank, or alone."""

    def answers(self, asked: Question) -> bool:
        """Return whether the row is about such calls."""
        return (
            self.collective == asked.collective
            and not asked.hosts  # it was measured on one, and
            and not asked.seats[1]  # where nobody said how ranks sit
            and (self.memory == asked.memory or self._goes_across(asked))
            and self.beside == asked.beside
            and self.one_way <= asked.one_way
            and self.fewest <= asked.num_ranks <= self.most
            and self.least <= asked.nbytes
            and self.dtypes in ("", asked.dtypes or self.dtypes)
        )

    def _goes_across(self, asked: Question) -> bool:
        """Return whether it is about what the kernel copies, and may do so."""
        return asked.across and (self.memory, asked.memory) == (ACROSS, STAGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured on one kind of machine with one executor; rows in order."""

    executor: str
    rules: tuple[Rule, ...] = ()
    rows: tuple[RowRule, ...] = ()
    """How rows of epilogues are divided, by the number of ranks."""
    machine: str = ""
    """What it was measured on, as `topology.here` says; nothing: it does not say."""
    about: str = field(default="", compare=False)

    def choose(
        self, asked: Question, usable: Callable[[Choice], bool] = lambda found: True
    ) -> Choice | None:
        """Return what the table says for a call, when it says something that works."""
        for rule in self.rules:
            if not rule.answers(asked):
                continue
            for up_to, pin in rule.sizes:
                if asked.nbytes > up_to:
                    continue
                found = _working(pin, asked)
                if found is not None and usable(found):
                    return found
        return None

    def rows_of(self, num_ranks: int) -> RowRule | None:
        """Return how rows are divided among so many ranks, when it says so."""
        return next((r for r in self.rows if r.answers(num_ranks)), None)

    @property
    def names(self) -> set[str]:
        """Return the algorithms that it names."""
        return {_name(pin) for rule in self.rules for _, pin in rule.sizes}

    def without(self, names: Collection[str]) -> Profile:
        """Return it without what names one of these algorithms."""
        rules = [
            replace(r, sizes=tuple(s for s in r.sizes if _name(s[1]) not in names))
            for r in self.rules
        ]
        return replace(self, rules=tuple(rules))

    @classmethod
    def parse(cls, text: str, source: str) -> Profile:
        """Read a profile; `source` names it in messages."""
        want = (
            "executor, and [[rule]] with collective, memory, ranks = [2, 8], sizes; or "
            "[[rows]] as in the profiles that are shipped"
        )
        with reading(TopologyError, f"profile {source}", want):
            data = tomllib.loads(text)
            rules = tuple(_rule(row) for row in data.get("rule", ()))
            rows = tuple(RowRule.parse(row) for row in data.get("rows", ()))
            executor, about = text_in(data["executor"]), text_in(data.get("about", ""))
            return cls(
                executor=executor,
                rules=rules,
                rows=rows,
                machine=text_in(data.get("machine", "")),
                about=about,
            )

    @classmethod
    @functools.cache
    def shipped(cls, executor: str, here: str = "") -> Profile:
        """Return what comes with the library: a file for each kind of machine.

        What was measured on a machine like `here` comes first, then what counts
        everywhere, then the others: they say more than the simulator. `machine` names
        those where nothing else was measured. It is read once a process.
        """
        found = [
            profile
            for name, text in texts("stretto.topology", "profiles").items()
            if f'executor = "{executor}"' in text
            if (profile := cls.parse(text, f"{name}.toml")).executor == executor
        ]
        found.sort(key=lambda one: (one.machine != here, bool(one.machine)))
        of_any = any(r.most > 1 for one in found if not one.machine for r in one.rules)
        machines = dict.fromkeys(one.machine for one in found if one.machine)
        near = [one.about for one in found if one.machine in ("", here)]
        return cls(
            executor=executor,
            rules=tuple(rule for one in found for rule in one.rules),
            rows=tuple(
                row if one.machine in ("", here) else row.elsewhere()
                for one in found
                for row in one.rows
            ),
            machine="" if of_any else " or ".join(machines),
            about="; ".join(near or [one.about for one in found]),
        )


def _rule(row: Mapping[str, Any]) -> Rule:
    fewest, most = ranks_in(row["ranks"])
    dtypes = row.get("dtypes", "")
    if dtypes not in ("", HALF, WHOLE):
        raise ValueError(f"dtypes = {dtypes!r}, not {HALF} or {WHOLE}")
    return Rule(
        collective=text_in(row["collective"]),
        memory=text_in(row["memory"]),
        fewest=fewest,
        most=most,
        sizes=tuple((_size(size), text_in(pin)) for size, pin in row["sizes"]),
        dtypes=dtypes,
        least=_size(row.get("least", "0")),
        beside=_is_set(row, "beside"),
        one_way=_is_set(row, "one_way"),
    )


def _size(value: Any) -> int:
    """Return the bytes of a size as a profile has it: a text."""
    return parse_size(text_in(value))


def _is_set(row: Mapping[str, Any], name: str) -> bool:
    said = row.get(name, False)
    if not isinstance(said, bool):
        raise ValueError(f"{name} = {said!r}, not true or false")
    return said


def _name(pin: str) -> str:
    return pin.strip().partition(" ")[0]


def _working(pin: str, asked: Question) -> Choice | None:
    """Return what a row says, or None when that is not for this call, or unknown."""
    try:
        algorithm, schedule = parse_pin(pin)
    except (UnknownNameError, CallError):  # CallError: words of another version
        return None
    if algorithm.members:  # nobody asked for a part of the ranks
        return None
    schedule = schedule or plain_schedule(asked)
    found = Choice(algorithm, schedule)
    return found if works(found, asked) else None


def plain_schedule(asked: Question) -> Schedule:
    """Return a good schedule for a call, whatever the algorithm."""
    blocks = _blocks(asked)
    if asked.memory == ZERO_COPY:
        return Schedule(direction="pull", memory=ZERO_COPY, blocks=blocks)
    protocol = "packets" if _is_small(asked) else "bulk"
    return Schedule(protocol=protocol, blocks=blocks)


def _is_small(asked: Question) -> bool:
    return asked.nbytes <= PACKETS_UP_TO * asked.num_ranks


def _blocks(asked: Question) -> int:
    """Return how many slices run side by side: one on a core, many on a GPU."""
    if asked.executor == CPU:
        return 1
    return min(32, max(4, asked.nbytes // asked.num_ranks >> 14))


def candidates(asked: Question) -> Iterator[Choice]:
    """Yield what serves a call, in the order of the catalogue: proved one by one."""
    return (option for option in possible(asked) if works(option, asked))


def possible(asked: Question) -> Iterator[Choice]:
    """Yield what may serve a call: whether there is such a plan, nobody has asked.

    Over hosts, those first that know them; and no packets of what is large, nor on a
    part of a machine: they cut it into tiles of their own size, of which each waits for
    the network.
    """
    blocks, far = _blocks(asked), bool(asked.hosts or asked.seats[1])
    words = ("packets", "bulk") if _is_small(asked) or not far else ("bulk",)
    schedules = [Schedule(protocol=word, blocks=blocks) for word in words]
    if asked.memory == ZERO_COPY:
        schedules += [
            Schedule(direction=direction, memory=ZERO_COPY, blocks=blocks)
            for direction in ("pull", "push")
        ]
    known = list(algorithms.of(asked.collective, asked.num_ranks))
    known += list(for_seats(asked, known))
    if asked.hosts:
        known.sort(key=lambda one: not one.knows_hosts)
    for algorithm in known:
        if algorithm.kernel is not None:  # nobody can simulate what it does
            continue
        if algorithm.knows_hosts and not asked.hosts:  # others do that better
            continue
        if algorithm.guesses_hosts and asked.hosts:
            continue
        for schedule in schedules:
            yield Choice(algorithm, schedule)
