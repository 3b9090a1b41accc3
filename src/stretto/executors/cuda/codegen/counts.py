"""The text of a kernel that reads its sizes on the device (kernels/counts.cuh).

Its parameters hold where the counts lie in place of the table, which is made in the
call: each word of a table is a sum of counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.compiler.plan import BufferRun, Plan
from stretto.errors import PlanError

COUNTED_TABLE = tuple(("extra", i, 0) for i in range(6))
"""The words of `stretto::Counted`, which stand where the table did."""
_NAMES = {"size": "size_{0}", "input": "r{0}_input_{1}", "output": "r{0}_output_{1}"}


def refuse_counted(plan: Plan) -> None:
    """Raise unless counts alone say what a plan moves."""
    if plan.split != 1 or plan.kind.splits_whole:
        raise PlanError(
            f"plan {plan.name}: its chunks are parts of a count; on the GPU, want "
            "an algorithm that moves each part whole (split=1)"
        )
    if plan.num_members < plan.num_ranks:
        raise PlanError(
            f"plan {plan.name} has {plan.num_members} members of {plan.num_ranks} "
            "ranks, and counts on the GPU are of all; pass counts from the host"
        )


def table_reader(plan: Plan, rank: int, table: Iterable[tuple[str, int, int]]) -> str:
    """Return the function that makes one rank's table of the counts `n`."""
    lines = [
        f"  at.{_NAMES[kind].format(first, second)} = "
        f"{_sum(_symbols(plan, kind, first, second))};"
        for kind, first, second in table
    ]
    largest = ["  i64 largest = 0;"]
    for atom in range(len(plan.atoms)):
        size = _sum(_symbols(plan, "size", atom, 0))
        largest.append(f"  largest = larger(largest, {size});")
    received = [
        f"    received[{i}] = n[{symbol}];"
        for i, symbol in enumerate(received_counts(plan, rank))
    ]
    ends = [_sum(_all(plan, runs[rank])) for runs in (plan.inputs, plan.outputs)]
    return "\n".join(
        [
            f"__device__ __forceinline__ Extent read_table(Rank<{rank}>, const i64* n,",
            "    Table& at, i64* received) {",
            *lines,
            *largest,
            "  if (received != nullptr) {",
            *received,
            "  }",
            f"  return {{largest, {ends[0]}, {ends[1]}}};",
            "}\n",
        ]
    )


def received_counts(plan: Plan, rank: int) -> list[int]:
    """Return which counts say what a rank receives, in the order of its output."""
    return _all(plan, plan.outputs[rank])


def _sum(symbols: list[int]) -> str:
    return " + ".join(f"n[{s}]" for s in symbols) or "0"


def _symbols(plan: Plan, kind: str, first: int, second: int) -> list[int]:
    """Return the symbols that a word of the table adds up."""
    if kind == "size":
        start, stop = plan.atoms[first]
        return list(range(start, stop))
    runs = (plan.inputs if kind == "input" else plan.outputs)[first]
    found: list[int] = []
    for atom in list(_atoms(runs))[:second]:
        found += _symbols(plan, "size", atom, 0)
    return found


def _all(plan: Plan, runs: tuple[BufferRun, ...]) -> list[int]:
    return [s for atom in _atoms(runs) for s in _symbols(plan, "size", atom, 0)]


def _atoms(runs: tuple[BufferRun, ...]) -> Iterator[int]:
    for run in runs:
        yield from range(run.atom, run.atom + run.stop - run.start)
