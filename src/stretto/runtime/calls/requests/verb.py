"""What a verb is: one description, from which its method and its other forms follow.

Methods are written from it (methods.py), and requests are made by it (request.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


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


VERBS: dict[str, Verb] = {}
"""All of them, by name, in the order in which they are described."""


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
