"""What one rank holds of the weights: names, whole shapes, parts, types; and its text.

Tensors that are alike (one shape, one part, one type, lying alike) are a group, and one
region of an engine: a model of a thousand tensors is a dozen transfers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stretto.errors import CallError, LayoutError
from stretto.transfer import Layout
from stretto.weights.boxes import Box, whole, within

__all__ = ["NUMBERED", "Group", "Held", "Manifest", "grouped", "region_name"]

NUMBERED = "N"
"""The axis of a group whose values are its tensors."""
_MOST_ALIKE = 1024
_MOST_AXES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A part of a tensor that a rank holds: `box` of a tensor of a shape."""

    name: str
    shape: tuple[int, ...]
    box: Box
    dtype: str

    def __post_init__(self) -> None:
        """Refuse a part that is not there."""
        if len(self.shape) != len(self.box) or not within(self.box, whole(self.shape)):
            raise LayoutError(
                f"{self.name!r}: {list(self.box)} is no part of shape {self.shape}"
            )
        if len(self.shape) > _MOST_AXES:
            raise LayoutError(
                f"{self.name!r}: {len(self.shape)} axes; at most {_MOST_AXES} are taken"
            )

    @property
    def extent(self) -> tuple[int, ...]:
        """Return the shape of the part."""
        return tuple(stop - start for start, stop in self.box)

    def layout(self, count: int) -> Layout:
        """Return the layout of a group of so many such parts."""
        axes = [
            f"D{i}={size}[{start}:{stop}]"
            for i, (size, (start, stop)) in enumerate(
                zip(self.shape, self.box, strict=True)
            )
        ] or ["D0=1"]
        return Layout(f"{NUMBERED}={count} | {' '.join(axes)} {self.dtype}")


Group = tuple[Held, ...]
"""Parts that are alike but for their names, in the order in which a region has them."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that a rank holds. The text is its identity."""

    groups: tuple[Group, ...]

    @cached_property
    def text(self) -> str:
        """Return it as JSON, always the same for the same."""
        rows = [([h.name for h in g], g[0].shape, g[0].box, g[0].dtype)
                for g in self.groups]  # fmt: skip
        return json.dumps({"weights": 1, "groups": rows}, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """Return what tells it from others."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """Return its parts, in the order of groups: that of hashes."""
        return tuple(itertools.chain(*self.groups))

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Return the manifest of a text; CallError: it is none."""
        try:
            said = json.loads(text)
            if said["weights"] != 1:
                raise ValueError(f"of kind {said['weights']!r}")
            made = cls(groups=tuple(_group(*row) for row in said["groups"]))
            for group in made.groups:
                group[0].layout(len(group))
        except (ValueError, TypeError, LookupError, LayoutError) as e:
            raise CallError(f"a manifest that makes no sense: {str(e)[:200]}") from None
        return made


def _group(names: Any, shape: Any, box: Any, dtype: Any) -> Group:
    """Return a group as it is told."""
    sizes = tuple(map(int, shape))
    part = tuple((int(a), int(b)) for a, b in box)
    return tuple(
        Held(name=str(name), shape=sizes, box=part, dtype=str(dtype)) for name in names
    )


def grouped(
    parts: Sequence[Held], apart: Sequence[Any] = ()
) -> tuple[Manifest, tuple[int, ...]]:
    """Return a manifest of parts, and the number of the part at each of its places.

    `apart` says of each what else keeps two from being alike, such as how they lie.
    A part that is given twice is taken once.
    """
    alike: dict[Any, list[int]] = {}
    seen: set[tuple[str, Box]] = set()
    for i, part in enumerate(parts):
        if (part.name, part.box) in seen:
            continue
        seen.add((part.name, part.box))
        key = part.shape, part.box, part.dtype, apart[i] if apart else None
        nth = 0
        while len(alike.setdefault((*key, nth), [])) == _MOST_ALIKE:
            nth += 1
        alike[(*key, nth)].append(i)
    order = tuple(i for numbers in alike.values() for i in numbers)
    groups = tuple(tuple(parts[i] for i in numbers) for numbers in alike.values())
    return Manifest(groups=groups), order


def region_name(name: str, copy: str, part: object) -> str:
    """Return the name by which peers reach a part of a rank's copy of the weights."""
    return f"weights/{name}/{copy}/{part}"
