"""Sizes that lie on the GPU: a kernel whose table is read in the call, not packed.

A mixture of experts knows only on the device how many tokens go where. The host says
how many there may be at most; that decides staging, blocks and the tile. A launch is
two kernels: a small all_gather gives every rank the counts of all, and the plan's own
kernel makes its table of them (kernels/counts.cuh). So a graph may be replayed on other
counts, and nothing waits for the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stretto import collectives
from stretto.collectives import Shape
from stretto.errors import CallError, PlanError
from stretto.executors.cuda.codegen.abi import PARAMS, Kernel
from stretto.executors.cuda.device.arrays import require_near, where
from stretto.executors.cuda.flags.regions import Region
from stretto.executors.cuda.launching.bound import KernelLaunch, peer_spaces
from stretto.executors.cuda.launching.host import Host
from stretto.plan import BufferRun, Plan

__all__ = ["CountedLaunch", "counted", "require_kernel_of_own_memory"]

CALL = "struct Call {\n  Params p;\n  Table at;\n};"
WORDS = 6
"""64-bit words of `stretto::Counted`, which stand where the table did."""
KEPT = 512
"""Sets of arrays whose parameters are kept."""


def counted(kernel: Kernel, plan: Plan) -> Kernel:
    """Return the kernel of a plan with its table read from counts on the device."""
    if plan.split != 1 or collectives.get(plan.collective).splits_whole:
        raise PlanError(
            f"plan {plan.name}: its chunks are parts of a count; on the GPU, want "
            "an algorithm that moves each part whole (split=1)"
        )
    if plan.num_members < plan.num_ranks:
        raise PlanError(
            f"plan {plan.name} has {plan.num_members} members of {plan.num_ranks} "
            "ranks, and counts on the GPU are of all; pass counts from the host"
        )
    assert kernel.text.count(CALL) == 1, "generate.py writes the parameters otherwise"
    call = CALL.replace("Table at", "Counted<Table> at")
    readers = "\n".join(_reader(plan, kernel, rank) for rank in kernel.ranks)
    text = kernel.text.replace(CALL, f"{readers}\n{call}")
    text = text.replace('#include "stretto.cuh"', '#include "counts.cuh"')
    table = tuple(("extra", i, 0) for i in range(WORDS))
    return replace(kernel, text=text, table=table)


def require_kernel_of_own_memory(plan: Plan) -> None:
    """Raise unless a kernel stages: where peers' parts begin, only their GPUs know."""
    shared = peer_spaces(plan, 0)
    if not shared and plan.schedule.protocol != "engine":
        return
    what = " and ".join(sorted(space.name.lower() for space in shared))
    why = f"peers touch the {what}" if shared else "copy engines take sizes from here"
    raise PlanError(
        f"plan {plan.name} ({plan.schedule}): {why}, and with counts on the GPU nobody "
        "here knows where a part begins; want 'staged' and packets or bulk"
    )


def _reader(plan: Plan, kernel: Kernel, rank: int) -> str:
    """Return the function that makes one rank's table of the counts `n`."""
    names = {"size": "size_{0}", "input": "r{0}_input_{1}", "output": "r{0}_output_{1}"}
    lines = [
        f"  at.{names[kind].format(first, second)} = "
        f"{_sum(_symbols(plan, kind, first, second))};"
        for kind, first, second in kernel.table
    ]
    largest = ["  i64 largest = 0;"]
    for atom in range(len(plan.atoms)):
        size = _sum(_symbols(plan, "size", atom, 0))
        largest.append(f"  largest = larger(largest, {size});")
    received = [
        f"    received[{i}] = n[{symbol}];"
        for i, symbol in enumerate(_all(plan, plan.outputs[rank]))
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


class CountedLaunch:
    """Run a plan on as much as counts on the device say."""

    def __init__(
        self,
        session: Host,
        gather: KernelLaunch,
        main: KernelLaunch,
        *,
        itemsize: int,
        most: int,
    ) -> None:
        """`gather` brings the counts of all ranks; `main` is the plan's kernel."""
        plan = main.plan
        shape = Shape(num_ranks=plan.num_ranks, split=plan.split, params=plan.params)
        self.plan = plan
        self.number = collectives.get(plan.collective).num_parts(shape)
        """How many counts all ranks have together."""
        self._session = session
        self._gather = gather
        self._main = main
        self._itemsize = itemsize
        self._most = most
        self._kept: dict[tuple[int, ...], tuple[Any, Any, int]] = {}

    def __call__(
        self, x: Any, counts: Any, out: Any, received: Any = None, stream: Any = None
    ) -> None:
        """Enqueue on the caller's stream: `counts` are int64, this rank's own."""
        handle = self._main.begin(stream)
        flags = self._session.flags.of(handle)
        source, target = where(x), where(out)
        told = 0 if received is None else self._told(received)
        key = (flags.nth, *source, *target, told)
        found = self._kept.get(key)
        if found is None:
            for array in (x, counts, out, received):
                require_near(array, self._session.device.ordinal)
            found = self._pack(flags.region, key)
        with flags.turn(handle) as early:
            self._gather(counts, _At(self._matrix(flags.region)), stream=handle)
            self._main.enqueue(handle, found[2], early)

    def _matrix(self, region: Region) -> int:
        """Return where launches with a set of flags find the counts of all ranks."""
        return self._session.slab.base + region.counts

    def _told(self, received: Any) -> int:
        at = where(received)
        least = 8 * len(_all(self.plan, self.plan.outputs[self._session.group.rank]))
        if at.nbytes < least or at.pointer % 8:
            raise CallError(
                f"received has {at.nbytes} bytes; want {least // 8} numbers of 64 bits"
            )
        return at.pointer

    def _pack(self, region: Region, key: tuple[int, ...]) -> tuple[Any, Any, int]:
        _, source, source_bytes, target, target_bytes, told = key
        if len(self._kept) >= KEPT:
            self._kept.clear()
        words = (
            self._matrix(region),
            self.number,
            self._most,
            source_bytes // self._itemsize,
            target_bytes // self._itemsize,
            told,
        )
        packed = self._main.packed(region, words)
        head = packed[: PARAMS.itemsize].view(PARAMS)[0]
        rank = self._session.group.rank
        head["input"][rank], head["output"][rank] = source, target
        raw = (ctypes.c_uint8 * packed.nbytes).from_buffer_copy(packed.tobytes())
        array = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
        found = self._kept[key] = (raw, array, ctypes.addressof(array))
        return found


class _At:
    """Device memory that is only an address."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def data_ptr(self) -> int:
        """Return the address."""
        return self._pointer

    def is_contiguous(self) -> bool:
        """Return that it is one run of elements."""
        return True
