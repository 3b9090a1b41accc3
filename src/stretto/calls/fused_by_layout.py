"""Calls with an epilogue on arrays like those of an earlier one, on a GPU.

As by_layout.py without one: all that the long way looks at in arrays is a part of a
call's key. That is types, shapes, what is registered and what overlaps. Only calls
that name all their outputs (`into`) are known again, so nothing is made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.arrays.array_readers import read_array
from stretto.arrays.operands import GPU
from stretto.calls.by_identity import MISS, Broke
from stretto.epilogues import Bound, Graph
from stretto.executors import Launch, Session

__all__ = ["FusedLayoutCalls"]

_MOST_KINDS = 4096
_ALIGNED = 16
"""Bytes that rows are moved by; what begins elsewhere is examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayoutCall:
    """How a kind of call is repeated."""

    launch: Launch
    broke: Broke
    graph: Graph
    """Kept, so that nothing else gets its identity."""


@dataclass(slots=True)
class _Call:
    """A call as it is looked at."""

    kind: tuple[Any, ...]
    source: int
    target: int
    extra: list[Any]
    """Addresses and numbers: what a launch takes beside `x` and `out`."""


class FusedLayoutCalls:
    """What a communicator knows of its calls with an epilogue."""

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self._sessions = sessions
        self._known: dict[Any, _LayoutCall] = {}

    def repeat(self, key: tuple[Any, ...], x: Any, out: Any, bound: Bound) -> Any:
        """Repeat a call like an earlier one and return what it makes, or MISS."""
        if not self._known:
            return MISS
        call = self._looked(key, x, out, bound)
        if call is None or (how := self._known.get(call.kind)) is None:
            return MISS
        launch: Any = how.launch
        try:
            launch(call.source, call.target, extra=call.extra)
        except BaseException as e:
            raise how.broke(e) from e.__cause__
        made = bound.outputs
        assert made is not None, "only calls that name their outputs are known"
        return next(iter(made.values())) if bound.single else dict(made)

    def learn(
        self,
        key: tuple[Any, ...],
        x: Any,
        out: Any,
        bound: Bound,
        launch: Launch,
        broke: Broke,
    ) -> None:
        """Let calls like this one be known again; it has just been made."""
        call = self._looked(key, x, out, bound)
        if call is None:
            return
        if len(self._known) >= _MOST_KINDS:
            self._known.clear()
        made = _LayoutCall(launch=launch, broke=broke, graph=bound.graph)
        self._known[call.kind] = made

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def _looked(
        self, key: tuple[Any, ...], x: Any, out: Any, bound: Bound
    ) -> _Call | None:
        """Return a call as it is looked at; None when it must be examined."""
        graph, outputs = bound.graph, bound.outputs
        session = self._sessions.get(GPU)
        if session is None or outputs is None or len(outputs) != len(graph.outputs):
            return None
        alike: list[Any] = []
        extra: list[Any] = []
        spans: list[tuple[int, int]] = []
        for given in (x,) if out is None else (x, out):
            found = read_array(given)
            if found is None or found[0] != GPU:
                return None
            _, seen, at, size = found
            alike.append((seen, session.offset_at(at, size) is None))
            spans.append((at, at + size))
        arrays = [bound.inputs[name] for name in graph.inputs[1:]]
        for given in [*arrays, *(outputs[name] for name, _ in graph.outputs)]:
            if type(given) is float or type(given) is int:
                alike.append(None)
                extra.append(float(given))
                continue
            found = read_array(given)
            if found is None or found[0] != GPU:
                return None
            _, seen, at, size = found
            alike.append(seen)
            extra.append(at)
            spans.append((at, at + size))
        if any(start % _ALIGNED for start, _ in spans):
            return None
        kind = (key[0], key[3:], id(graph), bound.row, *alike, *_overlaps(spans))
        return _Call(kind, spans[0][0], spans[0 if out is None else 1][0], extra)


def _overlaps(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return which arrays overlap, and how far they are apart."""
    found = []
    for i, (start, end) in enumerate(spans):
        for j in range(i):
            a, b = spans[j]
            if start < b and a < end:
                found.append((i, j, a - start))
    return found
