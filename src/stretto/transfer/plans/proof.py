"""Prove that a plan writes every element it should, once, from the right source.

Nothing of the planner is used. A box is read backwards, by the layouts' own definition:
the byte at which it begins is divided by the strides, the largest first, and what comes
out are coordinates of the tensor. Three things are shown of every box.

1. Its steps do not carry. A step of so many bytes is some places along one axis; where
   it comes to that axis's end exactly, it goes on along the next. So it is a few steps
   along single axes, and coordinates of any place are those of the corner plus what
   each of these adds, as long as they stay inside of the memory, which is shown.
2. Both sides take the same steps along the same axes, from corners with the same
   coordinates. So each element comes from its own place.
3. The steps along each axis are, from the smallest on, as long as what those before
   have reached: so they reach a range of it, each place once: a rectangle in all.

Then the rectangles of all boxes must be disjoint, and together as large as what was to
be written. Within pages a chunk may begin at any token from which it fits: coordinates
of tokens grow by as much on a side, and nothing else changes.

The work grows with the number of boxes and of their axes, not with their elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from stretto.errors import PlanError
from stretto.transfer.layouts import Layout
from stretto.transfer.plans.deal import Deal
from stretto.transfer.plans.plan import Box, Plan

_Rect = tuple[tuple[int, int], ...]
"""For each axis of the destination but pages, from where to where."""
_Step = tuple[str, int, int]
"""An axis, how many places are taken along it, and how far apart they are."""


class _Tensors:
    """A layout, read backwards: from bytes to coordinates of the tensor."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        every = (*layout.parts, *layout.axes)
        self.starts = {a.name: a.start for a in every}
        self.stops = {a.name: a.stop for a in every}
        long = [(a.stride, a.size, a.name) for a in layout.axes if a.size > 1]
        self._axes = sorted(long, reverse=True)

    def corner(self, part: int, offset: int) -> dict[str, int]:
        """Return the coordinates of the element at a byte of a tensor, by axis."""
        if not 0 <= part < self.layout.num_parts:
            raise PlanError(f"{self.layout}: there is no tensor of that number")
        found = dict(self.starts)
        for axis in reversed(self.layout.parts):
            part, value = divmod(part, axis.size)
            found[axis.name] += value
        left = offset
        for stride, size, name in self._axes:
            value, left = divmod(left, stride)
            if not 0 <= value < size:
                break
            found[name] += value
        else:
            if not left:
                return found
        raise PlanError(f"{self.layout}: a box reaches bytes that belong to no element")

    def steps(self, count: int, distance: int) -> list[_Step]:
        """Return so many places, so many bytes apart, as steps along single axes.

        The quickest comes first.
        """
        found: list[_Step] = []
        while count > 1:
            ways = [a for a in self._axes if distance % a[0] == 0]
            ways = [a for a in ways if 0 < distance // a[0] < a[1]]
            if not ways:
                raise PlanError(f"{self.layout}: a box steps between elements")
            stride, size, name = ways[0]
            by, times = distance // stride, count
            if (count - 1) * by >= size:
                times, rest = divmod(size, by)
                if rest or count % times:
                    raise PlanError(f"{self.layout}: a box runs over the end of {name}")
            found.append((name, times, by))
            count, distance = count // times, distance * times
        return found


def prove(plan: Plan, *, whole: bool = False) -> None:
    """Raise PlanError unless a plan does what its layouts and `only` say.

    With `whole`, it must write everything that the destination holds.
    """
    names = [n for n in plan.dst.names if n != "B"]
    src, dst = _Tensors(plan.src), _Tensors(plan.dst)
    if set(src.starts) != set(dst.starts):
        raise PlanError(f"{plan}: its sides have other axes")
    if plan.dst.is_paged:
        most = math.gcd(plan.src.page_tokens, plan.dst.page_tokens)
        if not 1 <= plan.tokens <= most:
            raise PlanError(f"{plan}: a chunk of {plan.tokens} tokens")
    reached: dict[tuple[object, ...], dict[str, int]] = {}
    rects = []
    for box in plan.boxes:
        key = box.axes, box.run
        if key not in reached:
            reached[key] = _reach(box, src, dst, plan)
        rects.append(_rect(box, src, dst, reached[key], names, plan))
    _exact(rects, _wanted(plan, names, whole), plan)


def _reach(box: Box, src: _Tensors, dst: _Tensors, plan: Plan) -> dict[str, int]:
    """Return how many places of each axis a box reaches: a range of each."""
    if box.run < 1 or any(count < 1 for count, _, _ in box.axes):
        raise PlanError(f"{plan}: a box of nothing: {box}")
    taken: dict[str, list[tuple[int, int]]] = {}
    run = box.run, plan.src.itemsize, plan.dst.itemsize
    for count, from_, to in (*box.axes, run):
        for name, times, by in _alike(
            src.steps(count, from_), dst.steps(count, to), plan
        ):
            taken.setdefault(name, []).append((by, times))
    reached = dict.fromkeys(dst.starts, 1)
    for name, steps in taken.items():
        for by, times in sorted(steps):
            if by != reached[name]:
                raise PlanError(f"{plan}: {name} is reached with gaps, or twice")
            reached[name] *= times
    if reached.get("B", 1) != 1:
        raise PlanError(f"{plan}: a box leaves its page")
    return reached


def _alike(ours: list[_Step], theirs: list[_Step], plan: Plan) -> Iterable[_Step]:
    """Yield the steps that both sides take; they are cut where either goes on."""
    a, b = ours[::-1], theirs[::-1]
    while a and b:
        (name, times, by), (other, many, far) = a.pop(), b.pop()
        if (name, by) != (other, far):
            raise PlanError(f"{plan}: {name} is read, and {other} written, or apart")
        both = min(times, many)
        if times % both or many % both:
            raise PlanError(f"{plan}: {name} is read and written in other orders")
        if times > both:
            a.append((name, times // both, by * both))
        if many > both:
            b.append((name, many // both, by * both))
        yield name, both, by
    assert len(a) == len(b) == 0, "as many places are read as are written"


def _rect(
    box: Box, src: _Tensors, dst: _Tensors, reached: dict[str, int],
    names: Sequence[str], plan: Plan,
) -> _Rect:  # fmt: skip
    """Return the coordinates that a box writes: those it reads, each once."""
    from_ = src.corner(box.src_part, box.src_at)
    to = dst.corner(box.dst_part, box.dst_at)
    for memory, corner in ((src, from_), (dst, to)):
        for n, low in corner.items():
            if low + reached[n] > memory.stops[n]:
                raise PlanError(f"{memory.layout}: a box runs over the end of {n}")
    if from_.get("B") or to.get("B"):
        raise PlanError(f"{plan}: a box leaves its page")
    for n in names:
        if from_[n] != to[n]:
            raise PlanError(f"{plan}: writes {n}={to[n]} from {n}={from_[n]}")
    return tuple((to[n], to[n] + reached[n]) for n in names)


def prove_cut(plan: Plan, box: Box, pieces: Sequence[Box]) -> None:
    """Raise PlanError unless pieces move each element of a box's runs once."""
    src, dst = plan.src.itemsize, plan.dst.itemsize
    ends = []
    for piece in pieces:
        more = piece.axes[len(box.axes) :]
        begin, rest = divmod(piece.src_at - box.src_at, src)
        many = more[0][0] if more else 1
        right = (
            (piece.src_part, piece.dst_part) == (box.src_part, box.dst_part)
            and piece.axes[: len(box.axes)] == box.axes
            and (not rest and piece.dst_at - box.dst_at == begin * dst)
            and (not more or more == ((many, piece.run * src, piece.run * dst),))
        )
        if not right or piece.run < 1 or many < 1:
            raise PlanError(f"{plan}: {piece} is no part of {box}")
        ends.append((begin, begin + many * piece.run))
    ends.sort()
    at = [0, *(stop for _, stop in ends)]
    if at[-1] != box.run or at[:-1] != [begin for begin, _ in ends]:
        raise PlanError(f"{plan}: runs of {box.run} elements are cut as {ends}")


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


def prove_tiles(whole: Layout, tiles: Sequence[tuple[Layout, int]]) -> None:
    """Raise PlanError unless memories are all of one fused tensor, each element once.

    A tile is a layout, which says what of the tensor it holds and how far apart that
    lies, and the byte of the tensor at which it begins: of regions `r` that lie in `t`,
    `(r.layout, r.addresses[0] - t.addresses[0])`.
    """
    names = list(whole.names)
    fused, rects = _Tensors(whole), []
    if whole.parts or whole.is_paged:
        raise PlanError(f"{whole}: tiles are of one tensor without pages")
    for layout, begin in tiles:
        if (
            set(layout.names) != set(names)
            or layout.parts
            or layout.dtype != whole.dtype
        ):
            raise PlanError(f"{layout} is no tile of {whole}: other axes, or elements")
        at = fused.corner(0, begin)
        rect = []
        for n in names:
            axis = layout.axis(n)
            if axis.total != whole.axis(n).total or axis.start != at[n]:
                raise PlanError(
                    f"{layout}, at byte {begin} of {whole}: {n} is elsewhere"
                )
            if axis.size > 1 and fused.steps(axis.size, axis.stride) != [
                (n, axis.size, 1)
            ]:
                raise PlanError(f"{layout}, at byte {begin} of {whole}: {n} lies apart")
            rect.append((axis.start, axis.stop))
        rects.append(tuple(rect))
    _exact(rects, tuple((fused.starts[n], fused.stops[n]) for n in names), whole)


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


def _exact(rects: Sequence[_Rect], want: _Rect, what: object) -> None:
    """Raise unless rectangles are disjoint, inside of a larger one, and fill it."""
    volume = math.prod(max(0, b - a) for a, b in want)
    total = 0
    for rect in rects:
        if any(a < x or b > y for (a, b), (x, y) in zip(rect, want, strict=True)):
            raise PlanError(f"{what}: writes more than was asked for")
        total += math.prod(b - a for a, b in rect)
    if not _are_disjoint(rects):
        raise PlanError(f"{what}: some elements are written twice")
    if total != volume:
        raise PlanError(f"{what}: writes {total} of {volume} elements")


def _are_disjoint(rects: Sequence[_Rect]) -> bool:
    """Return whether no two rectangles have a place in common."""
    if len(set(rects)) < len(rects):
        return False
    if len(rects) < 2:
        return True
    ends = np.array(rects, np.int64)
    size = ends[:, :, 1] - ends[:, :, 0]
    if (size == size[0]).all() and not (
        (ends[:, :, 0] - ends[0, :, 0]) % size[0]
    ).any():
        return True  # different places of one grid
    for i, j in itertools.pairwise((*range(0, len(rects), 64), len(rects))):
        low = np.maximum(ends[i:j, None, :, 0], ends[None, :, :, 0])
        high = np.minimum(ends[i:j, None, :, 1], ends[None, :, :, 1])
        if np.count_nonzero((low < high).all(axis=2)) > j - i:  # with more than itself
            return False
    return True
