"""Time an algorithm on a described machine, in virtual time."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from stretto import topology
from stretto.cli.cc import control_of
from stretto.cli.fastest import Timed, fastest
from stretto.cli.following import StepPart, add_following, joined, parts_of
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
from stretto.compiler.verify import verify
from stretto.errors import CallError
from stretto.executors import sim
from stretto.program import collectives
from stretto.program.collectives import storage
from stretto.program.ir import Program, Verified, members_of, undisturbed
from stretto.runtime.choice import parse_sizes, spell_size
from stretto.topology import Costs, Machine
from stretto.topology.traffic import Congestion, Packets
from stretto.trace import CallKind, Recorder, Recording, write
from stretto.watch import simulated

_MOST_EVENTS = 1 << 22
"""That a recording keeps: the last ones."""
_MANY_OPERATIONS = 1_000_000
"""A million of them take minutes."""


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
    add_following(parser)
    add_json(parser)


@undisturbed
def run(args: argparse.Namespace) -> int:
    """Print time and bandwidth by size; of a step, by call."""
    if args.trace and args.schedule == _WRITTEN:
        raise CallError(f"--trace {args.trace} --schedule {_WRITTEN}: want a plan's")
    _controls(args)
    parts, sizes = parts_of(args), parse_sizes(args.sizes)
    if len(parts) > 1 and len(sizes) > 1:
        raise CallError(f"--then beside --sizes {args.sizes}; want one size, as 16M")
    machine = topology.load(args.machine)
    if args.dead_link:
        machine = machine.degraded(dead_links=args.dead_link)
    group = group_of(args.group) if args.group else []
    ranks = args.ranks or len(group) or machine.num_ranks
    with Progress(2 * len(parts) + len(sizes)) as progress:
        if len(parts) > 1 or args.repeat > 1:
            return _step(args, machine, ranks, group, parts, progress)
        one = _Simulated(args, machine, ranks, group, args.algorithm, progress)
        if args.trace:
            one.record(sizes[-1])
        rows = [row for nbytes in sizes for row in one.rows(nbytes)]
        seen = one.recording(sizes[-1]) if args.trace else None
    program = one.program.value
    about = f"{program.name} ({program.digest}) on {machine.name}, {ranks} ranks"
    print_rows(args, rows, about)
    if seen is not None:
        write(args.trace, seen)
    return 0


def _step(
    args: argparse.Namespace,
    machine: Machine,
    ranks: int,
    group: Sequence[int],
    parts: Sequence[StepPart],
    progress: Progress,
) -> int:
    """Print how long each part of a step takes, and all of it; record it."""
    ones: dict[str, _Simulated] = {}
    seen: dict[StepPart, Recording] = {}
    rows: list[dict[str, Any]] = []
    for part in parts:
        if not part.target:
            rows.append({"what": "compute", "time_us": part.us})
            continue
        sizes = parse_sizes(part.size)
        if len(sizes) != 1:
            raise CallError(f"--then '{part.target} {part.size}'; want one size, as 4M")
        if part.target not in ones:
            ones[part.target] = _Simulated(
                args, machine, ranks, group, part.target, progress
            )
        one = ones[part.target]
        if args.trace and part not in seen:
            one.record(sizes[0])
        rows.append({"what": one.program.value.name} | one.rows(sizes[0])[-1])
        if args.trace and part not in seen:
            seen[part] = one.recording(sizes[0])
    whole = sum(row["time_us"] for row in rows) * args.repeat
    rows.append({"what": f"all, {args.repeat} times", "time_us": whole})
    print_rows(args, rows, f"a step on {machine.name}, {ranks} ranks")
    if args.trace:
        write(args.trace, joined(parts, seen.__getitem__, args.repeat))
    return 0


class _Simulated:
    """One program on the machine: proved once, and timed once at each size."""

    def __init__(
        self,
        args: argparse.Namespace,
        machine: Machine,
        ranks: int,
        group: Sequence[int],
        target: str,
        progress: Progress,
    ) -> None:
        self._args, self._machine, self._group = args, machine, group
        self._progress = progress
        self._itemsize = storage(args.dtype).itemsize
        progress.step(f"writing {target} for {ranks} ranks")
        program = build(find(target), ranks, params_of(args))
        many = len(program.ops)
        progress.within(f"proving {target}: {many:,} operations{_hint(many)}")
        self.program = verify(program)
        self._plans: dict[int, Timed] = {}
        self._recorders: dict[int, Recorder] = {}

    def record(self, nbytes: int) -> None:
        """Keep what the lanes do when this size is simulated next."""
        self._recorders[nbytes] = Recorder(_MOST_EVENTS)
        self._plans.pop(nbytes, None)

    def rows(self, nbytes: int) -> list[dict[str, Any]]:
        """Return what is printed of a size."""
        args, group = self._args, self._group
        what = f"{self.program.value.name} of {spell_size(nbytes)}"
        self._progress.step(what if nbytes in self._plans else f"lowering {what}")
        if _controls(args):
            timed = self._timed(nbytes)
            return _packets(args, self.program, self._machine, nbytes, timed, group)
        return [_row(args, self.program, self._machine, nbytes, self._timed, group)]

    def _timed(self, nbytes: int) -> Timed:
        if nbytes not in self._plans:
            as_flows = not _controls(self._args)
            self._plans[nbytes] = fastest(
                self.program, self._machine, nbytes, self._itemsize,
                self._args.schedule, self._group,
                recorder=self._recorders.get(nbytes) if as_flows else None,
                tell=self._progress.within,
            )  # fmt: skip
        return self._plans[nbytes]

    def recording(self, nbytes: int) -> Recording:
        """Return what the lanes did, as `stretto trace` writes what ranks do."""
        name = self.program.value.name
        self._progress.step(f"recording {name} of {spell_size(nbytes)}")
        plan, found = self._timed(nbytes)
        recorder = self._recorders.pop(nbytes)
        for control in _controls(self._args)[-1:]:
            found = sim.simulate(
                plan,
                self._machine,
                nbytes=nbytes,
                itemsize=self._itemsize,
                ranks=self._group,
                recorder=recorder,
                traffic=Packets(self._machine, control, seed=self._args.seed),
            )
        p = plan.value
        kind = CallKind(
            collective=p.collective,
            nbytes=found.nbytes,
            dtype=self._args.dtype,
            algorithm=p.name,
            schedule=str(p.schedule),
            plan=p.digest,
            executor="sim",
            text=f"{p.collective} of {nbytes} bytes by {p.name} {p.schedule}",
        )
        machine = self._args.machine
        return simulated(recorder.events(), kind, p.num_ranks, machine=machine)


_WRITTEN = "written"


def _hint(operations: int) -> str:
    """Return what to expect of so many."""
    return ", which takes minutes" * (operations >= _MANY_OPERATIONS)


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
    timed: Timed,
    group: Sequence[int],
) -> list[dict[str, Any]]:
    """Run the plan that is fastest as flows as packets, under every control."""
    (proved, flows), rows = timed, []
    plan, itemsize = proved.value, storage(args.dtype).itemsize
    for control in _controls(args):
        traffic: Packets[Any] = Packets(machine, control, seed=args.seed)
        found = sim.simulate(
            proved, machine, nbytes=nbytes, itemsize=itemsize, ranks=group,
            traffic=traffic,
        )  # fmt: skip
        counts = traffic.counts()
        fullest = max(counts, key=lambda c: c.max_queue, default=None)
        row: dict[str, Any] = {
            "size": spell_size(nbytes),
            "cc": control.name,
            "time_us": found.time_us,
            "as_flows_us": flows.time_us,
            "busbw_gbps": found.busbw_gbps,
            "marks": round(sum(c.marks for c in counts)),
            "pauses": sum(c.pauses for c in counts),
            "drops": sum(c.drops for c in counts),
            "max_queue": round(fullest.max_queue) if fullest else 0,
            "at": fullest.name if fullest and fullest.max_queue else "",
        }
        if args.json:
            row |= {"nbytes": nbytes, "schedule": str(plan.schedule)}
            row["links"] = [c._asdict() for c in counts if c.nbytes]
        rows.append(row)
    return rows


def _row(
    args: argparse.Namespace,
    program: Verified[Program],
    machine: Machine,
    nbytes: int,
    timed: Callable[[int], Timed],
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
        plan, found = timed(nbytes)
        times.append((found.time_us, str(plan.value.schedule)))
    links_only = machine.costs == Costs(background_puts=True)
    if args.schedule == _WRITTEN or (not args.schedule and links_only):
        from stretto.synth import written  # which few ask for

        us = written(program, machine, nbytes=nbytes, ranks=group).time_us
        times.append((us, _WRITTEN))
    us, how = min(times)
    algbw = nbytes / us / 1e3 if us else None
    members = len(members_of(program.value.num_ranks, program.value.params))
    factor = collectives.bus_factor(program.value.collective, members)
    return row | {
        "time_us": us,
        "algbw_gbps": algbw,
        "busbw_gbps": algbw and algbw * factor,
        "schedule": how,
    }
