"""The decorator that makes an algorithm of a function over all ranks."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stretto.errors import (
    CallError,
    ProgramError,
    RanksError,
    StrettoError,
    is_interruption,
)
from stretto.program import collectives
from stretto.program.collectives import Collective, Shape, SymbolRun
from stretto.program.ir import Handwritten, Program, freeze, undisturbed
from stretto.program.lang.params import settled
from stretto.program.lang.ranks import Ranks, Sides
from stretto.program.lang.trace import LIMIT, Trace, blame, most_operations

Requires: TypeAlias = Callable[[int], str | None]
"""Return why a number of ranks is not served, or None."""
_NAME = re.compile(r"[^\s#=]+\Z")
_FEW = 512
"""Ranks up to which nothing is estimated: their programs are traced in seconds."""
_SAMPLES = (16, 32)
"""Numbers of ranks from which the operations of many more are estimated."""
_BYTES = 400
"""Roughly, of memory for an operation."""


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

    @property
    def knows_hosts(self) -> bool:
        """Return whether the function is told the host of each rank, as `hosts`."""
        return self.takes("hosts")

    @property
    def guesses_hosts(self) -> bool:
        """Return whether it takes so many ranks in a row for one, as `group`."""
        return self.takes("group")

    def takes(self, name: str) -> bool:
        """Return whether the function has a parameter of that name."""
        return name in inspect.signature(self.function).parameters

    @property
    def place(self) -> str:
        """Return the file and line of the author's function."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else ""

    def refuses(self, num_ranks: int) -> str | None:
        """Return why this number of ranks is not served, or None."""
        if num_ranks < 1:
            return f"{self.name}: {num_ranks} ranks; want at least 1"
        if self.members and self.members[-1] >= num_ranks:
            return f"{self.name}: {num_ranks} ranks; its members are {self.members}"
        try:
            reason = self.requires(num_ranks) if self.requires else None
        except (Exception, SystemExit) as e:
            raise self._wrong(f"requires= raised {type(e).__name__}: {e}") from e
        if reason is not None and not isinstance(reason, str):
            raise self._wrong(
                f"requires= gave {reason!r} for {num_ranks} ranks; want why they are "
                f"not served, in words, or None when they are"
            )
        return f"{self.name}: {reason}" if reason else None

    @undisturbed
    def build(
        self, num_ranks: int, *, split: int | None = None, **params: object
    ) -> Program:
        """Run the author's function and return what it recorded.

        `members` is a parameter of every algorithm: its function then sees all ranks,
        of which only the members have an input and an output.
        """
        if type(num_ranks) is not int:
            raise CallError(
                f"{self.name}: {num_ranks!r} ranks; want a whole number of them"
            )
        if reason := self.refuses(num_ranks):
            raise RanksError(reason)
        kind = collectives.get(self.collective)
        if kind.rooted:
            params.setdefault("root", self.root)
        params = {key: settled(key, value) for key, value in params.items()}
        own = {k: v for k, v in params.items() if k != "members"}
        if self.members:
            params.setdefault("members", self.members)
        self._check_call(own)
        shape = Shape(
            num_ranks=num_ranks,
            split=self.split if split is None else split,
            params=freeze(params),
        )
        most = most_operations()
        self._foresee(kind, shape, own, most)
        kind.check(shape)
        return self._run(kind, shape, own, most)

    def _check_call(self, own: dict[str, object]) -> None:
        """Raise unless the author's function takes these parameters, and needs no more.

        What it needs beside the ranks, its caller must give.
        """
        accepted = inspect.signature(self.function).parameters
        named = list(accepted)[1:]
        if not accepted:
            raise self._wrong("its function takes nothing; want def name(ranks)")
        if unknown := own.keys() - set(named):
            raise CallError(
                f"{self.name} takes no {', '.join(sorted(unknown))}; "
                f"it takes {', '.join(named) or 'no parameters'}"
            )
        variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        missing = [
            name
            for name in named
            if name not in own
            and accepted[name].default is inspect.Parameter.empty
            and accepted[name].kind not in variadic
        ]
        if missing:
            raise self._wrong(
                f"its function wants {', '.join(missing)}; give it a default, or a "
                f"value: build(n, {missing[0]}=...), --param {missing[0]}=..."
            )

    def _foresee(
        self, kind: Collective, shape: Shape, own: dict[str, object], most: int
    ) -> None:
        """Raise when there would clearly be too many operations to trace at all."""
        n = min(shape.num_ranks, 1 << 60)  # a float can hold it
        if n <= _FEW:
            return
        told: float = n
        sizes = []
        for few in _SAMPLES:
            small = Shape(num_ranks=few, split=shape.split, params=shape.params)
            try:
                kind.check(small)
                program = self._run(kind, small, own, most)
            except StrettoError:
                break  # these parameters are for many ranks only: count as they come
            sizes.append(sum(len(op.srcs) for op in program.ops))
        if len(sizes) == len(_SAMPLES) and sizes[0]:
            growth = max(0.0, math.log2(sizes[1] / sizes[0]))
            told = sizes[1] * (n / _SAMPLES[1]) ** growth
        if told > 2 * most:
            gigabytes = told * _BYTES / 1e9
            raise ProgramError(
                f"{self.name}: {n:,} ranks are about {_round(told):,} operations, some "
                f"{_round(gigabytes):,} GB of memory; the limit is {most:,}. Want "
                f"fewer ranks, or {LIMIT}=N in the environment for a larger limit"
            )

    def _run(
        self, kind: Collective, shape: Shape, own: dict[str, object], most: int
    ) -> Program:
        """Run the author's function; what it raises says the author's line."""
        n = shape.num_ranks
        sides = Sides(
            tuple(_chunks(kind.input_runs(shape, r)) for r in range(n)),
            tuple(_chunks(kind.output_runs(shape, r)) for r in range(n)),
            tuple(shape.members),
        )
        trace = Trace(most)
        try:
            made = self.function(Ranks(trace, sides), **own)  # type: ignore[func-returns-value]
            trace.settle()
        except StrettoError as e:
            raise e.at(blame(e.__traceback__, self.function))  # noqa: B904 - it is e
        except (Exception, SystemExit) as e:
            if is_interruption(e):
                raise
            what = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
            if isinstance(e, AttributeError) and type(e.obj) is int:
                what = f"{e.obj} is a number and no rank; want ranks[{e.obj}].{e.name}"
            place = blame(e.__traceback__, self.function)
            raise ProgramError(f"{self.name}, {n} ranks: {what}").at(place) from e
        if inspect.isgenerator(made) or inspect.iscoroutine(made):
            made.close()
            raise self._wrong("its function yields or awaits; want plain assignments")
        return Program(
            name=self.name,
            collective=self.collective,
            num_ranks=n,
            split=shape.split,
            params=shape.params,
            scratch=dict(sorted(trace.scratch.items())),
            ops=tuple(trace.ops),
            places=tuple(trace.places),
            source=self.place,
            by_hand=self.kernel,
        )

    def _wrong(self, what: str) -> ProgramError:
        """Return an error about the function itself, at its line."""
        return ProgramError(f"{self.name}: {what}").at(self.place)


def _round(value: float) -> int:
    """Return an estimate as such: with two digits that count."""
    digits = max(0, len(str(int(value))) - 2)
    return round(int(value), -digits)


def _chunks(runs: tuple[SymbolRun, ...]) -> int:
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
    if not isinstance(name, str):
        raise ProgramError(
            "@algorithm without a name; want @algorithm('all_reduce/mine'), the first "
            "half being the collective that it must be"
        )
    collective, _, shape = name.partition("/")
    if not shape or _NAME.match(name) is None:
        raise ProgramError(
            f"@algorithm({name!r}): want 'collective/shape', without blanks"
        )
    collectives.get(collective)
    if type(split) is not int or split < 1:
        raise ProgramError(
            f"@algorithm({name!r}, split={split!r}): want a whole number of chunks a "
            f"part, at least 1"
        )
    if not _rise(members):
        raise ProgramError(
            f"@algorithm({name!r}, members={members!r}): want ranks in order, such as "
            f"(0, 1, 4)"
        )

    def decorate(function: Callable[..., None]) -> Algorithm:
        return Algorithm(name, function, split, requires, members=members)

    return decorate


def _rise(members: tuple[int, ...]) -> bool:
    whole = isinstance(members, tuple) and all(type(m) is int for m in members)
    return whole and list(members) == sorted({m for m in members if m >= 0})


def power_of_two(num_ranks: int) -> str | None:
    """Refuse numbers of ranks that are no power of two."""
    if num_ranks & (num_ranks - 1):
        return f"{num_ranks} ranks; want a power of two"
    return None
