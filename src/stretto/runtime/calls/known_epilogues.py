"""Calls with an epilogue on arrays like those of an earlier one, on a GPU.

As known.py without one, but a call has many arrays: they are compared with those of
the few calls whose `x` has that shape, which takes half the time of reading them. Only
calls that name all their outputs (`into`) are known again, so nothing is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.arrays import GPU, place_of, read_array
from stretto.executors import Launch, Session
from stretto.program.epilogues import Bound, Graph
from stretto.runtime.calls.requests.layout import MISS, Broke
from stretto.runtime.calls.runner import CallRunner

_MOST_ALIKE = 64
"""Calls of one first look; few are alike then."""
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


def repeat_epilogue(
    calls: CallRunner, key: tuple[Any, ...], x: Any, out: Any, bound: Bound
) -> Any:
    """Repeat a call like an earlier one and return what it makes, or MISS."""
    found = _like(calls, key, x, out, bound)
    if found is None:
        return MISS
    how, places = found
    ends = len(how.registered)
    try:
        launch: Any = how.launch
        launch(places[0], places[ends - 1], extra=places[ends:])
    except BaseException as e:
        raise how.broke(e) from e.__cause__
    made = bound.outputs
    assert made is not None, "only calls that name their outputs are known"
    return next(iter(made.values())) if bound.single else dict(made)


def _like(
    calls: CallRunner, key: tuple[Any, ...], x: Any, out: Any, bound: Bound
) -> tuple[_LayoutCall, list[Any]] | None:
    """Return an earlier call like this one, and what its launch is given now."""
    try:
        known = calls._calls.get(_first_look(key, x, out, bound))
    except (AttributeError, TypeError):  # no epilogue, or no array: it is examined
        return None
    arrays = _arrays(x, out, bound) if known else None
    if known is None or arrays is None:
        return None
    for how in known:
        places = how.places(arrays)
        if places is None or _overlaps(places, how.sizes) != how.apart:
            continue
        ends = places[: len(how.registered)]
        if how.registered == _registered(calls._sessions[GPU], ends, how.sizes):
            return how, places
    return None


def learn_epilogue(
    calls: CallRunner,
    key: tuple[Any, ...],
    x: Any,
    out: Any,
    bound: Bound,
    launch: Launch,
) -> None:
    """Let calls like this one be known again; it has just been made."""
    session, arrays = calls._sessions.get(GPU), _arrays(x, out, bound)
    if session is None or arrays is None:
        return
    alike: list[Any] = []
    places: list[Any] = []
    sizes: list[int] = []
    for given in arrays:
        seen, at, size = None, given, 0
        if type(given) is not float and type(given) is not int:
            found = read_array(given)
            if found is None or found[0] != GPU or found[2] % _ALIGNED:
                return
            _, seen, at, size = found
        alike.append(seen)
        places.append(at)
        sizes.append(size)
    ends = 1 if out is None else 2
    call = _LayoutCall(
        launch=launch,
        broke=calls._broke,
        graph=bound.graph,
        alike=tuple(alike),
        sizes=tuple(sizes),
        registered=_registered(session, places[:ends], sizes),
        apart=_overlaps(places, sizes),
    )
    first = _first_look(key, x, out, bound)
    calls._calls[first] = [call, *calls._calls.get(first, ())][:_MOST_ALIKE]


def find_epilogue(
    calls: CallRunner, key: tuple[Any, ...], x: Any, out: Any, bound: Bound
) -> Callable[[int, int, Sequence[Any]], bool] | None:
    """Return a call that was made, as a function of addresses; None: it was not.

    It takes those of `x` and of the result, and what is extra; it returns False, and
    launches nothing, where calls must be examined, or peers reach arrays that they did
    not reach then, or the other way round. Whoever calls it knows that all else is
    alike.
    """
    found = _like(calls, key, x, out, bound)
    if found is None:
        return None
    how = found[0]
    launch: Any = how.launch
    broke, offset_at = how.broke, calls._sessions[GPU].offset_at
    who = calls._who  # of others nothing is known
    first, *more = zip(how.registered, how.sizes, strict=False)

    def again(source: int, target: int, extra: Sequence[Any]) -> bool:
        if calls._known is not calls._calls or calls._who is not who:
            return False
        if (offset_at(source, first[1]) is not None) != first[0]:
            return False
        if more and (offset_at(target, more[0][1]) is not None) != more[0][0]:
            return False
        try:
            launch(source, target, extra=extra)
        except BaseException as e:
            raise broke(e) from e.__cause__
        return True

    return again


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
