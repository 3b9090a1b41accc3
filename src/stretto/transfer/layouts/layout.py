"""A layout: the axes of a tensor by name, in the order in which memory holds them.

    L=32 | KV=2 B=1000 T=16 H=8[2:4] D=128 bfloat16

The slowest axis comes first. Axes before `|` are tensors of their own: one for each of
their values. `H=8[2:4]` says that of eight heads this memory holds the third and the
fourth. `B` are pages (blocks) of a paged cache, named by index arrays; `T` are the
tokens in a page. Every other name is free, and means the same on both sides.

An axis may say how many bytes apart its values lie: `H=8@512`. Then all of them do.
The text is the layout's identity: it is what peers are told. `H=8[0:8]` is `H=8`, and
distances of dense memory need not be said; no number has zeros before it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.errors import LayoutError, UnknownNameError
from stretto.program.collectives import storage

PAGES, TOKENS = "B", "T"
MOST_AXES = 8
_MOST_PARTS = 4096
_LONGEST = 2000
_N = "(?:0|[1-9][0-9]{0,14})"
_AXIS = re.compile(
    rf"(?P<name>[A-Za-z][A-Za-z0-9_]*)=(?P<total>{_N})"
    rf"(?:\[(?P<start>{_N}):(?P<stop>{_N})\])?(?:@(?P<stride>{_N}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis: what memory holds of it, and how far apart its values lie."""

    name: str
    total: int
    """How many values the whole tensor has."""
    start: int
    stop: int
    """Which of them lie here: from `start` on, before `stop`."""
    stride: int = 0
    """Bytes between them; 0 for an axis whose values are tensors of their own."""

    @property
    def size(self) -> int:
        """Return how many values lie here."""
        return self.stop - self.start

    def __str__(self) -> str:
        """Return it as a layout's text has it, without the stride."""
        whole = (self.start, self.stop) == (0, self.total)
        part = "" if whole else f"[{self.start}:{self.stop}]"
        return f"{self.name}={self.total}{part}"


class Layout:
    """See the module: `Layout("B=100 T=16 H=8 D=64 float16").shard("H", 1, 4)`."""

    __slots__ = ("_by_name", "axes", "dtype", "itemsize", "parts", "text")

    axes: tuple[Axis, ...]
    """Those within a tensor, the slowest first."""
    parts: tuple[Axis, ...]
    """Those whose values are tensors of their own."""

    def __init__(self, text: str) -> None:
        """Read a layout's text; LayoutError says what is wrong with it."""
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise LayoutError(
                f"a layout is a text of at most {_LONGEST} characters; got a "
                f"{type(text).__name__}"
            )
        *words, dtype = text.split() or [""]
        before = words.index("|") if "|" in words else 0
        try:
            self.itemsize = storage(dtype).itemsize
        except UnknownNameError as e:
            raise LayoutError(
                f"layout {text!r}: its last word is the type of its elements; {e}"
            ) from None
        self.dtype = dtype
        parts = [_axis(word, text) for word in words[:before]]
        axes = [_axis(word, text) for word in words[before + ("|" in words) :]]
        self._set(parts, axes, text)

    def _set(self, parts: Sequence[Axis], axes: Sequence[Axis], said: str) -> None:
        named = [*parts, *axes]
        self._by_name = {axis.name: axis for axis in named}
        why = _fault(parts, axes, self._by_name)
        if not why and any(axis.stride for axis in axes):
            if not all(axis.stride for axis in axes):
                why = "some axes say how far apart they are, some do not; want all"
        elif not why:
            axes = _dense(axes, self.itemsize)
            self._by_name = {axis.name: axis for axis in (*parts, *axes)}
        why = why or _overlap(axes, self.itemsize)
        if why:
            raise LayoutError(f"layout {said!r}: {why}")
        self.parts, self.axes = tuple(parts), tuple(axes)
        self.text = self._write()

    def _write(self) -> str:
        dense = tuple(_dense(self.axes, self.itemsize)) == self.axes
        within = [str(a) if dense else f"{a}@{a.stride}" for a in self.axes]
        before = [*map(str, self.parts), "|"] if self.parts else []
        return " ".join([*before, *within, self.dtype])

    def _with(self, axes: Iterable[Axis]) -> Layout:
        new = object.__new__(Layout)
        new.dtype, new.itemsize = self.dtype, self.itemsize
        changed = {axis.name: axis for axis in axes}
        parts = [changed.get(axis.name, axis) for axis in self.parts]
        within = [changed.get(axis.name, axis) for axis in self.axes]
        new._set(parts, within, self.text)
        return new

    def hold(self, name: str, start: int, stop: int) -> Layout:
        """Return the layout of a memory that holds this range of an axis only."""
        axis = self.axis(name)
        if name in (PAGES, TOKENS):
            raise LayoutError(f"layout {self}: pages and their tokens are not divided")
        dense = self._is_dense
        stride = 0 if dense else axis.stride
        one = Axis(name=name, total=axis.total, start=start, stop=stop, stride=stride)
        others = [a for a in (*self.parts, *self.axes) if a.name != name]
        return self._with([*map(_bare, others), one] if dense else [one])

    def paged(self, count: int) -> Layout:
        """Return the layout of a memory that holds so many pages."""
        axis = self.axis(PAGES)
        pages = Axis(name=PAGES, total=count, start=0, stop=count, stride=axis.stride)
        if not self._is_dense:
            return self._with([pages])
        return self._with([*map(_bare, (*self.parts, *self.axes)), _bare(pages)])

    def shard(self, name: str, rank: int, num_ranks: int) -> Layout:
        """Return what one of `num_ranks` holds of an axis that is dealt out evenly.

        With more ranks than values, several hold the same one, as tensor parallelism
        does with few KV heads.
        """
        total = self.axis(name).total
        if not 0 <= rank < num_ranks:
            raise LayoutError(f"layout {self}: shard {rank} of {num_ranks} of {name}")
        if total % num_ranks and num_ranks % total:
            raise LayoutError(
                f"layout {self}: {name}={total} cannot be dealt out to {num_ranks}; "
                f"want a number that divides {total}, or a multiple of it"
            )
        if num_ranks > total:
            at = rank * total // num_ranks
            return self.hold(name, at, at + 1)
        each = total // num_ranks
        return self.hold(name, rank * each, (rank + 1) * each)

    def strided(self, strides: Sequence[int]) -> Layout:
        """Return the same axes at other distances, in bytes."""
        if len(strides) != len(self.axes):
            raise LayoutError(
                f"layout {self}: {len(strides)} strides; want {len(self.axes)}"
            )
        made = []
        for a, given in zip(self.axes, strides, strict=True):
            if given < 1 and a.size > 1:
                raise LayoutError(
                    f"layout {self}: values of {a.name}, {given} bytes apart, overlap"
                )
            step = int(given) if given > 0 else self.itemsize
            made.append(
                Axis(
                    name=a.name, total=a.total, start=a.start, stop=a.stop, stride=step
                )
            )
        return self._with(made)

    @property
    def packed(self) -> Layout:
        """Return the same axes, with nothing between their values."""
        parts = [str(axis) for axis in self.parts]
        axes = [str(axis) for axis in self.axes]
        return Layout(" ".join([*parts, *(["|"] if parts else []), *axes, self.dtype]))

    @property
    def storage(self) -> np.dtype[Any]:
        """Return how NumPy stores the elements."""
        return storage(self.dtype)

    @property
    def _is_dense(self) -> bool:
        return "@" not in self.text

    def axis(self, name: str) -> Axis:
        """Return an axis by its name."""
        found = self._by_name.get(name)
        if found is None:
            raise LayoutError(
                f"layout {self} has no axis {name!r}; it has {', '.join(self._by_name)}"
            )
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all axes, the slowest first."""
        return tuple(self._by_name)

    @property
    def is_paged(self) -> bool:
        """Return whether pages of it are named by index arrays."""
        return PAGES in self._by_name

    @property
    def num_pages(self) -> int:
        """Return how many pages there are here; 1 where it is not paged."""
        return self._by_name[PAGES].size if self.is_paged else 1

    @property
    def page_tokens(self) -> int:
        """Return how many tokens a page holds; 1 where there is no such axis."""
        return self._by_name[TOKENS].size if TOKENS in self._by_name else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of each tensor here."""
        return tuple(axis.size for axis in self.axes)

    @property
    def num_parts(self) -> int:
        """Return how many tensors there are here."""
        return math.prod(axis.size for axis in self.parts)

    @property
    def part_bytes(self) -> int:
        """Return how many bytes each tensor spans."""
        last = sum((a.size - 1) * a.stride for a in self.axes)
        return last + self.itemsize

    def __str__(self) -> str:
        """Return its text."""
        return self.text

    def __repr__(self) -> str:
        """Return what makes it."""
        return f"Layout({self.text!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether the texts are equal."""
        return isinstance(other, Layout) and other.text == self.text

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(self.text)


@functools.lru_cache(maxsize=256)
def _axis(word: str, text: str) -> Axis:
    found = _AXIS.fullmatch(word)
    if found is None:
        raise LayoutError(
            f"layout {text!r}: {word!r} is no axis; want NAME=SIZE, such as H=8, "
            "H=8[2:4] for a part of it, or H=8@512 for values 512 bytes apart"
        )
    said: Mapping[str, str | None] = found.groupdict()
    total = int(said["total"] or 0)
    stop = total if said["stop"] is None else int(said["stop"])
    return Axis(
        name=str(said["name"]),
        total=total,
        start=int(said["start"] or 0),
        stop=stop,
        stride=int(said["stride"] or 0),
    )


def _bare(axis: Axis) -> Axis:
    return Axis(name=axis.name, total=axis.total, start=axis.start, stop=axis.stop)


def _dense(axes: Sequence[Axis], itemsize: int) -> list[Axis]:
    stride, made = itemsize, []
    for a in reversed(axes):
        made.append(
            Axis(name=a.name, total=a.total, start=a.start, stop=a.stop, stride=stride)
        )
        stride *= a.size
    return made[::-1]


def _fault(
    parts: Sequence[Axis], axes: Sequence[Axis], named: Mapping[str, Axis]
) -> str:
    """Return what is wrong with the axes, or nothing."""
    every = [*parts, *axes]
    if not axes or len(every) > MOST_AXES:
        return f"{len(every)} axes; want 1 to {MOST_AXES}, at least one in each tensor"
    if len(named) < len(every):
        return "an axis is named twice"
    for axis in every:
        if not 0 <= axis.start < axis.stop <= axis.total:
            return f"{axis} holds nothing, or what is not there"
    for axis in parts:
        if axis.name in (PAGES, TOKENS) or axis.stride:
            return f"{axis.name} cannot be tensors of its own, or be apart"
    if math.prod(axis.size for axis in parts) > _MOST_PARTS:
        return f"more than {_MOST_PARTS} tensors"
    for name in (PAGES, TOKENS):
        if name in named and named[name].size < named[name].total:
            return f"{named[name]}: pages and their tokens are not divided"
    return ""


def _overlap(axes: Sequence[Axis], itemsize: int) -> str:
    """Return why two elements would share bytes, or nothing."""
    need = itemsize
    for axis in sorted(axes, key=lambda a: (a.stride, -a.size)):
        if axis.size > 1:
            if axis.stride < need:
                return f"values of {axis.name}, {axis.stride} bytes apart, overlap"
            need = axis.stride * axis.size
    return "" if need < 1 << 62 else "it is larger than any memory"
