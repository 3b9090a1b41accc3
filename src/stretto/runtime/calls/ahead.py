"""Plans that are proved before they are needed: for ranks that come, and for fewer.

A plan knows how many ranks there are and which of them share a host, and no process. So
what the ranks call now can be proved for the group that follows a loss, while nothing
has happened yet.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from stretto import executors, topology
from stretto.arrays import CPU
from stretto.compiler.plan import settled_hosts
from stretto.errors import StrettoError
from stretto.fabric.meeting.standing import Standing
from stretto.fabric.workers import Workers
from stretto.program import collectives
from stretto.runtime.calls.spares import tell_asked, unsaid
from stretto.runtime.choice import own
from stretto.runtime.choice.measured import Measured
from stretto.runtime.choice.plans import plan_of
from stretto.runtime.choice.question import NO_SEATS, Question, Seats
from stretto.runtime.choice.seats import seats_of, settled_places
from stretto.runtime.choice.selector import Selector
from stretto.runtime.choice.sizes import spell_size

_MOST_TOLD = 64
"""Kinds of calls that standbys are told of: more than a model makes in a step."""
_MOST_LAYOUTS = 24
_QUIET_S = 0.05
"""So long nothing new was called before anything is proved: whoever proves has the
interpreter's lock at a low priority, and the call would wait for both."""
_WHOLE = ("all_reduce", "broadcast", "reduce")
"""Their vectors do not grow with the number of ranks."""


class RankLayout(NamedTuple):
    """How many ranks there are, and the host of each; none named: one is all's."""

    num_ranks: int
    hosts: tuple[int, ...] = ()
    seats: Seats = NO_SEATS


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether every kind of call so far is proved for a number of ranks."""

    is_proved: bool
    by: tuple[str, ...]
    """Which plan each is to have; of a named machine, wherever ranks may sit."""

    def __bool__(self) -> bool:
        """Return whether all are proved."""
        return self.is_proved


def seated(
    sizes: Sequence[int], machine: str, places: Sequence[int]
) -> tuple[RankLayout, ...]:
    """Return which layouts may follow on a machine: whoever of those there is lost.

    Of each number of ranks all, or none where these are too many.
    """
    found: list[RankLayout] = []
    for n in sizes:
        more = settled_places((*places, *(-1,) * max(0, n - len(places))))
        if len(found) + math.comb(len(more), n) <= _MOST_LAYOUTS:
            some = itertools.combinations(more, n)
            found += [RankLayout(n, (), seats_of(machine, at)) for at in some]
    return tuple(found)


def nearest(sizes: Sequence[int], hosts: Sequence[int]) -> tuple[RankLayout, ...]:
    """Return which layouts may follow: as now, one rank elsewhere, one or a host less.

    `sizes` are the numbers of ranks that there may be, what is nearest first; `hosts`
    are those of the ranks now.
    """
    if not hosts:
        return tuple(RankLayout(n) for n in sizes)
    now, ranks = tuple(hosts), range(len(hosts))
    found = [now]
    found += [(*now[:r], h, *now[r + 1 :]) for h in sorted(set(now)) for r in ranks]
    found += [(*now[:r], *now[r + 1 :]) for r in ranks]
    found += [tuple(h for h in now if h != gone) for gone in sorted(set(now))]
    some = (RankLayout(len(one), settled_hosts(one, len(one))) for one in found)
    kept = dict.fromkeys(one for one in some if one.num_ranks in sizes)
    return tuple(kept)[:_MOST_LAYOUTS]


class Ahead:
    """Proves each kind of call for other layouts of ranks, in a thread of its own."""

    def __init__(self, tell: Callable[..., None]) -> None:
        """Have the thread now: on busy cores it is long before a new one runs.

        Who has just come to others would wait for that in its first call, and they
        with it. `tell` is told the kinds of calls as texts, and the layouts.
        """
        self._measured, self._tell = Measured(), tell
        self._layouts: tuple[RankLayout, ...] = ()
        self._kinds: dict[Question, None] = {}
        self._proved: dict[RankLayout, dict[Question, str]] = {}
        self._workers = Workers("stretto-ahead", begin=_be_modest)
        self._workers.open()
        self._noted_at = 0.0

    def begin(self, layouts: Sequence[RankLayout], measured: Measured) -> None:
        """Prove for these layouts from now on, the first one first."""
        self._layouts, self._measured = tuple(layouts), measured
        self._noted_at = time.monotonic()
        for asked in list(self._kinds):
            self._workers.give(partial(self._prove, asked))

    def note(self, asked: Question) -> None:
        """Take note of a kind of call that is made."""
        if asked not in self._kinds:
            self._kinds[asked], self._noted_at = None, time.monotonic()
            self._workers.give(partial(self._prove, asked))

    def ready_for(self) -> dict[int, Readiness]:
        """Return for how many ranks all kinds of calls so far are proved, by what."""
        known, found = set(self._kinds), dict[int, Readiness]()
        for one in self._layouts:
            proved = dict(self._proved.get(one, {}))
            before = found.get(one.num_ranks, Readiness(True, ()))
            by = (*before.by, *(f"{at}: {plan}" for at, plan in _told(one, proved)))
            found[one.num_ranks] = Readiness(
                before.is_proved and known <= proved.keys(), tuple(dict.fromkeys(by))
            )
        return found

    def _prove(self, asked: Question) -> None:
        while (left_s := self._noted_at + _QUIET_S - time.monotonic()) > 0:
            time.sleep(left_s)
        for layout in self._layouts:
            found = prove(for_layout(asked, layout), self._measured)
            self._proved.setdefault(layout, {})[asked] = found
        if self._workers.is_empty:
            kinds = list(self._kinds)[-_MOST_TOLD:]
            self._tell([repr(asdict(kind)) for kind in kinds], self._layouts)

    def end(self) -> None:
        """Prove nothing more."""
        self._workers.stop()


def _be_modest() -> None:
    """Let others go first: of this thread alone, where systems know that."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


def for_layout(asked: Question, layout: RankLayout) -> Question:
    """Return the same kind of call of ranks that lie otherwise."""
    num_ranks, hosts, seats = layout
    nbytes = asked.nbytes
    if asked.collective not in _WHOLE:
        nbytes = nbytes * num_ranks // asked.num_ranks
    return replace(asked, num_ranks=num_ranks, nbytes=nbytes, hosts=hosts, seats=seats)


def told(fact: Mapping[str, Any]) -> list[Question]:
    """Return kinds of calls that a rank tells, each of all layouts that it tells."""
    try:
        asked = [one for text in fact.get("kinds", ()) if (one := _read(text))]
        layouts = [
            RankLayout(int(n), _numbers(hosts), (str(name), _numbers(places)))
            for n, hosts, (name, places) in fact.get("layouts", ())
        ]
    except (ValueError, TypeError):  # others say it: what makes no sense is left
        return []
    return [for_layout(one, layout) for layout in layouts for one in asked]


def _numbers(given: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(int, given))


def _told(
    layout: RankLayout, proved: Mapping[Question, str]
) -> Iterable[tuple[str, str]]:
    """Yield kinds of calls in words, and the plan of each."""
    at = f" at {layout.seats[1]}" if layout.seats[1] else ""
    for asked, plan in proved.items():
        size = spell_size(for_layout(asked, layout).nbytes)
        yield f"{asked.collective} of {size}{at}", plan


def prove(asked: Question, measured: Measured) -> str:
    """Choose and prove the plan of a kind of call; return it, or why there is none."""
    if asked.collective not in collectives.names():
        return "unknown here"
    name = asked.executor
    try:
        selector = Selector(
            name, measured.profile(name), shipped=measured.shipped(name)
        )
        found = selector.choose(asked)
        plan_of(found, asked)
    except StrettoError as e:
        return f"none: {e}"
    return str(found)


def stand_by(standing: Standing) -> None:
    """Return once this process is a rank; load and prove meanwhile what it will need.

    A standby may be called at any time, also while it does that.
    """
    tell_asked(standing)
    load_ahead(CPU)
    measured = Measured(texts=own.texts(), here=topology.here(CPU))
    known = set[Question]()

    def is_asked() -> bool:
        return standing.is_rank or bool(unsaid(standing) or new())

    def new() -> list[Question]:
        found = [one for fact in list(standing.facts.values()) for one in told(fact)]
        return [one for one in dict.fromkeys(found) if one not in known]

    if not standing.is_rank:
        executors.get(CPU).load(far=True)
    while not standing.is_rank:
        standing.wait(is_asked, None)
        tell_asked(standing)
        for asked in new():
            if standing.is_rank:
                break
            known.add(asked)
            prove(asked, measured)


def load_ahead(executor: str) -> None:
    """Load what an executor's first session would."""
    executors.get(executor).load()


def load_ranks() -> None:
    """Load what ranks of CPUs need, in the process that forks them."""
    importlib.import_module("stretto.runtime.calls")
    load_ahead(CPU)


def _read(text: str) -> Question | None:
    try:
        return Question(**ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError, MemoryError):
        return None
