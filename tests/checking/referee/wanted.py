"""What must come out of a collective, said once more and in another way.

From the collective alone: which elements of whose inputs an output element is made of,
written out here element by element. From a program: the same with the order of sums, by
doing what its text says, one line after the other.

Legend: p place among the members, q another's place, m members, c counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

from tests.checking.referee.values import Values

from stretto.program.ir import INPUT, OUTPUT, Program

__all__ = ["Buffers", "buffers", "from_program"]

Parts = tuple[tuple[int, int], ...]
"""The contributions to an element: of which rank, which element of its input."""


class Buffers(NamedTuple):
    """One rank's input and output in a call, in elements."""

    inputs: int
    wanted: tuple[Parts, ...]
    """For each element of the output, what it is made of."""
    shift: int
    """In place: where the output begins, seen from the input."""
    summed: bool
    """Whether contributions are combined, so that an average divides them."""


def buffers(
    collective: str,
    num_ranks: int,
    params: Mapping[str, object],
    counts: Sequence[int],
) -> tuple[Buffers, ...]:
    """Return every rank's buffers for the given counts."""
    if collective == "permute":
        return tuple(_permute(num_ranks, params, counts))
    members = tuple(cast("Sequence[int]", params.get("members", range(num_ranks))))
    root = members.index(cast("int", params["root"])) if "root" in params else 0
    made = [Buffers(0, (), 0, False)] * num_ranks
    for p, rank in enumerate(members):
        inputs, wanted, shift, summed = _at(collective, members, p, root, counts)
        made[rank] = Buffers(inputs, wanted, shift, summed)
    return tuple(made)


def _at(
    collective: str,
    members: tuple[int, ...],
    p: int,
    root: int,
    c: Sequence[int],
) -> tuple[int, tuple[Parts, ...], int, bool]:
    m = len(members)
    starts = [0, *accumulate(c)]

    def everybody(first: int, stop: int) -> tuple[Parts, ...]:
        return tuple(tuple((q, i) for q in members) for i in range(first, stop))

    def one(q: int, first: int, stop: int) -> tuple[Parts, ...]:
        return tuple(((members[q], i),) for i in range(first, stop))

    match collective:
        case "all_reduce":
            return c[0], everybody(0, c[0]), 0, True
        case "reduce":
            return c[0], everybody(0, c[0]) if p == root else (), 0, True
        case "reduce_scatter":
            own = everybody(starts[p], starts[p + 1])
            return starts[m], own, starts[p], True
        case "broadcast":
            return c[0] if p == root else 0, one(root, 0, c[0]), 0, False
        case "scatter":
            own = one(root, starts[p], starts[p + 1])
            return starts[m] if p == root else 0, own, starts[p], False
        case "all_gather" | "gather":
            parts = [one(q, 0, c[q]) for q in range(m)]
            whole = tuple(i for part in parts for i in part)
            gets = collective == "all_gather" or p == root
            return c[p], whole if gets else (), -starts[p], False
        case "all_to_all":
            got: list[Parts] = []
            for q in range(m):
                before = sum(c[q * m : q * m + p])
                got += one(q, before, before + c[q * m + p])
            return sum(c[p * m : p * m + m]), tuple(got), 0, False
        case "barrier":
            return 0, (), 0, False
    raise NotImplementedError(f"what {collective} promises is not written down here")


def _permute(
    num_ranks: int, params: Mapping[str, object], counts: Sequence[int]
) -> Iterator[Buffers]:
    pairs: tuple[tuple[int, int], ...] = tuple(params.get("pairs", ()))  # type: ignore[arg-type]
    source_of = {target: source for source, target in pairs}
    for rank in range(num_ranks):
        sends = counts[rank] if rank in source_of.values() else 0
        source = source_of.get(rank)
        got = (
            ()
            if source is None
            else tuple(((source, i),) for i in range(counts[source]))
        )
        yield Buffers(sends, got, 0, False)


def from_program(
    program: Program,
    sizes_in: Sequence[Sequence[int]],
    sizes_out: Sequence[Sequence[int]],
    values: Values,
    call: int,
    *,
    divides: bool,
) -> list[list[int | None]]:
    """Return what every rank's output holds when the program is read line by line."""
    memory: dict[tuple[int, str, int], list[int]] = {}
    for rank, sizes in enumerate(sizes_in):
        at = 0
        for chunk, size in enumerate(sizes):
            held = [values.given(call, rank, at + i) for i in range(size)]
            memory[rank, INPUT, chunk] = held
            at += size
    for op in program.ops:
        made: list[list[int]] = []
        for i in range(op.dst.stop - op.dst.start):
            sources = [memory[s.rank, s.buffer, s.start + i] for s in op.srcs]
            made.append([values.combined(v) for v in zip(*sources, strict=True)])
        for i, held in enumerate(made):
            memory[op.dst.rank, op.dst.buffer, op.dst.start + i] = held
    outputs: list[list[int | None]] = []
    for rank, sizes in enumerate(sizes_out):
        whole: list[int | None] = []
        for chunk, size in enumerate(sizes):
            held = memory.get((rank, OUTPUT, chunk), [])
            whole += [values.divided(v) if divides else v for v in held] or [
                None
            ] * size
        outputs.append(whole)
    return outputs
