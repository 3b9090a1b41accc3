"""The text of kernels written by hand, registered under a catalogue name.

The author's function becomes the body of a kernel in the same frame as the generated
ones (`task.cuh`): the same parameters, epochs, roll call, staging, deadline and record.
So everything that launches, captures, explains and tests a plan's kernel serves it too.
"""

from __future__ import annotations

from stretto.compiler.plan import Handwritten, Plan
from stretto.errors import PlanError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.elements import element
from stretto.program.elements import Operator


def hand_kernel(
    found: Handwritten, plan: Plan, *, rank: int | None, dtype: str, op: Operator
) -> Kernel:
    """Return the kernel of one rank, or (`rank=None`) of all ranks in one launch."""
    ranks = tuple(range(plan.num_ranks)) if rank is None else (rank,)
    names = element(dtype, op, reduces=plan.kind.reduces)
    blocks, threads = plan.schedule.blocks, hand_threads(plan)
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
  static constexpr u32 threads = {hand_threads(plan)};
  static constexpr bool zero_copy = {zero_copy};
}};"""


def hand_threads(plan: Plan) -> int:
    """Return the threads of a block: whole warps; there is no clerk beside them."""
    threads = -(-plan.schedule.threads // 32) * 32
    if threads > 1024:
        raise PlanError(f"{plan.name}: {threads} threads of a block; a GPU has 1024")
    return threads
