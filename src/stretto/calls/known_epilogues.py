"""Calls with an epilogue on arrays like those of an earlier one, on a GPU.

As known.py without one, but a call has many arrays: they are compared with those of
the few calls whose `x` has that shape, which takes half the time of reading them. Only
calls that name all their outputs (`into`) are known again, so nothing is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.arrays.array_readers import place_of, read_array
from stretto.arrays.operands import GPU
from stretto.calls.requests.layout import MISS, Broke
from stretto.epilogues import Bound, Graph
from stretto.executors import Launch, Session

__all__ = ["KnownEpilogues"]

_MOST_KINDS = 4096
_ALIGNED = 16
"""Bytes that rows are moved by; what begins elsewhere is examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayoutCall:
    """How a kind of call is repeated: what its arrays read like, and their launch.

    In the order of a launch: `x`, `out` where there is one, then what is extra.
    """

    launch: Launch
    broke: Broke
    graph: Graph
    """Kept, so that nothing else gets its identity."""
    alike: tuple[Any, ...]
    """What a reader says of each array; None: it is a number."""
    sizes: tuple[int, ...]
    """Bytes of each."""
    registered: tuple[bool, ...]
    """Whether `x`, and `out`, are memory that peers reach."""
    apart: tuple[tuple[int, int, int], ...]
    """Which arrays overlap, and how far they are apart."""

    def is_like(self, other: _LayoutCall) -> bool:
        """Return whether two calls differ in addresses and numbers alone."""
        return (self.alike, self.registered, self.apart) == (
            *(other.alike, other.registered, other.apart),
        )

    def places(self, arrays: Sequence[Any]) -> list[Any] | None:
        """Return where arrays like these lie, and numbers; None: they differ."""
        found: list[Any] = []
        for array, alike in zip(arrays, self.alike, strict=True):
            if alike is None:
                if type(array) is not float and type(array) is not int:
                    return None
                found.append(float(array))
                continue
            at = place_of(array, alike)
            if at is None or at % _ALIGNED:
                return None
            found.append(at)
        return found


class KnownEpilogues:
    """What a communicator knows of its calls with an epilogue."""

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self._sessions = sessions
        self._known: dict[Any, list[_LayoutCall]] = {}
        """By what is looked at in no array but the shape of `x`: few are alike then."""
        self.memo: dict[Any, Any] = {}
        """What others remember of these calls; gone when they must be examined anew."""

    def repeat(self, key: tuple[Any, ...], x: Any, out: Any, bound: Bound) -> Any:
        """Repeat a call like an earlier one and return what it makes, or MISS."""
        known = (
            self._known.get(_first_look(key, x, out, bound)) if self._known else None
        )
        if known is None:
            return MISS
        arrays, session = _arrays(x, out, bound), self._sessions[GPU]
        if arrays is None:
            return MISS
        for how in known:
            places = how.places(arrays)
            if places is None or _overlaps(places, how.sizes) != how.apart:
                continue
            ends = len(how.registered)
            if how.registered == _registered(session, places[:ends], how.sizes):
                return _repeated(how, places, ends, bound)
        return MISS

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
        call = self._looked(x, out, bound, launch, broke)
        if call is None:
            return
        if sum(map(len, self._known.values())) >= _MOST_KINDS:
            self._known.clear()
        self._known.setdefault(_first_look(key, x, out, bound), []).append(call)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self.memo.clear()

    def find(
        self, key: tuple[Any, ...], x: Any, out: Any, bound: Bound
    ) -> Callable[[int, int, Sequence[Any]], bool] | None:
        """Return a call that was made, as a function of addresses; None: it was not.

        It takes those of `x` and of the result, and what is extra; it returns False,
        and launches nothing, where peers reach arrays that they did not reach then, or
        the other way round. Whoever calls it knows that all else is alike.
        """
        call = self._looked(x, out, bound, None, _nobody)
        known = self._known.get(_first_look(key, x, out, bound), ())
        how = next(
            (one for one in known if call is not None and one.is_like(call)), None
        )
        if how is None:
            return None
        launch, broke, offset_at = how.launch, how.broke, self._sessions[GPU].offset_at
        first, *more = zip(how.registered, how.sizes, strict=False)

        def again(source: int, target: int, extra: Sequence[Any]) -> bool:
            if (offset_at(source, first[1]) is not None) != first[0]:
                return False
            if more and (offset_at(target, more[0][1]) is not None) != more[0][0]:
                return False
            try:
                launch(source, target, extra=extra)  # type: ignore[call-arg]
            except BaseException as e:
                raise broke(e) from e.__cause__
            return True

        return again

    def _looked(
        self, x: Any, out: Any, bound: Bound, launch: Any, broke: Broke
    ) -> _LayoutCall | None:
        """Return how a call is known again; None when it must be examined."""
        session, arrays = self._sessions.get(GPU), _arrays(x, out, bound)
        if session is None or arrays is None:
            return None
        alike: list[Any] = []
        places: list[Any] = []
        sizes: list[int] = []
        for given in arrays:
            seen, at, size = None, given, 0
            if type(given) is not float and type(given) is not int:
                found = read_array(given)
                if found is None or found[0] != GPU or found[2] % _ALIGNED:
                    return None
                _, seen, at, size = found
            alike.append(seen)
            places.append(at)
            sizes.append(size)
        ends = 1 if out is None else 2
        return _LayoutCall(
            launch=launch,
            broke=broke,
            graph=bound.graph,
            alike=tuple(alike),
            sizes=tuple(sizes),
            registered=_registered(session, places[:ends], sizes),
            apart=_overlaps(places, sizes),
        )


def _nobody(error: BaseException) -> BaseException:
    return error


def _first_look(key: tuple[Any, ...], x: Any, out: Any, bound: Bound) -> Any:
    shape = getattr(x, "shape", None)
    return key[0], key[3:], id(bound.graph), bound.row, shape, out is None


def _arrays(x: Any, out: Any, bound: Bound) -> list[Any] | None:
    """Return all that a launch is given; None where outputs are to be made."""
    graph, made = bound.graph, bound.outputs
    if made is None or len(made) != len(graph.outputs):
        return None
    found = [x] if out is None else [x, out]
    found += [bound.inputs[name] for name in graph.inputs[1:]]
    found += [made[name] for name, _ in graph.outputs]
    return found


def _repeated(how: _LayoutCall, places: list[Any], ends: int, bound: Bound) -> Any:
    launch: Any = how.launch
    try:
        launch(places[0], places[ends - 1], extra=places[ends:])
    except BaseException as e:
        raise how.broke(e) from e.__cause__
    made = bound.outputs
    assert made is not None, "only calls that name their outputs are known"
    return next(iter(made.values())) if bound.single else dict(made)


def _registered(
    session: Session, places: Sequence[int], sizes: Sequence[int]
) -> tuple[bool, ...]:
    offset = session.offset_at
    return tuple(
        offset(at, size) is not None for at, size in zip(places, sizes, strict=False)
    )


def _overlaps(
    places: Sequence[Any], sizes: Sequence[int]
) -> tuple[tuple[int, int, int], ...]:
    """Return which arrays overlap, and how far they are apart; numbers have no size."""
    spans = [
        (at, at + size, i)
        for i, (at, size) in enumerate(zip(places, sizes, strict=True))
        if size
    ]
    spans.sort()
    end = 0
    for start, last, _ in spans:
        if start < end:
            break
        end = last
    else:
        return ()
    return tuple(
        (i, j, other - start)
        for start, last, i in spans
        for other, until, j in spans
        if j < i and start < until and other < last
    )
