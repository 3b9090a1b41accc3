"""Prove that a plan writes every element it should, once, from the right source.

Nothing of the planner is used. Each byte distance of a box is read backwards, by the
layouts' own definition: an offset is divided by the strides, the largest first, and
what comes out are coordinates of the tensor. Three things are shown of every box.

1. Its steps do not carry: along each axis the coordinates grow by amounts of their own,
   and together they stay inside of the memory. So the coordinates of any place are
   those of the corner plus what each step adds, and steps may be looked at one by one.
2. Each step adds the same to the coordinates at the source and at the destination, and
   the corners have the same coordinates. So each element comes from its own place.
3. What the steps reach is a rectangle of coordinates, each of which is reached once.

Then the rectangles of all boxes must be disjoint, and together as large as what was to
be written. The work grows with the sum of the boxes' sides, not with their product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.errors import PlanError
from stretto.transfer.layouts import Layout
from stretto.transfer.plans.deal import Deal
from stretto.transfer.plans.plan import Box, Plan

__all__ = ["prove", "prove_deal"]

_Rect = tuple[tuple[int, int], ...]
"""For each axis of the destination but pages, from where to where."""


class _Memory:
    """A layout, read backwards: from bytes to coordinates of the tensor."""

    def __init__(self, layout: Layout, names: Sequence[str]) -> None:
        self.layout, self.names = layout, names
        self.sizes = {a.name: a.size for a in (*layout.parts, *layout.axes)}
        self.starts = {a.name: a.start for a in (*layout.parts, *layout.axes)}

    def coordinates(
        self, part: int, offsets: NDArray[np.int64]
    ) -> dict[str, NDArray[np.int64]]:
        """Return the coordinates of bytes of a tensor, by axis, in the whole tensor."""
        found: dict[str, NDArray[np.int64]] = {}
        for axis in reversed(self.layout.parts):
            part, value = divmod(part, axis.size)
            found[axis.name] = np.full(len(offsets), value, np.int64)
        if part:
            raise PlanError(f"{self.layout}: there is no tensor of that number")
        left = offsets
        for axis in sorted(self.layout.axes, key=lambda a: (-a.stride, a.size)):
            if axis.size == 1:
                found[axis.name] = np.zeros(len(offsets), np.int64)
                continue
            found[axis.name], left = left // axis.stride, left % axis.stride
        outside = [
            n for n, at in found.items() if ((at < 0) | (at >= self.sizes[n])).any()
        ]
        if outside or left.any():
            raise PlanError(
                f"{self.layout}: a box reaches bytes that belong to no element"
            )
        return {n: at + self.starts[n] for n, at in found.items()}


def prove(plan: Plan, *, whole: bool = False) -> None:
    """Raise PlanError unless a plan does what its layouts and `only` say.

    With `whole`, it must write everything that the destination holds.
    """
    names = [n for n in plan.dst.names if n != "B"]
    src, dst = _Memory(plan.src, names), _Memory(plan.dst, names)
    phases = [0]
    if plan.dst.is_paged:
        each = plan.src.page_tokens, plan.dst.page_tokens
        if not 1 <= plan.tokens <= math.gcd(*each):
            raise PlanError(f"{plan}: a chunk of {plan.tokens} tokens")
        starts = range(0, math.lcm(*each), math.gcd(*each))
        phases = [p for p in starts if all(p % n + plan.tokens <= n for n in each)]
    want = _wanted(plan, names, whole)
    for phase in phases:
        rects = [_rect(box, src, dst, plan, phase) for box in plan.boxes]
        _exact(rects, want, plan)


def prove_deal(deal: Deal) -> None:
    """Raise PlanError unless every destination gets all that it holds, once."""
    for d, dst in enumerate(deal.dsts):
        names = [n for n in dst.names if n != "B"]
        want = tuple((dst.axis(n).start, dst.axis(n).stop) for n in names)
        got: list[_Rect] = []
        for (s, to), plans in deal.plans.items():
            if to != d:
                continue
            for plan in plans:
                if plan.src != deal.srcs[s] or plan.dst != dst:
                    raise PlanError(f"the plan from {s} to {d} is of other layouts")
                prove(plan)
                if plan.boxes:
                    got.append(_wanted(plan, names, whole=False))
        tokens = [names.index("T")] if dst.is_paged and "T" in names else []
        wide = [_without(rect, tokens) for rect in got]
        _exact(wide, _without(want, tokens), dst)


def _without(rect: _Rect, axes: Iterable[int]) -> _Rect:
    return tuple((0, 1) if i in axes else ends for i, ends in enumerate(rect))


def _wanted(plan: Plan, names: Sequence[str], whole: bool) -> _Rect:
    """Return the coordinates that a plan's chunk has to write, by the definitions."""
    asked = {n: (a, b) for n, a, b in plan.only}
    ends = []
    for n in names:
        there, here = plan.dst.axis(n), plan.src.axis(n)
        if n == "T" and plan.dst.is_paged:
            ends.append((0, plan.tokens))
        elif whole:
            ends.append((there.start, there.stop))
        else:
            low, high = asked.get(n, (0, there.total))
            ends.append(
                (max(there.start, here.start, low), min(there.stop, here.stop, high))
            )
    return tuple(ends)


def _rect(box: Box, src: _Memory, dst: _Memory, plan: Plan, phase: int) -> _Rect:
    """Return the coordinates that a box writes: those it reads, each once."""
    corners, steps = [], []
    for memory, at, part, item, side in (
        (src, box.src_at, box.src_part, plan.src.itemsize, 1),
        (dst, box.dst_at, box.dst_part, plan.dst.itemsize, 2),
    ):
        layout = memory.layout
        begin = phase % layout.page_tokens if layout.is_paged else 0
        if begin:
            at += begin * layout.axis("T").stride
        axes = [(axis[0], axis[side]) for axis in box.axes] + [(box.run, item)]
        corner = memory.coordinates(part, np.array([at]))
        grown = [
            memory.coordinates(part, at + distance * np.arange(count, dtype=np.int64))
            for count, distance in axes
        ]
        first = {n: int(corner[n][0]) for n in corner}
        added = [{n: g[n] - first[n] for n in memory.names} for g in grown]
        _no_carry(memory, first, added)
        if layout.is_paged and (first.get("B") or any(g["B"].any() for g in grown)):
            raise PlanError(f"{plan}: a box leaves its page")
        if begin:
            first["T"] -= begin
        corners.append(first)
        steps.append(added)
    for n in dst.names:
        if corners[0][n] != corners[1][n]:
            raise PlanError(
                f"{plan}: writes {n}={corners[1][n]} from {n}={corners[0][n]}"
            )
        for ours, theirs in zip(*steps, strict=True):
            if not np.array_equal(ours[n], theirs[n]):
                raise PlanError(f"{plan}: {n} is read and written in other orders")
    return _rectangle(dst.names, corners[1], steps[1], plan)


def _no_carry(
    memory: _Memory,
    first: dict[str, int],
    added: Sequence[dict[str, NDArray[np.int64]]],
) -> None:
    for n in memory.names:
        lows = sum(min(0, int(one[n].min())) for one in added)
        highs = sum(max(0, int(one[n].max())) for one in added)
        at = first[n] - memory.starts[n]
        if at + lows < 0 or at + highs >= memory.sizes[n]:
            raise PlanError(f"{memory.layout}: a box runs over the end of {n}")


def _rectangle(
    names: Sequence[str], first: dict[str, int],
    steps: Sequence[dict[str, NDArray[np.int64]]], plan: Plan,
) -> _Rect:  # fmt: skip
    """Return the rectangle that steps reach from a corner, each place of it once."""
    reach = {n: np.zeros(1, np.int64) for n in names}
    for step in steps:
        moved = [n for n in names if step[n].any()]
        count = len(next(iter(step.values())))
        places = np.stack([step[n] for n in moved or names[:1]])
        each = [np.unique(step[n]) for n in moved]
        if (
            len(np.unique(places, axis=1)[0]) != count
            or math.prod(len(e) for e in each) != count
        ):
            raise PlanError(f"{plan}: a step of a box is no rectangle, or repeats")
        for n, values in zip(moved, each, strict=True):
            reach[n] = (reach[n][:, None] + values[None, :]).reshape(-1)
    ends = []
    for n in names:
        values = np.sort(reach[n])
        if not np.array_equal(values, np.arange(len(values)) + values[0]):
            raise PlanError(f"{plan}: {n} is reached with gaps, or twice")
        low = first[n] + int(values[0])
        ends.append((low, low + len(values)))
    return tuple(ends)


def _exact(rects: Sequence[_Rect], want: _Rect, what: object) -> None:
    """Raise unless rectangles are disjoint, inside of a larger one, and fill it."""
    volume = math.prod(max(0, b - a) for a, b in want)
    ends = np.array(rects, np.int64).reshape(len(rects), len(want), 2)
    limits = np.array(want, np.int64)
    if len(rects) and (
        (ends[:, :, 0] < limits[:, 0]).any() or (ends[:, :, 1] > limits[:, 1]).any()
    ):
        raise PlanError(f"{what}: writes more than was asked for")
    total = int((ends[:, :, 1] - ends[:, :, 0]).prod(axis=1).sum())
    for i in range(len(rects) - 1):
        low = np.maximum(ends[i, :, 0], ends[i + 1 :, :, 0])
        high = np.minimum(ends[i, :, 1], ends[i + 1 :, :, 1])
        if (low < high).all(axis=1).any():
            raise PlanError(f"{what}: some elements are written twice")
    if total != volume:
        raise PlanError(f"{what}: writes {total} of {volume} elements")
