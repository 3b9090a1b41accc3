"""What a verb is: one description, from which its method and its other forms follow.

Methods are written from it (methods.py), and requests are made by it (request.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

_NO_PART_OF_A_KEY = ("x", "out", "counts", "epilogue", "max_count", "received")


class Content(Enum):
    """What an array of a call holds."""

    WHOLE = "one part, which is everybody's"
    PART = "the rank's own part"
    PARTS = "a part for every rank, or of every rank"
    NOTHING = "there is no such array"


class SumOptions(NamedTuple):
    """What a caller says of a sum: what its bits promise, how it goes over the wire."""

    bits: object = None
    """None: as the communicator says."""
    wire: object = None
    """None: as it is."""


AS_USUAL = SumOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A method of a communicator that all ranks call."""

    name: str
    collective: str
    x: Content
    out: Content
    x_at_root: bool
    """Whether the root alone has an input; and an output."""
    out_at_root: bool
    unequal: bool
    """Whether parts differ in size: the caller says their counts."""
    parameters: tuple[str, ...]
    in_key: tuple[str, ...] = field(init=False)
    """The parameters that a call is known by, beside its arrays and counts."""
    everywhere: tuple[str, ...] = field(init=False)
    """The arrays that every rank has: all can be registered, or none."""

    def __post_init__(self) -> None:
        """Name those arrays."""
        has = ("x", self.x, self.x_at_root), ("out", self.out, self.out_at_root)
        named = (
            name
            for name, holds, at_root in has
            if holds is not Content.NOTHING and not at_root
        )
        object.__setattr__(self, "everywhere", tuple(named))
        rest = (n for n in self.parameters if n not in _NO_PART_OF_A_KEY)
        object.__setattr__(self, "in_key", tuple(rest))


VERBS: dict[str, Verb] = {}
"""All of them, by name, in the order in which they are described."""


def key_of(name: str, x: Any, out: Any, **given: Any) -> tuple[Any, ...]:
    """Return what a call of a verb is known by, as its method says it."""
    return name, id(x), id(out), *(given.get(n) for n in VERBS[name].in_key)


def call_of(
    comm: Any, name: str, x: Any, out: Any, *, root: int = 0, **options: Any
) -> Callable[[], Any]:
    """Return a call by this rank: with the arrays and options that it has there.

    Options that a verb does not know are left out.
    """
    one = VERBS[name.removesuffix("_async")]
    method = getattr(comm, name)
    if one.x is Content.NOTHING:
        return functools.partial(method)
    known = {k: v for k, v in options.items() if k in one.parameters}
    if "root" in one.parameters:
        known["root"] = root
    at_root = comm.rank == root
    if at_root or not one.out_at_root:
        known["out"] = out
    given = x if at_root or not one.x_at_root or out is None else None
    return functools.partial(method, given, **known)
