"""From two layouts to the boxes of bytes that go from one to the other.

A box is a strided, N-dimensional array on both sides: the same elements in the same
order, at other distances. A plan has few of them, whatever the number of pages: they
are those of one *chunk*, the tokens that a page here and a page there have in common.
Pages are named when a plan runs, by arrays of indices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.errors import CallError, LayoutError
from stretto.transfer.layouts import Axis, Layout
from stretto.transfer.layouts.layout import PAGES, TOKENS

Only = tuple[tuple[str, int, int], ...]
"""Ranges of axes: of each its name, the first value and the one after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Elements that lie in one tensor on each side."""

    src_part: int
    dst_part: int
    src_at: int
    """Byte of the first element, from where the chunk begins."""
    dst_at: int
    axes: tuple[tuple[int, int, int], ...]
    """The slowest first: how many, bytes apart at the source, at the destination."""
    run: int
    """Elements that lie one after the other on both sides, at each place."""

    @property
    def rows(self) -> int:
        """Return how many runs there are."""
        return math.prod(count for count, _, _ in self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRun:
    """Boxes, and the byte at which each chunk begins in every tensor."""

    boxes: tuple[Box, ...]
    src_at: NDArray[np.int64]
    dst_at: NDArray[np.int64]
    nbytes: int
    """Bytes that are stored at the destination."""
    first: int = 0
    """The first token of chunk 0."""
    tokens: int = 1
    """Tokens of a chunk."""

    def pages(
        self, layout: Layout, named: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        """Return the page in which each chunk lies on a side; -1: it has no pages."""
        chunks = np.arange(len(self.src_at), dtype=np.int64)
        if not layout.is_paged:
            return np.full(len(chunks), -1, np.int64)
        every = np.arange(layout.num_pages) if named is None else named
        found: NDArray[np.int64] = np.asarray(every)[
            (self.first + self.tokens * chunks) // layout.page_tokens
        ].astype(np.int64)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What goes from memory of one layout to memory of another."""

    src: Layout
    dst: Layout
    only: Only
    tokens: int
    """Tokens of a chunk."""
    boxes: tuple[Box, ...]

    @property
    def chunk_bytes(self) -> int:
        """Return how many bytes a chunk stores at the destination."""
        elements = sum(box.rows * box.run for box in self.boxes)
        return elements * self.dst.itemsize

    def runs(
        self, src_pages: ArrayLike | None = None, dst_pages: ArrayLike | None = None,
        tokens: int | None = None, *, of: Callable[..., Plan] | None = None,
    ) -> tuple[BoxRun, ...]:  # fmt: skip
        """Return what is to be copied for these pages, in the order of their tokens.

        `tokens` are needed where the pages of one side hold more than the other's, or
        the last of them is not full. `of` makes the plan of what is left over.
        """
        src = _pages(self.src, src_pages, "source")
        dst = _pages(self.dst, dst_pages, "destination")
        seen = np.zeros(self.dst.num_pages, np.bool_)
        seen[dst] = True
        if np.count_nonzero(seen) < len(dst):
            raise CallError("destination: a page is named twice; want each once")
        holds = len(src) * self.src.page_tokens, len(dst) * self.dst.page_tokens
        if tokens is None:
            if holds[0] != holds[1]:
                raise CallError(
                    f"{len(src)} pages of {self.src.page_tokens} tokens to {len(dst)} "
                    f"of {self.dst.page_tokens}; pass tokens= or pages of as many"
                )
            tokens = holds[0]
        if not 0 <= tokens <= min(holds):
            raise CallError(
                f"tokens={tokens}; the pages hold {holds[0]} and {holds[1]}"
            )
        if not self.boxes:
            return ()
        whole, rest = divmod(tokens, self.tokens)
        found = []
        if whole:
            found.append(self._run(src, dst, 0, whole))
        if rest:
            tail = (of or plan)(self.src, self.dst, only=self.only, tokens=rest)
            found.append(tail._run(src, dst, whole * self.tokens, 1))
        return tuple(found)

    def _run(
        self, src: NDArray[np.int64], dst: NDArray[np.int64], first: int, count: int
    ) -> BoxRun:
        token = first + self.tokens * np.arange(count, dtype=np.int64)
        return BoxRun(
            boxes=self.boxes,
            src_at=_begin(self.src, src, token),
            dst_at=_begin(self.dst, dst, token),
            nbytes=count * self.chunk_bytes,
            first=first,
            tokens=self.tokens,
        )

    def __str__(self) -> str:
        """Return what it moves, for people."""
        total = sum(box.rows for box in self.boxes)
        return (
            f"{self.src} -> {self.dst}: {len(self.boxes)} boxes, {total} runs and "
            f"{self.chunk_bytes} bytes for every {self.tokens} tokens"
        )


def _pages(layout: Layout, given: ArrayLike | None, side: str) -> NDArray[np.int64]:
    """Return page numbers, when they are some."""
    if not layout.is_paged:
        if given is not None:
            raise CallError(f"{side}: {layout} has no pages to be named")
        return np.zeros(1, np.int64)
    if given is None:
        return np.arange(layout.num_pages, dtype=np.int64)
    pages = np.asarray(given)
    if pages.ndim != 1 or (pages.size and pages.dtype.kind not in "iu"):
        raise CallError(
            f"{side}: pages are a list of whole numbers; got {pages.dtype} of shape "
            f"{pages.shape}"
        )
    pages = pages.astype(np.int64)
    if pages.size and not (pages.min() >= 0 and pages.max() < layout.num_pages):
        wrong = pages[(pages < 0) | (pages >= layout.num_pages)][0]
        raise CallError(f"{side}: page {wrong}; {layout} has {layout.num_pages}")
    return pages


def _begin(
    layout: Layout, pages: NDArray[np.int64], token: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the byte at which the chunks of these first tokens begin."""
    if not layout.is_paged:
        return np.zeros(len(token), np.int64)
    each = layout.page_tokens
    begin = pages[token // each] * layout.axis(PAGES).stride
    if TOKENS in layout.names:
        begin = begin + token % each * layout.axis(TOKENS).stride
    return begin


def plan(
    src: Layout, dst: Layout, *, only: Mapping[str, tuple[int, int]] | Only = (),
    tokens: int | None = None,
) -> Plan:  # fmt: skip
    """Return what memory of `src` has for memory of `dst`: nothing, if they are apart.

    `only` are ranges of axes, such as {"L": (3, 4)} for one layer. `tokens` of a chunk
    are, by default, as many as pages of both sides have in common.
    """
    if isinstance(only, Mapping):
        only = tuple((name, int(a), int(b)) for name, (a, b) in only.items())
    return _plan(src, dst, only, tokens)


@functools.lru_cache(maxsize=1024)
def _plan(src: Layout, dst: Layout, only: Only, tokens: int | None) -> Plan:
    _refuse(src, dst, only)
    if tokens is None:
        tokens = math.gcd(src.page_tokens, dst.page_tokens) if src.is_paged else 1
    overlap = dict(_overlap(src, dst, only))
    if src.is_paged and TOKENS in overlap:
        overlap[TOKENS] = (0, tokens)
    boxes: tuple[Box, ...] = ()
    if all(start < stop for start, stop in overlap.values()):
        boxes = tuple(_boxes(src, dst, overlap))
    return Plan(src=src, dst=dst, only=only, tokens=tokens, boxes=boxes)


def _refuse(src: Layout, dst: Layout, only: Only) -> None:
    """Raise unless both are memories of one tensor."""

    def said(why: str) -> LayoutError:
        return LayoutError(f"from {src}\n  to {dst}:\n  {why}")

    apart = set(src.names) ^ set(dst.names)
    if TOKENS in apart and src.is_paged and dst.is_paged:
        raise said("one has tokens in its pages, the other has not; name them in both")
    if apart:
        raise said(f"only one has {', '.join(sorted(apart))}; want the same axes")
    for name in src.names:
        ours, theirs = src.axis(name).total, dst.axis(name).total
        if name == PAGES or (name == TOKENS and src.is_paged):
            continue
        if ours != theirs:
            raise said(f"{name}={ours} to {name}={theirs}; want one tensor on both")
    if src.dtype != dst.dtype and not {src.dtype, dst.dtype} <= _CONVERTED:
        raise said(
            f"{src.dtype} does not become {dst.dtype}; converted are "
            f"{', '.join(sorted(_CONVERTED))}"
        )
    for name, start, stop in only:
        axis = src.axis(name)
        if name in (PAGES, TOKENS):
            raise said(f"{name} is not picked by range; name pages instead")
        if not 0 <= start < stop <= axis.total:
            raise said(f"only {name} {start}:{stop}; want a range within {axis.total}")


_CONVERTED = frozenset(
    ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
)


def _overlap(
    src: Layout, dst: Layout, only: Only
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield which values of each axis both memories hold, and are asked for."""
    asked = {name: (start, stop) for name, start, stop in only}
    for name in dst.names:
        if name == PAGES:
            continue
        a, b = src.axis(name), dst.axis(name)
        low, high = asked.get(name, (0, a.total))
        yield name, (max(a.start, b.start, low), min(a.stop, b.stop, high))


def _boxes(
    src: Layout, dst: Layout, overlap: Mapping[str, tuple[int, int]]
) -> Iterator[Box]:
    """Yield a box for every pair of tensors that have something in common."""
    apart = [a.name for a in (*dst.parts, *src.parts)]
    apart = list(dict.fromkeys(apart))
    inner = [name for name in overlap if name not in apart]
    src_at = sum(
        (overlap[n][0] - src.axis(n).start) * src.axis(n).stride for n in inner
    )
    dst_at = sum(
        (overlap[n][0] - dst.axis(n).start) * dst.axis(n).stride for n in inner
    )
    steps = [
        (overlap[n][1] - overlap[n][0], src.axis(n).stride, dst.axis(n).stride)
        for n in inner
    ]
    axes, run = _merged(steps, src.itemsize, dst.itemsize)
    for values in itertools.product(*(range(*overlap[n]) for n in apart)):
        at = dict(zip(apart, values, strict=True))
        yield Box(
            src_part=_part(src.parts, at),
            dst_part=_part(dst.parts, at),
            src_at=src_at + _within(src.axes, at),
            dst_at=dst_at + _within(dst.axes, at),
            axes=axes,
            run=run,
        )


def _part(parts: Sequence[Axis], at: Mapping[str, int]) -> int:
    """Return the number of the tensor that has these values."""
    found = 0
    for axis in parts:
        found = found * axis.size + at[axis.name] - axis.start
    return found


def _within(axes: Sequence[Axis], at: Mapping[str, int]) -> int:
    """Return how far into its tensor these values are."""
    return sum((at[a.name] - a.start) * a.stride for a in axes if a.name in at)


def _merged(
    steps: list[tuple[int, int, int]], src_item: int, dst_item: int
) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """Return the same places with as few axes as can be, and the length of a run.

    The order is the destination's: what is stored, is stored in one direction.
    """
    left = sorted((s for s in steps if s[0] > 1), key=lambda s: (-s[2], -s[1]))
    axes: list[tuple[int, int, int]] = []
    for count, src, dst in left:
        if axes and axes[-1][1:] == (count * src, count * dst):
            count *= axes.pop()[0]
        axes.append((count, src, dst))
    run = 1
    if axes and axes[-1][1:] == (src_item, dst_item):
        run = axes.pop()[0]
    return tuple(axes), run
