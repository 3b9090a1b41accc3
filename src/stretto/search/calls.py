"""Call graphs like those that were traced: a grammar fitted to them, drawn from.

A graph is a tree of calls: each has a kind (a service) and a time. A call is made of
others by what calls like it did: of its kind, that deep. What is asked of a graph (how
many edges, how deep, how long) is kept by the way it is made, not by trying again.
"""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from stretto.errors import CallError, ParseError, why_unread

__all__ = ["CallGrammar", "CallGraph", "TracedCall", "depths", "read_calls"]

_MOST_CALLS = 1000
"""Of a graph of which no number of edges is asked."""
_MOST_SPANS = 2_000_000
_COLUMNS = ("trace", "span", "parent", "kind", "us")


class TracedCall(NamedTuple):
    """A call: the index of its parent, -1 for the first; its kind; microseconds."""

    parent: int
    kind: str
    us: float


CallGraph: TypeAlias = tuple[TracedCall, ...]
"""The calls of a graph, each behind its parent."""


def depths(graph: CallGraph) -> list[int]:
    """Return how far each call is from the first."""
    found: list[int] = []
    for call in graph:
        found.append(found[call.parent] + 1 if call.parent >= 0 else 0)
    return found


@dataclass(slots=True)
class _Seen:
    """What calls of one kind of place did, one entry for each."""

    many: list[int] = field(default_factory=list)
    """How many calls they made."""
    kinds: list[tuple[str, ...]] = field(default_factory=list)
    """Of which kinds."""
    us: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """How long they took, by whether they made none, one, or more."""


class CallGrammar:
    """What calls do, by their place: kind and depth, as far as enough were seen."""

    def __init__(self, *, levels: int, by_kind: bool, together: bool, few: int) -> None:
        """Tell depths apart up to `levels`, and kinds, where `few` calls were seen.

        `together`: whether kinds of calls are drawn as they came, or each for itself.
        """
        self._levels, self._by_kind = levels, by_kind
        self._together, self._few = together, few
        self._seen: dict[tuple[str, int], _Seen] = defaultdict(_Seen)
        self._firsts: list[str] = []

    @classmethod
    def fit(
        cls, graphs: Iterable[CallGraph], *, levels: int = 4, by_kind: bool = True,
        together: bool = True, few: int = 8,
    ) -> CallGrammar:  # fmt: skip
        """Return the grammar of some graphs."""
        made = cls(levels=levels, by_kind=by_kind, together=together, few=few)
        for graph in graphs:
            below: dict[int, list[str]] = defaultdict(list)
            for call in graph[1:]:
                below[call.parent].append(call.kind)
            made._firsts.append(graph[0].kind)
            for i, depth in enumerate(depths(graph)):
                kinds = tuple(below[i])
                for place in made._places(graph[i].kind, depth):
                    seen = made._seen[place]
                    seen.many.append(len(kinds))
                    if kinds:
                        seen.kinds.append(kinds)
                    seen.us[min(2, len(kinds))].append(graph[i].us)
        if not made._firsts:
            raise CallError("no graphs; want one or more to fit a grammar to")
        return made

    def graph(
        self,
        rng: random.Random,
        *,
        edges: int | None = None,
        depth: int | None = None,
        at_most_us: float | None = None,
    ) -> CallGraph:
        """Return a graph: of so many edges, so deep, no call longer than that."""
        for name, value in (("edges", edges), ("depth", depth)):
            if value is not None and not 0 <= value <= _MOST_SPANS:
                raise CallError(f"{name}={value}: want 0 to {_MOST_SPANS}")
        if edges is not None and depth is not None and bool(edges) != bool(depth):
            raise CallError(f"edges={edges}, depth={depth}: want both 0, or none")
        if edges is not None and depth is not None and depth > edges:
            raise CallError(f"depth={depth}: want at most as deep as {edges} edges go")
        if at_most_us is not None and not at_most_us > 0:
            raise CallError(f"at_most_us={at_most_us}: want microseconds, above 0")
        first = rng.choice(self._firsts)
        if edges is None and depth is None:
            shape = self._free(first, rng)
        else:
            if edges is None:
                edges = self._edges_for(first, depth or 0, rng)
            shape = self._bound(first, edges, depth, rng)
        return self._timed(shape, at_most_us, rng)

    def _places(self, kind: str, depth: int) -> list[tuple[str, int]]:
        """Return where to look, the nearest first."""
        level = min(depth, self._levels)
        near = [(kind, level), (kind, -1)] if self._by_kind else []
        return list(dict.fromkeys([*near, ("", level), ("", -1)]))

    def _like(self, kind: str, depth: int) -> Sequence[_Seen]:
        """Return what was seen at such places: those first where it was enough."""
        found = [self._seen[p] for p in self._places(kind, depth) if p in self._seen]
        enough = [one for one in found if len(one.many) >= self._few]
        return [*enough, *found]

    def _kinds(self, kind: str, depth: int, many: int, rng: random.Random) -> list[str]:
        """Return the kinds of so many calls."""
        for seen in self._like(kind, depth):
            if not seen.kinds:
                continue
            if self._together:
                same = [k for k in seen.kinds if len(k) == many]
                if same:
                    return list(rng.choice(same))
            return [rng.choice(rng.choice(seen.kinds)) for _ in range(many)]
        return [kind] * many

    def _many(
        self, kind: str, depth: int, rng: random.Random, least: int = 0, most: int = 0
    ) -> int:
        """Return how many calls one makes; between two bounds, if there are any."""
        for seen in self._like(kind, depth):
            fits = [n for n in seen.many if least <= n <= (most or _MOST_CALLS)]
            if fits:
                return rng.choice(fits)
        return rng.randint(least, max(least, min(most, least + 2)))

    def _free(self, first: str, rng: random.Random) -> list[tuple[int, str]]:
        made, at = [(-1, first)], 0
        depth = [0]
        while at < len(made):
            kind = made[at][1]
            many = min(self._many(kind, depth[at], rng), _MOST_CALLS - len(made))
            for one in self._kinds(kind, depth[at], many, rng):
                made.append((at, one))
                depth.append(depth[at] + 1)
            at += 1
        return made

    def _edges_for(self, first: str, depth: int, rng: random.Random) -> int:
        """Return how many edges a graph that deep has: as a free one, or more."""
        return max(depth, len(self._free(first, rng)) - 1) if depth else 0

    def _bound(
        self, first: str, edges: int, depth: int | None, rng: random.Random
    ) -> list[tuple[int, str]]:
        """Return a graph of so many edges: each call is told how many are below it.

        One way down is told to be as deep as is asked, and nobody goes below that.
        """
        made = [(-1, first)]
        below = edges if depth is None else depth
        waiting = [(0, 0, edges, below, depth is not None)]
        while waiting:
            at, level, left, floor, is_spine = waiting.pop()
            if not left:
                continue
            kind = made[at][1]
            if floor == 1:
                many = left
            else:
                most = left - (floor - 1) if is_spine else left
                many = self._many(kind, level, rng, 1, most)
            shares = _split(left - many, many, floor - 1 if is_spine else 0, rng)
            for i, one in enumerate(self._kinds(kind, level, many, rng)):
                made.append((at, one))
                deeper = is_spine and i == 0
                waiting.append((len(made) - 1, level + 1, shares[i], floor - 1, deeper))
        return made

    def _timed(
        self, shape: Sequence[tuple[int, str]], most: float | None, rng: random.Random
    ) -> CallGraph:
        many: dict[int, int] = defaultdict(int)
        for parent, _ in shape[1:]:
            many[parent] += 1
        made: list[TracedCall] = []
        depth: list[int] = []
        for i, (parent, kind) in enumerate(shape):
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
            us = self._us(kind, depth[i], min(2, many[i]), most, rng)
            made.append(TracedCall(parent, kind, us))
        return tuple(made)

    def _us(
        self, kind: str, depth: int, many: int, most: float | None, rng: random.Random
    ) -> float:
        for seen in self._like(kind, depth):
            times = seen.us.get(many, [])
            fits = [us for us in times if most is None or us <= most]
            if fits:
                return rng.choice(fits)
        return rng.uniform(0, most) if most is not None else 0.0


def _split(total: int, many: int, first: int, rng: random.Random) -> list[int]:
    """Return how many of `total` each of some gets, the first at least so many."""
    shares = [0] * many
    shares[0], total = first, total - first
    cuts = sorted(rng.randint(0, total) for _ in range(many - 1))
    for i, (low, high) in enumerate(zip([0, *cuts], [*cuts, total], strict=True)):
        shares[i] += high - low
    return shares


def read_calls(path: str | Path) -> tuple[CallGraph, ...]:
    """Read CSV with columns trace, span, parent, kind and us, in any order of rows."""
    rows: dict[str, dict[str, tuple[str, str, float]]] = defaultdict(dict)
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file)
            if missing := [c for c in _COLUMNS if c not in (lines.fieldnames or ())]:
                want = ", ".join(_COLUMNS)
                raise ParseError(f"{path}: no column {missing[0]}: want {want}")
            for number, row in enumerate(lines, 2):
                trace, span, parent, kind, us = _span(f"{path}:{number}", row)
                if span in rows[trace] or number > _MOST_SPANS:
                    why = f"there twice, or more than {_MOST_SPANS}"
                    raise ParseError(f"{path}:{number}: span {span!r:.40} is {why}")
                rows[trace][span] = parent, kind, us
    except (OSError, ValueError) as e:
        raise ParseError(f"{path}: {why_unread(e)}") from None
    except csv.Error as e:
        raise ParseError(f"{path}: {e}; want CSV") from None
    if not rows:
        raise ParseError(f"{path}: no calls")
    return tuple(_graph(f"{path}, trace {t:.40}", spans) for t, spans in rows.items())


def _span(where: str, row: Mapping[str, Any]) -> tuple[str, str, str, str, float]:
    trace, span, parent, kind = (str(row[c] or "") for c in _COLUMNS[:4])
    try:
        us = float(row["us"])
    except (TypeError, ValueError):
        us = -1.0
    if not 0 <= us < 1e15 or not trace or not span or not kind:
        raise ParseError(f"{where}: want a trace, a span, a kind, and us of 0 or more")
    return trace, span, parent, kind, us


def _graph(where: str, spans: Mapping[str, tuple[str, str, float]]) -> CallGraph:
    """Return the calls below the one that has no parent, each behind its own."""
    below: dict[str, list[str]] = defaultdict(list)
    firsts = []
    for span, (parent, _, _) in spans.items():
        if parent in spans:
            below[parent].append(span)
        else:
            firsts.append(span)
    if len(firsts) != 1:
        raise ParseError(f"{where}: {len(firsts)} calls without a parent; want 1")
    made: list[TracedCall] = []
    waiting = [(firsts[0], -1)]
    while waiting:
        span, parent_at = waiting.pop()
        _, kind, us = spans[span]
        waiting += [(child, len(made)) for child in reversed(below[span])]
        made.append(TracedCall(parent_at, kind, us))
    if len(made) != len(spans):
        raise ParseError(f"{where}: calls in a circle; want a tree")
    return tuple(made)
