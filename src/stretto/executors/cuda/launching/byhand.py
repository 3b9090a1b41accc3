"""Kernels written by hand, registered under a catalogue name: their text and launch.

The author's function becomes the body of a kernel in the same frame as the generated
ones (`task.cuh`): the same parameters, epochs, roll call, staging, deadline and record.
So everything that launches, captures, explains and tests a plan's kernel serves it too.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from stretto import collectives
from stretto.collectives import Operator, storage
from stretto.errors import PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import ESCAPES, MAX_BLOCKS, Footprint, Kernel
from stretto.executors.cuda.codegen.elements import element
from stretto.executors.cuda.flags.regions import HALVES
from stretto.executors.cuda.launching.bound import KernelLaunch
from stretto.executors.cuda.launching.host import Host
from stretto.executors.cuda.launching.launch import mixed
from stretto.lang import Handwritten, handwritten
from stretto.plan import Layout, Plan, Space, layout

__all__ = [
    "hand_footprint",
    "hand_kernel",
    "hand_launch",
    "hand_layout",
    "taken_by_hand",
]


def taken_by_hand(plan: Plan, call: Call, share: int = 1) -> Handwritten | None:
    """Return the kernel that is registered for a plan, where it takes such a call.

    Every rank answers alike: it depends on nothing but the plan, the call, and the
    share of staging memory that the session has.
    """
    found = handwritten(plan.name)
    if found is None or not call.counts or plan.schedule.protocol == "engine":
        return None
    refused = found.refuses(
        dtype=call.dtype,
        op=call.op.value,
        counts=call.counts,
        itemsize=storage(call.dtype).itemsize,
        memory=plan.schedule.memory,
    )
    blocks = plan.schedule.blocks
    if refused or blocks > MAX_BLOCKS or blocks * _threads(plan) > ESCAPES:
        return None
    return found if _fits(hand_footprint(found, plan, call), share) else None


def hand_launch(
    session: Host,
    own: Handwritten,
    plan: Plan,
    call: Call,
    sizes: Any,
    mark: int,
) -> KernelLaunch:
    """Bind a registered kernel; its text is part of what ranks must agree on."""
    rank = session.group.rank
    kernel = hand_kernel(own, plan, rank=rank, dtype=call.dtype, op=call.op)
    zero_copy = plan.schedule.memory == "zero_copy"
    text = zlib.crc32(own.source.encode())
    said = f", by a kernel of its own ({text:#x})"
    return KernelLaunch(
        session,
        plan,
        session.load_kernel(kernel),
        where=hand_layout(plan, sizes, call),
        needs=hand_footprint(own, plan, call),
        fingerprint=session.watch.part(mixed(mark, (text,)), mark, said),
        shares=_reachable(plan) if zero_copy else frozenset(),
    )


def _reachable(plan: Plan) -> frozenset[Space]:
    """Return which arrays a task may reach at peers: those that every rank has."""
    sides = {Space.INPUT: plan.inputs, Space.OUTPUT: plan.outputs}
    return frozenset(space for space, ends in sides.items() if all(ends))


def hand_kernel(
    found: Handwritten, plan: Plan, *, rank: int | None, dtype: str, op: Operator
) -> Kernel:
    """Return the kernel of one rank, or (`rank=None`) of all ranks in one launch."""
    ranks = tuple(range(plan.num_ranks)) if rank is None else (rank,)
    kind = collectives.get(plan.collective)
    names = element(dtype, op, reduces=kind.reduces)
    blocks, threads = plan.schedule.blocks, _threads(plan)
    lines = [
        f"// {plan.name}, written by hand; {plan.num_ranks} ranks",
        f"// {names[0]} {names[1]}; {plan.schedule}",
        '#include "task.cuh"',
        "using namespace stretto;\n",
        f'#line 1 "{plan.name}"',
        found.source,
        '#line 1 "frame"',
        *(_config(plan, r, names) for r in ranks),
        "struct Call {\n  Params p;\n  i64 nothing;\n};",
        f"struct Calls {{\n  Call of[{len(ranks)}];\n}};",
        f'extern "C" __global__ void __launch_bounds__({threads}, 1)',
        "stretto_kernel(const __grid_constant__ Calls calls) {",
        f"  const u32 block = blockIdx.x % {blocks};",
    ]
    for i, r in enumerate(ranks):
        body = f"[](auto& task) {{ {found.function}(task); }}"
        lines += [
            f"  if (blockIdx.x / {blocks} == {i}) {{",
            f"    run_task<R{r}>(calls.of[{i}].p, block, {body});",
            "  }",
        ]
    return Kernel(
        text="\n".join([*lines, "}\n"]),
        ranks=ranks,
        grid=blocks * len(ranks),
        threads=threads,
        options=("--fmad=false",),
    )


def _config(plan: Plan, rank: int, names: tuple[str, str]) -> str:
    zero_copy = "true" if plan.schedule.memory == "zero_copy" else "false"
    return f"""struct R{rank} {{
  using Element = {names[0]};
  using Operator = {names[1]};
  static constexpr int rank = {rank};
  static constexpr u32 ranks = {plan.num_ranks}, blocks = {plan.schedule.blocks};
  static constexpr u32 threads = {_threads(plan)};
  static constexpr bool zero_copy = {zero_copy};
}};"""


def hand_layout(plan: Plan, sizes: Any, call: Call) -> Layout:
    """Return a layout of one epoch, whose tile is the part: what `count` says."""
    whole = layout(plan, sizes, storage(call.dtype).itemsize, tile_bytes=1 << 62)
    return replace(whole, tile=call.counts[0], tiles=1)


def hand_footprint(found: Handwritten, plan: Plan, call: Call) -> Footprint:
    """Return the scratch and packet memory that a call takes on every rank."""
    nbytes = call.counts[0] * storage(call.dtype).itemsize
    asked = nbytes, plan.num_ranks, plan.schedule.blocks
    return Footprint(
        stage=found.scratch(*asked),
        packets=found.packets(*asked),
        stage_unit=0,
        packet_unit=0,
    )


def _fits(needs: Footprint, share: int) -> bool:
    stage, packets = HALVES["stage"] // share, HALVES["packets"] // share
    return needs.stage <= stage and needs.packets <= packets


def _threads(plan: Plan) -> int:
    """Return the threads of a block: whole warps; there is no clerk beside them."""
    threads = -(-plan.schedule.threads // 32) * 32
    if threads > 1024:
        raise PlanError(f"{plan.name}: {threads} threads of a block; a GPU has 1024")
    return threads
