"""Where each tensor of a subscriber comes from: names, parts, put together how.

    "model.norm.weight"                          all of one tensor
    Part("q.weight", axis=0, rank=1, of=4)       a shard of one
    Cat(q, k, v)                                 one below the other: fused QKV, gate/up
    Stack(*experts)                              along a new first axis

`names=` is a mapping from a subscriber's names to these, a function of a name, or one
of the ready ones below. A name that is not mapped is its own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import CallError, LayoutError, UnknownNameError
from stretto.weights.boxes import Box, whole

__all__ = ["Cat", "Part", "Stack", "Tile", "ready_names", "spec_of", "vllm_llama"]

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A box of a source's tensor that is a box of a tensor here."""

    source: str
    box: Box
    at: Box
    """Where it goes, in the numbers of the tensor that lies here."""
    new_axes: tuple[int, ...] = ()
    """The axes of `at` that the source does not have; each is one value long."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one source tensor: by default all; or a shard, or ranges of axes.

    A shard of fewer units (heads) than ranks is held by several of these.
    """

    name: str
    axis: int = 0
    rank: int = 0
    of: int = 1
    units: int = 0
    """How many pieces cannot be divided, such as KV heads; 0: each value is one."""
    box: Box | None = None

    def tiles(self, shapes: Shapes) -> tuple[tuple[int, ...], list[Tile]]:
        """Return its shape and what it consists of."""
        shape = shapes[self.name]
        box = list(self.box or whole(shape))
        if len(box) != len(shape):
            raise LayoutError(
                f"{self.name!r}: ranges {self.box} of a tensor of shape {shape}"
            )
        if self.of > 1:
            box[self.axis] = self._shard(shape)
        extent = tuple(b - a for a, b in box)
        return extent, [Tile(source=self.name, box=tuple(box), at=whole(extent))]

    def _shard(self, shape: tuple[int, ...]) -> tuple[int, int]:
        if not 0 <= self.rank < self.of or not -len(shape) <= self.axis < len(shape):
            raise LayoutError(
                f"{self.name!r}: shard {self.rank} of {self.of} of axis {self.axis} of "
                f"shape {shape}"
            )
        size = shape[self.axis]
        units = self.units or size
        if size % units or (units % self.of and self.of % units):
            raise LayoutError(
                f"{self.name!r}: {size} values in {units} pieces cannot be dealt out "
                f"to {self.of}; want a number that divides {units}, or a multiple of it"
            )
        first, each = self.rank * units // self.of, size // units
        return first * each, (first + max(1, units // self.of)) * each

    def sources(self) -> Iterator[str]:
        """Yield the names that it needs."""
        yield self.name


class _Several:
    def __init__(self, *parts: Part | Cat | Stack | str, axis: int = 0) -> None:
        if not parts:
            raise LayoutError(f"{type(self).__name__} of nothing")
        self.parts = tuple(Part(p) if isinstance(p, str) else p for p in parts)
        self.axis = axis

    def sources(self) -> Iterator[str]:
        """Yield the names that it needs."""
        for part in self.parts:
            yield from part.sources()

    def _axis_of(self, axes: int) -> int:
        """Return the axis, of so many, counted from the first."""
        if not -axes <= self.axis < axes:
            raise LayoutError(f"{self}: no axis {self.axis} of {axes}")
        return self.axis % axes

    def __repr__(self) -> str:
        """Return what makes it."""
        inner = ", ".join(map(repr, self.parts))
        return f"{type(self).__name__}({inner}, axis={self.axis})"


class Cat(_Several):
    """Parts one behind the other along an axis: fused QKV, gate and up."""

    def tiles(self, shapes: Shapes) -> tuple[tuple[int, ...], list[Tile]]:
        """Return its shape and what it consists of."""
        found: list[Tile] = []
        extent: tuple[int, ...] = ()
        begin = 0
        for part in self.parts:
            shape, tiles = part.tiles(shapes)
            axis = self._axis_of(len(shape))
            whole_shape = (*shape[:axis], begin + shape[axis], *shape[axis + 1 :])
            if extent and extent != (*shape[:axis], begin, *shape[axis + 1 :]):
                raise LayoutError(
                    f"{self}: shapes {extent} and {shape} differ elsewhere than along "
                    f"axis {self.axis}"
                )
            for tile in tiles:
                start, stop = tile.at[axis]
                moved = start + begin, stop + begin
                at = (*tile.at[:axis], moved, *tile.at[axis + 1 :])
                found.append(replace(tile, at=at))
            extent, begin = whole_shape, whole_shape[axis]
        return extent, found


class Stack(_Several):
    """Parts along a new axis: experts that are packed into one tensor."""

    def tiles(self, shapes: Shapes) -> tuple[tuple[int, ...], list[Tile]]:
        """Return its shape and what it consists of."""
        found: list[Tile] = []
        some = [part.tiles(shapes) for part in self.parts]
        each = some[0][0]
        axis = self._axis_of(len(each) + 1)
        for nth, (shape, tiles) in enumerate(some):
            if shape != each:
                raise LayoutError(f"{self}: shapes {each} and {shape} differ")
            for tile in tiles:
                at = (*tile.at[:axis], (nth, nth + 1), *tile.at[axis:])
                new_axes = [axis, *(a + (a >= axis) for a in tile.new_axes)]
                found.append(replace(tile, at=at, new_axes=tuple(sorted(new_axes))))
        return (*each[:axis], len(self.parts), *each[axis:]), found


Spec = Part | Cat | Stack
Names = Mapping[str, Any] | Callable[[str], Any] | str | None


def spec_of(names: Names, name: str, **how: Any) -> Spec:
    """Return where a tensor comes from; `how` is for the names that are ready."""
    found: Any = None
    if isinstance(names, str):
        maker = ready_names().get(names)
        if maker is None:
            raise UnknownNameError.among("way to map names", names, ready_names())
        takes = [*inspect.signature(maker).parameters][1:]
        _require_known(how, takes, f"names={names!r}")
        found = maker(name, **how)
    else:
        _require_known(how, [], "names= that is no known way")
        if callable(names):
            found = names(name)
        elif isinstance(names, Mapping):
            found = names.get(name)
        elif names is not None:
            raise CallError(
                f"names={names!r:.80}; want a mapping, a function of a name, or one of "
                f"{sorted(ready_names())}"
            )
    if found is None:
        found = name
    if isinstance(found, str):
        return Part(found)
    if isinstance(found, (list, tuple)):
        return Cat(*found)
    if not isinstance(found, (Part, Cat, Stack)):
        raise LayoutError(
            f"{name!r} is mapped to a {type(found).__name__}; want a name, a list of "
            "names one below the other, Part, Cat or Stack"
        )
    return found


def _require_known(how: Mapping[str, Any], takes: list[str], what: str) -> None:
    """Raise for what nobody has asked for: most often a name that is spelt wrong."""
    if wrong := sorted({*how} - {*takes}):
        raise CallError(
            f"subscribe: {wrong[0]}= is no argument of it, and none with {what}"
            + f", which takes {', '.join(takes)}" * bool(takes)
        )


def ready_names() -> dict[str, Callable[..., Any]]:
    """Return the maps of names that are known by name."""
    return {"vllm/llama": vllm_llama}


def vllm_llama(
    name: str, *, rank: int = 0, of: int = 1, kv_heads: int = 0, experts: int = 0,
    tied: bool = False,
) -> Spec:  # fmt: skip
    """Return where a tensor of vLLM's Llama, Qwen or Mixtral comes from.

    `rank` of `of` is the tensor-parallel rank. The source has the checkpoint's names.
    """
    parent, _, leaf = name.rpartition(".")
    base, _, kind = parent.rpartition(".")

    def rows(there: str, units: int = 0) -> Part:
        return Part(f"{base}.{there}.{leaf}", axis=0, rank=rank, of=of, units=units)

    if kind == "qkv_proj":
        return Cat(rows("q_proj"), rows("k_proj", kv_heads), rows("v_proj", kv_heads))
    if kind == "gate_up_proj":
        return Cat(rows("gate_proj"), rows("up_proj"))
    if kind in ("o_proj", "down_proj"):
        is_cut = leaf in ("weight", "weight_scale_inv")  # a bias is added once
        return Part(name, axis=1, rank=rank, of=of) if is_cut else Part(name)
    if kind == "lm_head" and tied:
        name = f"{base}.model.embed_tokens.{leaf}".lstrip(".")
        return Part(name, rank=rank, of=of)
    if kind in ("embed_tokens", "lm_head"):
        return Part(name, axis=0, rank=rank, of=of)
    packed = re.fullmatch(r"(.*experts)\.(w13|w2)_(weight|weight_scale_inv)", name)
    if packed:
        return _packed(packed[1], packed[2], packed[3], rank, of, experts)
    return Part(name)


def _packed(
    base: str, which: str, leaf: str, rank: int, of: int, experts: int
) -> Stack:
    def part(nth: int, there: str, axis: int) -> Part:
        return Part(f"{base}.{nth}.{there}.{leaf}", axis=axis, rank=rank, of=of)

    if which == "w2":
        return Stack(*(part(nth, "down_proj", 1) for nth in range(experts)))
    both = ([part(n, "gate_proj", 0), part(n, "up_proj", 0)] for n in range(experts))
    return Stack(*(Cat(*two) for two in both))
