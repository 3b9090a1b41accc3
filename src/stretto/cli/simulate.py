"""Time an algorithm on a described machine, in virtual time."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto import topology
from stretto.cli.cc import control_of
from stretto.cli.output import Progress, add_json, print_rows
from stretto.cli.targets import (
    add_dead_link,
    add_target,
    build,
    find,
    group_of,
    params_of,
    ranks_of,
)
from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, ProvedPlan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, PlanError
from stretto.executors import sim
from stretto.program import collectives
from stretto.program.collectives import storage
from stretto.program.ir import Program, Verified, members_of
from stretto.runtime.choice import parse_sizes, spell_size
from stretto.topology import Costs, Machine
from stretto.topology.traffic import Congestion, Packets
from stretto.trace import CallKind, Recorder, write
from stretto.watch import simulated

_SMALL = 16 << 10
_FEW_RANKS = 16
"""Up to so many, several schedules are tried for every size."""
_TRIED = ("packets", "bulk", "bulk zero_copy", "pull bulk zero_copy copy:push")
_BYTES_A_BLOCK, _MOST_BLOCKS = 2 << 10, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_target(parser)
    parser.add_argument(
        "--machine",
        default=topology.EXAMPLE,
        help=f"of `stretto list` [{topology.EXAMPLE}]",
    )
    parser.add_argument("--ranks", type=ranks_of, help="how many [all of the machine]")
    parser.add_argument(
        "--group", default="", help="on these ranks of it, such as 0-3,8 [the first]"
    )
    parser.add_argument(
        "--sizes", "--size", default="1K:1G:4", help="such as 8, 4K, 1K:1G:4 [1K:1G:4]"
    )
    parser.add_argument("--dtype", default="float32", help="element type [float32]")
    parser.add_argument(
        "--schedule",
        default="",
        metavar="WORDS",
        help="`written`: links serve in the program's order [the best of a few]",
    )
    add_dead_link(parser)
    parser.add_argument(
        "--network",
        choices=("flow", "packet"),
        default="flow",
        help="links shared fairly, or packets in queues [flow]",
    )
    parser.add_argument(
        "--cc",
        default="",
        metavar="NAMES",
        help="with packets: of `stretto cc list`, such as dcqcn,hpcc,pfc [pfc]",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random marks [0]")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the steps of the last size there"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print time and bandwidth by size."""
    if args.trace and args.schedule == _WRITTEN:
        raise CallError(f"--trace {args.trace} --schedule {_WRITTEN}: want a plan's")
    controls = _controls(args)
    sizes = parse_sizes(args.sizes)
    machine = topology.load(args.machine)
    if args.dead_link:
        machine = machine.degraded(dead_links=args.dead_link)
    group = group_of(args.group) if args.group else []
    ranks = args.ranks or len(group) or machine.num_ranks
    program = verify(build(find(args.algorithm), ranks, params_of(args)))
    itemsize = storage(args.dtype).itemsize
    rows = []
    with Progress(len(sizes)) as progress:
        for nbytes in sizes:
            progress.step(f"{program.value.name} of {spell_size(nbytes)}")
            if controls:
                rows += _packets(args, program, machine, nbytes, itemsize, group)
            else:
                rows.append(_timed(args, program, machine, nbytes, itemsize, group))
    name, digest = program.value.name, program.value.digest
    print_rows(args, rows, f"{name} ({digest}) on {machine.name}, {ranks} ranks")
    if args.trace:
        _record(args, program, machine, sizes[-1], itemsize, group)
    return 0


def _record(
    args: argparse.Namespace,
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    itemsize: int,
    group: Sequence[int],
) -> None:
    """Write what the lanes did, as `stretto trace` writes what ranks do."""
    plan, _ = fastest(program, machine, nbytes, itemsize, args.schedule, group)
    recorder = Recorder(1 << 20)
    traffic: Packets[Any] | None = None
    for control in _controls(args)[-1:]:
        traffic = Packets(machine, control, seed=args.seed)
    found = sim.simulate(
        verify_plan(plan, program),
        machine,
        nbytes=nbytes,
        itemsize=itemsize,
        ranks=group,
        recorder=recorder,
        traffic=traffic,
    )
    kind = CallKind(
        collective=plan.collective,
        nbytes=found.nbytes,
        dtype=args.dtype,
        algorithm=plan.name,
        schedule=str(plan.schedule),
        plan=plan.digest,
        executor="sim",
        text=f"{plan.collective} of {nbytes} bytes by {plan.name} {plan.schedule}",
    )
    seen = simulated(recorder.events(), kind, plan.num_ranks, machine=args.machine)
    write(args.trace, seen)


_WRITTEN = "written"


def _controls(args: argparse.Namespace) -> list[Congestion]:
    """Return the congestion controls that were asked for: none for flows."""
    if args.network == "flow":
        if args.cc:
            raise CallError(f"--cc {args.cc[:60]}: want it with --network packet")
        return []
    if args.schedule == _WRITTEN:
        raise CallError(f"--network packet --schedule {_WRITTEN}: want a plan's")
    return [control_of(name) for name in (args.cc or "pfc").split(",")]


def _packets(
    args: argparse.Namespace,
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    itemsize: int,
    group: Sequence[int],
) -> list[dict[str, Any]]:
    """Run the plan that is fastest as flows as packets, under every control."""
    plan, flows = fastest(program, machine, nbytes, itemsize, args.schedule, group)
    proved, rows = verify_plan(plan, program), []
    for control in _controls(args):
        traffic: Packets[Any] = Packets(machine, control, seed=args.seed)
        found = sim.simulate(
            proved, machine, nbytes=nbytes, itemsize=itemsize, ranks=group,
            traffic=traffic,
        )  # fmt: skip
        counts = traffic.counts()
        fullest = max(counts, key=lambda c: c.max_queue)
        row: dict[str, Any] = {
            "size": spell_size(nbytes),
            "cc": control.name,
            "time_us": found.time_us,
            "as_flows_us": flows.time_us,
            "busbw_gbps": found.busbw_gbps,
            "marks": round(sum(c.marks for c in counts)),
            "pauses": sum(c.pauses for c in counts),
            "drops": sum(c.drops for c in counts),
            "max_queue": round(fullest.max_queue),
            "at": fullest.name if fullest.max_queue else "",
        }
        if args.json:
            row |= {"nbytes": nbytes, "schedule": str(plan.schedule)}
            row["links"] = [c._asdict() for c in counts if c.nbytes]
        rows.append(row)
    return rows


def _timed(
    args: argparse.Namespace,
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    itemsize: int,
    group: Sequence[int],
) -> dict[str, Any]:
    """Time the program under the schedule asked for, or the best of a few.

    As it is written it is among them where a step costs nothing beside its links.
    """
    row: dict[str, Any] = {"size": spell_size(nbytes)}
    if args.json:
        row |= {
            "nbytes": nbytes,
            "algorithm": program.value.name,
            "machine": args.machine,
            "ranks": program.value.num_ranks,
        }
    times: list[tuple[float, str]] = []
    if args.schedule != _WRITTEN:
        plan, found = fastest(program, machine, nbytes, itemsize, args.schedule, group)
        times.append((found.time_us, str(plan.schedule)))
    links_only = machine.costs == Costs(background_puts=True)
    if args.schedule == _WRITTEN or (not args.schedule and links_only):
        from stretto.synth import written  # which few ask for

        us = written(program, machine, nbytes=nbytes, ranks=group).time_us
        times.append((us, _WRITTEN))
    us, how = min(times)
    algbw = nbytes / us / 1e3 if us else 0.0
    members = len(members_of(program.value.num_ranks, program.value.params))
    return row | {
        "time_us": us,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * collectives.bus_factor(program.value.collective, members),
        "schedule": how,
    }


def fastest(
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    itemsize: int,
    words: str = "",
    group: Sequence[int] = (),
) -> tuple[Plan, Any]:
    """Return the plan that the simulator finds fastest, of a few, and its figures."""
    simulate = sim.simulate
    timed = [
        (
            plan.value,
            simulate(plan, machine, nbytes=nbytes, itemsize=itemsize, ranks=group),
        )
        for plan in _plans(program, machine, nbytes, words)
    ]
    return min(timed, key=lambda t: float(t[1].time_us))


def _plans(
    program: Verified[Program], machine: Machine, nbytes: int, words: str
) -> list[ProvedPlan]:
    """Return the plan under the schedule that was asked for, or some for the size.

    A GPU moves what many blocks move side by side; a core is one block.
    """
    if words:
        return [verify_plan(lower(program, Schedule.parse(words)), program)]
    blocks = 1
    if machine.kind == "gpu":
        blocks = min(_MOST_BLOCKS, max(1, nbytes // _BYTES_A_BLOCK))
    tried: tuple[str, ...] = _TRIED
    if program.value.num_ranks > _FEW_RANKS:
        small = nbytes <= _SMALL * program.value.num_ranks
        tried = ("packets",) if small else ("bulk",)
    found = []
    for how in tried:
        schedule = replace(Schedule.parse(how), blocks=blocks)
        with contextlib.suppress(PlanError):  # not all serve every program
            found.append(verify_plan(lower(program, schedule), program))
    return found
