"""Call graphs like those of a trace: what the grammar that draws them looks at.

Candidates say which places a grammar tells apart. It is fitted to a quarter of the
graphs, and costs how far the marginals of what it draws are from those of the next
quarter, and the other way round: the largest Kolmogorov-Smirnov distance of any.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from stretto.errors import CallError
from stretto.search.calls import CallGrammar, CallGraph, depths, read_calls
from stretto.search.evolve.problem import Verdict
from stretto.search.problems.config import ConfigProblem
from stretto.search.spaces import Configuration, Knob, Space

__all__ = ["OFFER", "TracesProblem", "distances"]

_SPACE = Space(
    (
        Knob("levels", (0, 1, 2, 3, 4, 6, 8)),
        Knob("by_kind", (False, True)),
        Knob("together", (False, True)),
        Knob("few", (1, 4, 16)),
    ),
    name="places",
)
_KINDS = 8
"""So many of the most frequent kinds have a marginal of their own."""


class TracesProblem(ConfigProblem):
    """Draw call graphs whose marginals are those of a trace."""

    name: ClassVar[str] = "traces"

    def __init__(self, trace: str, drawn: int = 400) -> None:
        """Read a trace of calls; so many graphs are `drawn` to judge a grammar."""
        self._graphs = read_calls(trace)
        if len(self._graphs) < 8:
            raise CallError(f"{trace}: {len(self._graphs)} graphs; want 8 or more")
        if not 10 <= drawn <= 100_000:
            raise CallError(f"drawn={drawn}: want 10 to 100000")
        self._drawn = drawn
        super().__init__(_SPACE, objective=self._judged)

    @property
    def said(self) -> Mapping[str, str]:
        """Return the trace by its digest."""
        whole = hashlib.sha256(repr(self._graphs).encode()).hexdigest()[:16]
        return {"trace": whole, "drawn": str(self._drawn)}

    def judge(self, candidate: Configuration, rung: int, *, fresh: int) -> Verdict:
        """Return how far what is drawn from a quarter is from another."""
        return Verdict.of(self._judged(**dict(candidate)))

    def _judged(self, **places: object) -> float:
        quarter, half = len(self._graphs) // 4, len(self._graphs) // 2
        one, other = self._graphs[:quarter], self._graphs[quarter:half]
        both = self._far(places, one, other), self._far(places, other, one)
        return sum(max(found.values()) for found in both) / 2

    def _far(
        self,
        places: Mapping[str, object],
        fitted: Sequence[CallGraph],
        other: Sequence[CallGraph],
    ) -> dict[str, float]:
        grammar = CallGrammar.fit(fitted, **places)  # type: ignore[arg-type]
        rng = random.Random(1)
        return distances([grammar.graph(rng) for _ in range(self._drawn)], other)

    def held_out(self, candidate: Configuration) -> Mapping[str, float]:
        """Return the distances of a grammar of the first half from the second half."""
        half = len(self._graphs) // 2
        found = self._far(dict(candidate), self._graphs[:half], self._graphs[half:])
        return {**found, "largest": max(found.values())}


def distances(
    drawn: Sequence[CallGraph], traced: Sequence[CallGraph]
) -> dict[str, float]:
    """Return Kolmogorov-Smirnov distances of marginals of two sets of graphs."""
    one, other = _marginals(drawn), _marginals(traced)
    often = Counter(call.kind for graph in traced for call in graph)
    found = {
        name: _apart(one[name], other[name]) for name in ("edges", "depth", "calls")
    }
    for kind, _ in often.most_common(_KINDS):
        found[f"us of {kind}"] = _apart(one.get(kind, [0.0]), other[kind])
    return found


def _marginals(graphs: Sequence[CallGraph]) -> dict[str, list[float]]:
    """Return edges and depth of graphs, calls that calls make, and times by kind."""
    found: dict[str, list[float]] = {"edges": [], "depth": [], "calls": []}
    for graph in graphs:
        many = Counter(call.parent for call in graph)
        found["edges"].append(len(graph) - 1)
        found["depth"].append(max(depths(graph)))
        found["calls"] += [many[i] for i in range(len(graph))]
        for call in graph:
            found.setdefault(call.kind, []).append(call.us)
    return found


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    first, second = np.sort(one), np.sort(other)
    every = np.concatenate([first, second])
    low = np.searchsorted(first, every, side="right") / len(first)
    high = np.searchsorted(second, every, side="right") / len(second)
    return float(np.abs(low - high).max())


OFFER = TracesProblem
