"""An answer, and what a question's filters leave to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.studio.analysis.index import Index
from stretto.studio.ask.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known."""

    question: str = ""
    text: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    view: str = ""
    """The view that shows more."""


@dataclass(frozen=True, slots=True)
class FilteredCalls:
    """What a question's filters leave."""

    begin_us: float
    end_us: float
    instances: NDArray[np.bool_] = field(repr=False)


def window_of(index: Index, question: Question) -> FilteredCalls:
    """Return the time and the collectives that a question is about."""
    begin, end = 0.0, index.span_us
    if question.last_us >= 0:
        begin = max(0.0, end - question.last_us)
    if question.between_us is not None:
        begin = max(begin, question.between_us[0])
        end = min(end, question.between_us[1])
    chosen = (index.first_us <= end) & (index.end_us >= begin)
    kinds = index.recording.kinds
    if question.collective:
        of_kind = np.array([k.collective == question.collective for k in kinds], bool)
        chosen &= of_kind[index.instance_kind] if len(of_kind) else False
    if question.over >= 0:
        chosen &= index.instance_nbytes > question.over
    if question.under >= 0:
        chosen &= index.instance_nbytes < question.under
    if question.comm:
        chosen &= index.instance_comm == comm_named(index, question.comm)
    return FilteredCalls(begin, end, chosen)


def comm_named(index: Index, name: str) -> int:
    """Return the communicator of a name."""
    names = [comm.name for comm in index.recording.comms]
    if name not in names:
        known = ", ".join(repr(one) for one in names[:10])
        raise CallError(f"no communicator {name!r}; there are {known}")
    return names.index(name)


def nothing() -> Answer:
    """Return what is said where the filters leave nothing."""
    return Answer(text="No collective was recorded that is like that.", view="table")
