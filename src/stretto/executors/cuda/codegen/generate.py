"""From a plan to the text of its kernel: one call for every step of every lane.

What is known now is in the text (rank, peers, positions, slices' threads); what a call
brings is in the parameters (addresses, counts). The text is identity: equal texts are
one compiled kernel.

Legend: r rank, q peer, a atom, t tile-iteration. A *call* is one atom of one move: what
packets are numbered by, so that both ends agree on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from stretto.compiler.plan import (
    SIDE_BY_SIDE,
    Batch,
    Batched,
    Move,
    Plan,
    ProvedPlan,
    Space,
    hands_round_on_engine,
    primitive,
    spell_step,
)
from stretto.errors import PlanError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.counts import (
    COUNTED_TABLE,
    refuse_counted,
    table_reader,
)
from stretto.executors.cuda.codegen.elements import element
from stretto.executors.cuda.codegen.epilogue import conclusion, structure
from stretto.executors.cuda.codegen.far import FarPuts
from stretto.executors.cuda.codegen.operands import Operands
from stretto.executors.cuda.codegen.rows import PitchedOperands
from stretto.executors.cuda.codegen.rowwise import (
    HeldRows,
    held_by_all,
    near,
    two_on_an_sm,
)
from stretto.executors.cuda.words import (
    CLERK,
    ESCAPES,
    MAX_BLOCKS,
    MAX_LANES,
    MAX_RANKS,
    MAX_THREADS,
)
from stretto.program.elements import Operator
from stretto.program.epilogues import Spec

Spelt: TypeAlias = list[str]
"""A call of one move: the function's name, then its arguments, a line each."""


def kernel_of(plan: ProvedPlan, **how: Any) -> Kernel:
    """Return the kernel of a plan, or of the half of it that a kernel runs."""
    halved = hands_round_on_engine(plan.value)
    return generate(plan.in_halves().kernel if halved else plan.batched(), **how)


def generate(
    run: Batched,
    *,
    rank: int | None,
    dtype: str,
    op: Operator = Operator.SUM,
    epilogue: Spec | None = None,
    rows: tuple[int, int] = (0, 0),
    share: int = 0,
    counted: bool = False,
    steps: bool = False,
) -> Kernel:
    """Return the kernel of one rank, or (`rank=None`) of all ranks in one launch.

    `share` blocks have each row of an epilogue together (rowwise.py: `shared_by`).
    `counted`: its sizes are read on the device (counts.py). `steps`: see steps.cuh.
    """
    plan = run.plan
    _refuse(plan, counted, epilogue)
    ranks = tuple(range(plan.num_ranks)) if rank is None else (rank,)
    some = plan.num_members if plan.num_members < plan.num_ranks else 0
    names = element(dtype, op, reduces=plan.kind.reduces, members=some)
    operands = PitchedOperands(plan, rows) if any(rows) else Operands(plan)
    held = held_by_all(run, ranks, operands, epilogue, share)
    close = near(share, plan.schedule, held)
    on_sm = 2 if two_on_an_sm(plan.schedule, held) else 1
    bodies = [
        _lane(run, r, lane, operands, epilogue, held)
        for r in ranks
        for lane in range(len(plan.ranks[r]))
    ]
    lanes = max(map(len, plan.ranks))
    depth = 1 if held.rows else plan.schedule.depth  # a thread has a cell of each part
    ends = [] if epilogue is None else [structure(epilogue, share, held, close)]
    readers = [table_reader(plan, r, operands.table) for r in ranks] if counted else []
    text = "\n".join(
        [
            *["#define STRETTO_STEPS"] * steps,
            *_head(plan, ranks, names, operands, epilogue, counted),
            *ends,
            *(_config(plan, r, i, names, depth) for r in ranks for i in range(lanes)),
            *bodies,
            *readers,
            *_entry(plan, ranks, share if close else 1, on_sm, counted),
        ]
    )
    return Kernel(
        text=text,
        ranks=ranks,
        grid=plan.schedule.blocks * lanes * len(ranks),
        threads=threads(plan) + CLERK,
        table=COUNTED_TABLE if counted else operands.table,
        least_arch=(9, 0) if close else (7, 0),
        options=("--fmad=false",),
        steps=steps,
    )


def threads(plan: Plan) -> int:
    """Return the data threads of a block: whole warps, and room for the clerk."""
    return min(MAX_THREADS, -(-plan.schedule.threads // 32) * 32)


def _refuse(plan: Plan, counted: bool, epilogue: Spec | None) -> None:
    if counted:
        refuse_counted(plan)
    if epilogue is not None:
        _refuse_epilogue(plan)
    lanes = max(map(len, plan.ranks), default=0)
    workers = plan.schedule.blocks * lanes
    for what, got, most in (
        ("ranks", plan.num_ranks, MAX_RANKS),
        ("blocks", plan.schedule.blocks, MAX_BLOCKS),
        ("lanes of a rank", lanes, MAX_LANES),
        ("threads of a rank", workers * threads(plan), ESCAPES),
    ):
        if got > most:
            raise PlanError(f"plan {plan.name}: {got} {what}; a kernel has {most}")
    if plan.schedule.protocol == "engine":
        raise PlanError(f"plan {plan.name} is run by copy engines: it has no kernel")


def _refuse_epilogue(plan: Plan) -> None:
    if plan.num_members < plan.num_ranks:
        raise PlanError(
            f"plan {plan.name} has {plan.num_members} members of {plan.num_ranks} "
            "ranks; an epilogue is for the results of all"
        )
    if any(len(lanes) != 1 for lanes in plan.ranks):
        raise PlanError(f"plan {plan.name} has several lanes; an epilogue ends one")


def _head(
    plan: Plan,
    ranks: tuple[int, ...],
    names: tuple[str, str],
    operands: Operands,
    epilogue: Spec | None,
    counted: bool,
) -> Iterator[str]:
    who = f"rank {ranks[0]}" if len(ranks) == 1 else "all ranks, in one launch"
    yield f"// {plan.name}, {plan.num_ranks} ranks: {who}"
    yield f"// {names[0]} {names[1]}; {plan.schedule}"
    yield '#include "counts.cuh"' if counted else '#include "stretto.cuh"'
    if plan.hosts:
        yield '#include "far.cuh"'
    if epilogue is not None:
        yield '#include "held.cuh"'
    if isinstance(operands, PitchedOperands):
        yield '#include "pitched.cuh"'
    yield "using namespace stretto;\n"
    words = [f"  i64 {w};" for w in operands.words] or ["  i64 nothing;"]
    yield "\n".join(["struct Table {  // elements", *words, "};\n"])


def _config(
    plan: Plan, rank: int, lane: int, names: tuple[str, str], depth: int
) -> str:
    """Return what is known about one lane, as constants."""
    units = ", ".join(map(str, plan.stage_units))
    schedule = plan.schedule
    shared = "true" if _is_shared(plan) else "false"
    bits = sum(1 << q for q in range(plan.num_ranks) if plan.is_far(rank, q))
    far = f"\n  static constexpr u32 far = {bits};  // ranks on other hosts" * bool(
        bits
    )
    return f"""struct R{rank}L{lane} {{
  using Element = {names[0]};
  using Operator = {names[1]};
  static constexpr int rank = {rank}, lane = {lane};
  static constexpr u32 ranks = {plan.num_ranks}, lanes = {max(map(len, plan.ranks))};
  static constexpr u32 blocks = {schedule.blocks}, threads = {threads(plan)};
  static constexpr u32 depth = {depth};
  static constexpr bool shared = {shared};  // peers touch the caller's arrays{far}
  __device__ static constexpr u32 units(int r) {{
    constexpr u32 of[] = {{{units}}};
    return of[r];
  }}
}};
"""


def _is_shared(plan: Plan) -> bool:
    return any(
        loc.rank != rank and loc.space is not Space.STAGE
        for rank, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
    )


def _lane(
    run: Batched,
    rank: int,
    lane: int,
    operands: Operands,
    epilogue: Spec | None,
    held: HeldRows,
) -> str:
    plan, name = run.plan, f"R{rank}L{lane}"
    lines = [
        f"__device__ __forceinline__ void steps_{name}(",
        f"    Lane<{name}>& me, const Table& at, u32 t) {{",
    ]
    if isinstance(operands, PitchedOperands):
        lines += operands.views()
    sliced: set[int] = set()
    call = 0
    away = FarPuts(plan, rank, operands)
    under_way = "  under_way(me, t);"
    before: list[str] = []
    after: list[str] = []
    if epilogue is not None:
        before, after = conclusion(epilogue, plan, rank, operands, held)
    grouped = run.batches(rank, lane)
    if not grouped or not _begins_plainly(plan, grouped[0]):
        lines.append("  me.enter();")
    moves = [b for b in grouped if any(isinstance(step, Move) for _, step in b)]
    clears: list[str] = []
    for batch in grouped:
        lines += [f"  // {i}: {spell_step(rank, step)}" for i, step in batch]
        calls: list[Spelt] = []
        for index, step in batch:
            if not isinstance(step, Move):
                continue
            for atom in range(step.start, step.stop):
                if atom not in sliced:
                    size, turn = operands.word("size", atom), operands.turn(atom)
                    slice_ = f"me.slice(at.{size}, t, {turn})"
                    lines.append(f"  const Slice s{atom} = {slice_};")
                    sliced.add(atom)
                keep = held.rows if under_way in lines else 0
                later = keep > 1 and batch is moves[-1]
                one = (rank, lane, index, step, atom, call, operands)
                calls.append(_move(*one, keep, later))
                clears += _clear(*one) if later else []
                away.note(step, atom)
                call += 1
        lines += _spell_calls(batch[0][0], calls) if calls else away.sync(batch)
        if under_way not in lines:
            lines += [under_way, *before]
    if under_way not in lines:
        lines += [under_way, *before]
    away.check()
    if held.rows == 1:
        after = ["  rows.conclude(Nothing{}, t);"]
    elif held.rows:
        results = "    rows.store_results();"
        after = ["  rows.conclude([&] {", results, *clears, "  }, t);"]
    return "\n".join([*lines, *after, "}\n"])


def _begins_plainly(plan: Plan, batch: Batch) -> bool:
    """Return whether a batch's operands can be named before the epoch is known.

    Then a move enters by itself, as late as it can. Where packets go is asked when they
    are stored; units of staging are those of an epoch.
    """
    return all(
        isinstance(step, Move)
        and all(loc.space is not Space.STAGE for loc in step.srcs)
        and all(loc.space is not Space.STAGE or loc.packets for loc in step.dsts)
        for _, step in batch
    )


def _spell_calls(index: int, calls: list[Spelt]) -> list[str]:
    """Return calls one by one, or side by side when there are several."""
    lines: list[str] = []
    while calls:
        now, calls = calls[:SIDE_BY_SIDE], calls[SIDE_BY_SIDE:]
        if len(now) == 1:
            name, first, *rest = now[0]
            lines.append(f"  {name}(me, {first}")
            lines += [f"      {r}" for r in rest]
            lines[-1] += ";"
            continue
        lines.append(f"  together<{index}>(me,")
        for nth, (name, first, *rest) in enumerate(now):
            lines.append(f"      {name}({first}")
            lines += [f"          {r}" for r in rest]
            lines[-1] += "," if nth + 1 < len(now) else ");"
    return lines


def _move(
    rank: int,
    lane: int,
    index: int,
    step: Move,
    atom: int,
    call: int,
    operands: Operands,
    keep: int,
    later: bool,
) -> Spelt:
    """Return a move: its result stays for the epilogue where threads `keep` rows.

    Of several, the epilogue stores it, and clears its packets, when that is `later`.
    """
    name = primitive(rank, step).value
    finish = ", true" if step.finish else ""
    nth = atom - step.start
    # Peers before ourselves, the next rank first: not everybody to the same one.
    order = sorted(
        step.dsts, key=lambda d: (d.rank - rank - 1) % operands.plan.num_ranks
    )
    own = [d for d in order if d.rank == rank and d.space is Space.OUTPUT and keep]
    stored = order if keep <= 1 else [d for d in order if d not in own]
    dsts = [operands.target(rank, d, nth, call) for d in stored]
    dsts += [f"rows.hold<{d.pos + nth}>()" for d in own]
    srcs = [operands.source(rank, lane, s, nth, call, later) for s in step.srcs]
    return [
        f"{name}<{index}{finish}>",
        f"s{atom},",
        f"to({', '.join(dsts)}),",
        f"from({', '.join(srcs)}))",
    ]


def _clear(
    rank: int, lane: int, _: int, step: Move, atom: int, call: int, operands: Operands
) -> list[str]:
    """Return what clears the packets of a move that did not."""
    nth = atom - step.start
    spelt = [
        (operands.source(rank, lane, s, nth, call), s) for s in step.srcs if s.packets
    ]
    mine = [text for text, _ in spelt if ", true>" not in text]
    return [f"    clear(me, s{atom}, from({', '.join(mine)}));"] if mine else []


def _entry(
    plan: Plan, ranks: tuple[int, ...], cluster: int, on_sm: int, counted: bool
) -> Iterator[str]:
    """Yield the kernel: which block runs which lane of which rank."""
    lanes = max(map(len, plan.ranks))
    workers = plan.schedule.blocks * lanes
    table = "Counted<Table>" if counted else "Table"
    yield f"struct Call {{\n  Params p;\n  {table} at;\n}};"
    yield f"struct Calls {{\n  Call of[{len(ranks)}];\n}};\n"
    bound = threads(plan) + CLERK
    yield f'extern "C" __global__ void __launch_bounds__({bound}, {on_sm})'
    if cluster > 1:
        yield f"__cluster_dims__({cluster}, 1, 1)"
    yield "stretto_kernel(const __grid_constant__ Calls calls) {"
    if cluster > 1:
        yield f"  begin_cluster<Epilogue, {threads(plan)}>();"
    indent = "  "
    if len(ranks) > 1:
        yield f"  const u32 worker = blockIdx.x % {workers};"
        yield f"  switch (blockIdx.x / {workers}) {{"
        indent = "      "
    else:
        yield "  const u32 worker = blockIdx.x;"
    for i, r in enumerate(ranks):
        if len(ranks) > 1:
            yield f"    case {i}:"
        for lane in range(len(plan.ranks[r])):
            name = f"R{r}L{lane}"
            which = f"if (worker % {lanes} == {lane}) " if lanes > 1 else ""
            yield (
                f"{indent}{which}run<{name}>(calls.of[{i}].p, calls.of[{i}].at, "
                f"worker / {lanes}, steps_{name});"
            )
        if len(ranks) > 1:
            yield "      break;"
    if len(ranks) > 1:
        yield "  }"
    yield "}\n"
