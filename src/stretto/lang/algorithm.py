"""The decorator that makes an algorithm of a function over all ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stretto import collectives
from stretto.collectives import Run, Shape
from stretto.errors import CallError, ProgramError
from stretto.ir import Program, freeze, undisturbed
from stretto.lang.hand import Handwritten
from stretto.lang.ranks import Ranks, Sides, Trace

__all__ = ["Algorithm", "Requires", "algorithm", "power_of_two"]

Requires: TypeAlias = Callable[[int], str | None]
"""Return why a number of ranks is not served, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class Algorithm:
    """A catalogued builder of programs."""

    name: str
    function: Callable[..., None]
    split: int = 1
    requires: Requires | None = None
    schedule: str = ""
    """Words of the schedule that its author wants where nobody pins another."""
    kernel: Handwritten | None = None
    """A kernel written by hand that does the same on GPUs."""
    members: tuple[int, ...] = ()
    """The ranks that contribute and receive; none named: all."""

    @property
    def collective(self) -> str:
        """Return the collective that the name says."""
        return self.name.split("/", 1)[0]

    @property
    def about(self) -> str:
        """Return the first line of the author's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @property
    def root(self) -> int:
        """Return the root where nobody names one: the default of the function's."""
        named = inspect.signature(self.function).parameters.get("root")
        default = None if named is None else named.default
        return default if isinstance(default, int) else 0

    def refuses(self, num_ranks: int) -> str | None:
        """Return why this number of ranks is not served, or None."""
        if num_ranks < 1:
            return f"{self.name}: {num_ranks} ranks; want at least 1"
        if self.members and self.members[-1] >= num_ranks:
            return f"{self.name}: {num_ranks} ranks; its members are {self.members}"
        reason = self.requires(num_ranks) if self.requires else None
        return f"{self.name}: {reason}" if reason else None

    @undisturbed
    def build(
        self, num_ranks: int, *, split: int | None = None, **params: object
    ) -> Program:
        """Run the author's function and return what it recorded.

        `members` is a parameter of every algorithm: its function then sees all ranks,
        of which only the members have an input and an output.
        """
        if reason := self.refuses(num_ranks):
            raise ProgramError(reason)
        kind = collectives.get(self.collective)
        if kind.rooted:
            params.setdefault("root", self.root)
        accepted = inspect.signature(self.function).parameters
        own = {k: v for k, v in params.items() if k != "members"}
        if self.members:
            params.setdefault("members", self.members)
        if unknown := own.keys() - accepted.keys():
            raise CallError(
                f"{self.name} takes no {', '.join(sorted(unknown))}; "
                f"it takes {', '.join(list(accepted)[1:]) or 'no parameters'}"
            )
        split = self.split if split is None else split
        shape = Shape(num_ranks=num_ranks, split=split, params=freeze(params))
        kind.check(shape)
        sides = Sides(
            tuple(_chunks(kind.input_runs(shape, r)) for r in range(num_ranks)),
            tuple(_chunks(kind.output_runs(shape, r)) for r in range(num_ranks)),
            tuple(shape.members),
        )
        trace = Trace()
        self.function(Ranks(trace, sides), **own)
        return Program(
            name=self.name,
            collective=self.collective,
            num_ranks=num_ranks,
            split=split,
            params=freeze(params),
            scratch=dict(sorted(trace.scratch.items())),
            ops=tuple(trace.ops),
            places=tuple(trace.places),
        )


def _chunks(runs: tuple[Run, ...]) -> int:
    return runs[-1].stop if runs else 0


def algorithm(
    name: str,
    *,
    split: int = 1,
    requires: Requires | None = None,
    members: tuple[int, ...] = (),
) -> Callable[[Callable[..., None]], Algorithm]:
    """Make an algorithm of a function over all ranks.

    `name` is `collective/shape`; `split` divides every rank's part further; `requires`
    says why a number of ranks is not served. Of a collective among some ranks, its
    `members`, the others may pass data on.
    """
    collective, slash, shape = name.partition("/")
    if not slash or not shape:
        raise ProgramError(f"@algorithm({name!r}): want 'collective/shape'")
    collectives.get(collective)

    def decorate(function: Callable[..., None]) -> Algorithm:
        return Algorithm(name, function, split, requires, members=members)

    return decorate


def power_of_two(num_ranks: int) -> str | None:
    """Refuse numbers of ranks that are no power of two."""
    if num_ranks & (num_ranks - 1):
        return f"{num_ranks} ranks; want a power of two"
    return None
