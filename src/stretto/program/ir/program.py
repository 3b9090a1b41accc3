"""A program: what moves where, over all ranks, read line by line.

Every operation is one assignment `dst = combine(srcs)`: a copy when there is one
source, otherwise a combination by the collective's operator, left to right. `a += b`
is `a = combine(a, b)`. All references of an operation span the same number of chunks.
`b via ib0>spine` says which switches b passes on its way; what is computed is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from stretto.program.ir.byhand import Handwritten
from stretto.program.ir.reading import spelled

INPUT, OUTPUT = "input", "output"

Params: TypeAlias = Mapping[str, object]
"""What a collective needs to know beside the ranks: `root`, `pairs`, `members`."""


class Ref(NamedTuple):
    """Chunks `start` to `stop` of one buffer of one rank."""

    rank: int
    buffer: str
    start: int
    stop: int

    def __str__(self) -> str:
        """Return the text form, `r0.output[1]` or `r0.output[1:3]`."""
        return f"r{self.rank}.{self.buffer}[{self.chunks}]"

    @property
    def chunks(self) -> str:
        """Return the chunk range as it is written."""
        if self.stop == self.start + 1:
            return str(self.start)
        return f"{self.start}:{self.stop}"


Via: TypeAlias = tuple[str, ...]
"""The switches on a way from rank to rank, in order; none: a link joins the two."""


class Op(NamedTuple):
    """One assignment: `dst` becomes the combination of `srcs`, in their order."""

    dst: Ref
    srcs: tuple[Ref, ...]
    phase: str = ""
    where: int = -1
    """Index into the program's `places`: the author's file and line."""
    via: tuple[Via | None, ...] = ()
    """The way that each source takes, None: the machine's own; empty: all do."""

    def __eq__(self, other: object) -> bool:
        """Compare what is done, not where it was written."""
        if not isinstance(other, Op):
            return False
        return self[:3] == other[:3] and self.via == other.via

    def __hash__(self) -> int:
        """Hash what is compared."""
        return hash(self[:3])


def freeze(params: Params) -> Params:
    """Return the parameters in name order, read-only."""
    return MappingProxyType({k: params[k] for k in sorted(params)})


def members_of(num_ranks: int, params: Params) -> Sequence[int]:
    """Return the ranks that contribute and receive, in order; others pass data on."""
    given = params.get("members")
    return range(num_ranks) if given is None else cast("Sequence[int]", given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A collective written as assignments between the ranks' buffers."""

    name: str
    collective: str
    num_ranks: int
    split: int = 1
    params: Params = field(default_factory=lambda: freeze({}))
    scratch: Mapping[str, int] = field(default_factory=dict)
    """Chunks of each scratch buffer, by name, the same on every rank."""
    ops: tuple[Op, ...] = ()
    places: tuple[str, ...] = field(default=(), compare=False)
    """`file:line` of the author, shared by operations."""
    source: str = field(default="", compare=False)
    """`file:line` of the author's function, or where else all of it was written."""
    by_hand: Handwritten | None = field(default=None, compare=False)
    """A kernel of somebody's own, which does the same on GPUs."""
    _repr_html_: ClassVar[Callable[[Program], str]]
    """What notebooks show: set by this package, since a picture knows programs."""

    def place(self, op: Op) -> str:
        """Return where the author wrote `op`, or its text when nobody did."""
        return self.places[op.where] if 0 <= op.where < len(self.places) else str(op)

    @property
    def summary(self) -> str:
        """Return what it is, in one line."""
        return f"{self.name} for {self.num_ranks} ranks, {len(self.ops)} operations"

    @property
    def digest(self) -> str:
        """Return the identity of the program: a hash of its text."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:12]

    def __hash__(self) -> int:
        """Hash what the text says."""
        return hash((self.name, self.num_ranks, self.split, self.ops))

    def __repr__(self) -> str:
        """Return what it is, in one line; `str` is all of it."""
        return f"<Program {self.summary}>"

    def __str__(self) -> str:
        """Return the text form, which `parse_program` reads back."""
        return "\n".join(_lines(self)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    head = [
        f"program {program.name} collective={program.collective}",
        f"ranks={program.num_ranks} split={program.split}",
    ]
    head += [f"{k}={spelled(v)}" for k, v in program.params.items()]
    yield " ".join(head)
    for name, chunks in sorted(program.scratch.items()):
        yield f"  scratch {name}[{chunks}]"
    phase = ""
    for op in program.ops:
        if op.phase != phase:
            phase = op.phase
            yield f"  @{phase}"
        yield f"  {spell_op(op)}"


def spell_op(op: Op) -> str:
    """Return one operation as it is printed."""
    ways = op.via or (None,) * len(op.srcs)
    srcs = [
        str(src) if via is None else f"{src} via {'>'.join(via) or '-'}"
        for src, via in zip(op.srcs, ways, strict=True)
    ]
    if len(srcs) == 2 and op.srcs[0] == op.dst and ways[0] is None:
        return f"{op.dst} += {srcs[1]}"
    return f"{op.dst} = {' + '.join(srcs)}"


class _Summed(Protocol):
    @property
    def summary(self) -> str: ...

    def _repr_html_(self) -> str: ...


T_co = TypeVar("T_co", bound=_Summed, covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Verified(Generic[T_co]):
    """Something that `verify` has proved. Nobody else makes one."""

    value: T_co

    def __repr__(self) -> str:
        """Return what was proved, in one line."""
        return f"<proved: {self.value.summary}>"

    def _repr_html_(self) -> str:
        """Return what was proved, as notebooks show it."""
        return f"<p>proved:</p>{self.value._repr_html_()}"
