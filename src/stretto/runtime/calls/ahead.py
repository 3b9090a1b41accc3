"""Plans that are proved before they are needed: for ranks that come, and for fewer.

A plan knows how many ranks there are, and no process. So what the ranks call now can be
proved for the group that follows a loss, while nothing has happened yet.
"""

from __future__ import annotations

import ast
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial

from stretto import executors
from stretto.arrays import CPU
from stretto.errors import StrettoError
from stretto.fabric.workers import Workers
from stretto.program import collectives
from stretto.runtime.choice.measured import Measured
from stretto.runtime.choice.plans import plan_of
from stretto.runtime.choice.question import Question
from stretto.runtime.choice.selector import Selector

_MOST_TOLD = 64
"""Kinds of calls that standbys are told of: more than a model makes in a step."""
_WHOLE = ("all_reduce", "broadcast", "reduce")
"""Their vectors do not grow with the number of ranks."""


class Ahead:
    """Proves each kind of call for other numbers of ranks, in a thread of its own."""

    def __init__(self, measured: Measured, tell: Callable[[list[str]], None]) -> None:
        """Begin when there is something to prove; `tell` has the kinds as texts."""
        self._measured, self._tell = measured, tell
        self._sizes: tuple[int, ...] = ()
        self._kinds: dict[Question, None] = {}
        self._proved: dict[int, set[Question]] = {}
        self._workers = Workers("stretto-ahead", begin=_be_modest)

    def begin(self, sizes: Sequence[int]) -> None:
        """Prove for these numbers of ranks from now on, the first one first."""
        self._sizes = tuple(sizes)
        for asked in list(self._kinds):
            self._workers.give(partial(self._prove, asked))

    def note(self, asked: Question) -> None:
        """Take note of a kind of call that is made."""
        if asked not in self._kinds and not asked.hosts:
            self._kinds[asked] = None
            self._workers.give(partial(self._prove, asked))

    def ready_for(self) -> dict[int, bool]:
        """Return for how many ranks every kind of call so far is proved."""
        known = set(self._kinds)
        return {n: known <= self._proved.get(n, set()) for n in self._sizes}

    def _prove(self, asked: Question) -> None:
        for num_ranks in self._sizes:
            prove([for_ranks(asked, num_ranks)], self._measured)
            self._proved.setdefault(num_ranks, set()).add(asked)
        if self._workers.is_empty:
            kinds = list(self._kinds)[-_MOST_TOLD:]
            self._tell([repr(asdict(kind)) for kind in kinds])

    def end(self) -> None:
        """Prove nothing more."""
        self._workers.stop()


def _be_modest() -> None:
    """Let others go first: of this thread alone, where systems know that."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


def for_ranks(asked: Question, num_ranks: int) -> Question:
    """Return the same kind of call of another number of ranks."""
    nbytes = asked.nbytes
    if asked.collective not in _WHOLE:
        nbytes = nbytes * num_ranks // asked.num_ranks
    return replace(asked, num_ranks=num_ranks, nbytes=nbytes)


def prove(kinds: Iterable[Question | str], measured: Measured) -> None:
    """Choose and prove plans of kinds of calls, in words or not; what fails is left."""
    for kind in kinds:
        asked = kind if isinstance(kind, Question) else _read(kind)
        if asked is None or asked.collective not in collectives.names():
            continue
        with suppress(StrettoError):
            name = asked.executor
            selector = Selector(
                name, measured.profile(name), shipped=measured.shipped(name)
            )
            plan_of(selector.choose(asked), asked)


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
