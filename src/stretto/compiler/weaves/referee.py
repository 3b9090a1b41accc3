"""The proof of a weave: nobody reads what is not there, or writes what is in use.

Two calls, one after the other, are laid out on all ranks as a graph of what is before
what: the order of a stream, waits, and meets, behind which everything is that any rank
did before. Then every two uses of a place, of which one writes, must be in order, and
what is read must have been written in the same call. The places are those of `_uses`;
nothing here knows how waits were found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from stretto.compiler.weaves.text import MEETS, STREAMS, LoadShape, WeaveStep
from stretto.compiler.weaves.waits import PlacedStep
from stretto.errors import PlanError

__all__ = ["prove"]

_CALLS = 2
_Place: TypeAlias = tuple[int | str, ...]
"""A rank, what it holds, a share, a part."""


class _Order:
    """What is before what: for each node the set of those before it, as bits."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.names: list[str] = []

    def node(self, name: str, after: Sequence[int]) -> int:
        """Add a node behind others; return its number."""
        known = 0
        for one in after:
            known |= self.before[one] | (1 << one)
        self.before.append(known)
        self.names.append(name)
        return len(self.before) - 1

    def is_before(self, one: int, other: int) -> bool:
        """Return whether one ends before the other begins, in every run."""
        return bool(self.before[other] >> one & 1)


def prove(
    steps: Sequence[PlacedStep], shape: LoadShape, ranks: int, parts: int
) -> None:
    """Raise `PlanError` if a weave is wrong on so many ranks, in words."""
    _cover(steps, shape, ranks, parts)
    order = _Order()
    uses: dict[_Place, list[tuple[int, int, bool]]] = defaultdict(list)
    last: list[dict[str, int]] = [{} for _ in range(ranks)]
    for call in range(_CALLS):
        _call(steps, shape, parts, call, order, last, uses)
    for place, every in uses.items():
        _check(place, every, order)


def _cover(
    steps: Sequence[PlacedStep], shape: LoadShape, ranks: int, parts: int
) -> None:
    """Every part comes once, is computed once and goes once."""
    meets = {p.step.stream for p in steps if p.step.do in MEETS}
    if len(meets) > 1:
        raise PlanError(
            f"meets on streams {' and '.join(sorted(meets))}: ranks could meet in "
            "another order; want all on one"
        )
    for one in steps:
        comes = one.step.do in ("store", "stored", "push", "pull", "came")
        if (comes and not shape.comes) or (
            one.step.do in ("send", "sent") and not shape.goes
        ):
            what = "comes from others" if comes else "goes to others"
            raise PlanError(f"{one.step}: nothing {what} in such a call")
    far = range(1, ranks)
    own = range(0 if shape.own else 1, ranks)
    wanted = {
        ("push", "pull"): far if shape.comes else (),
        ("do",): own,
        ("send",): far if shape.goes else (),
    }
    for kinds, shares in wanted.items():
        count: dict[tuple[int, int], int] = defaultdict(int)
        for one in steps:
            if one.step.do in kinds and one.step.box:
                for cell in one.step.box.cells:
                    count[cell] += 1
        for s in range(ranks):
            for p in range(parts):
                want = int(s in shares)
                if count[s, p] != want:
                    raise PlanError(
                        f"{' or '.join(kinds)} {s}.{p}: {count[s, p]} times; want "
                        f"{want}"
                    )


def _call(
    steps: Sequence[PlacedStep], shape: LoadShape, parts: int, call: int, order: _Order,
    last: list[dict[str, int]], uses: dict[_Place, list[tuple[int, int, bool]]],
) -> None:  # fmt: skip
    """Lay out one call on all ranks, behind what each of their streams did last."""
    ranks = len(last)
    begun = [order.node("the call's start", list(mine.values())) for mine in last]
    for rank, mine in enumerate(last):
        mine.update(dict.fromkeys(STREAMS, begun[rank]))
        uses[rank, "input"].append((call, begun[rank], True))
    nodes: list[list[int]] = [[] for _ in range(ranks)]
    for at, (step, waits) in enumerate(steps):
        if any(not 0 <= k < at for k in waits):
            raise PlanError(f"step {at}, {step}: it waits for what is not before it")
        ends = [
            [last[r][step.stream], *(nodes[r][k] for k in waits)] for r in range(ranks)
        ]
        if step.do in MEETS:
            everybody = order.node(str(step), [one for end in ends for one in end])
            ends = [[everybody] for _ in range(ranks)]
        for rank in range(ranks):
            node = order.node(f"{step} of rank {rank}", ends[rank])
            nodes[rank].append(node)
            last[rank][step.stream] = node
            for place, writes in _uses(step, shape, rank, ranks):
                uses[place].append((call, node, writes))
    for rank, mine in enumerate(last):
        node = order.node(f"the end of rank {rank}", list(mine.values()))
        mine.update(dict.fromkeys(STREAMS, node))
        for s in range(0 if shape.own else 1, ranks):
            kind = "back" if shape.goes and s else "made"
            for p in range(parts):
                uses[rank, kind, s, p].append((call, node, False))


def _uses(
    step: WeaveStep, shape: LoadShape, rank: int, ranks: int
) -> list[tuple[_Place, bool]]:
    """Return the places that a step reads and writes, on any rank."""
    do, box = step.do, step.box
    if do == "store":
        return [((rank, "input"), False), ((rank, "store"), True)]
    found: list[tuple[_Place, bool]] = []
    for s, p in () if box is None or do in MEETS else box.cells:
        other = (rank + s) % ranks
        if do == "push":  # to the rank from which this one is s further
            found += [
                ((rank, "input"), False),
                (((rank - s) % ranks, "in", s, p), True),
            ]
        elif do == "pull":
            found += [((other, "store"), False), ((rank, "in", s, p), True)]
        elif do == "do":
            far = shape.comes and s
            found.append(((rank, "in", s, p) if far else (rank, "input"), False))
            found.append(((rank, "made", s, p), True))
            if shape.chain:
                found += [((rank, "state", p - 1), False)] if p else []
                found.append(((rank, "state", p), True))
        elif do == "send":
            found.append(((rank, "made", s, p), False))
            found.append(((other, "back", ranks - s, p), True))
    return found


def _check(
    place: _Place, every: Sequence[tuple[int, int, bool]], order: _Order
) -> None:
    """Hold the uses of a place against the order."""
    for i, (call, node, writes) in enumerate(every):
        if not writes and not any(
            w and c == call and (k == node or order.is_before(k, node))
            for c, k, w in every
        ):
            raise PlanError(f"{order.names[node]}: {_said(place)} is not there yet")
        for _, other, also in every[:i]:
            if (writes or also) and node != other and not (
                order.is_before(node, other) or order.is_before(other, node)
            ):  # fmt: skip
                raise PlanError(
                    f"{order.names[other]} and {order.names[node]} use {_said(place)} "
                    "in no order"
                )


def _said(place: _Place) -> str:
    rank, what, *where = place
    words = {
        "in": "what comes as", "made": "the result of", "back": "what comes back as",
        "state": "the state behind part", "input": "the input",
        "store": "the stored input",
    }[str(what)]  # fmt: skip
    at = " " + ".".join(map(str, where)) if where else ""
    return f"{words}{at} of rank {rank}"
