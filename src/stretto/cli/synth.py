"""Find an algorithm for a machine and say how far it is from the best possible."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto import synth, topology
from stretto.cli.fastest import fastest
from stretto.cli.output import add_json, print_rows
from stretto.cli.targets import add_dead_link, group_of, numbers
from stretto.compiler.verify import verify
from stretto.errors import CallError, PromiseError, StrettoError
from stretto.program import foreign
from stretto.program.ir import Program
from stretto.runtime.choice import parse_sizes, spell_size
from stretto.topology import Machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "collective", metavar="COLLECTIVE", help=", ".join(synth.COLLECTIVES)
    )
    add_place(parser)
    parser.add_argument(
        "--size", default="", help="such as 64K, 1G [the sketch's, or 1M]"
    )
    parser.add_argument("--split", default="", help="chunks a part, such as 1,2 [try]")
    parser.add_argument(
        "--trees", type=int, default=0, help="so many from every root [what is best]"
    )
    parser.add_argument(
        "--sketch", metavar="FILE", help="a TOML file or a shipped sketch's name"
    )
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds for the search [20]"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every search [0]")
    parser.add_argument("-o", "--output", type=Path, help="write the program, FILE.py")
    parser.add_argument("--xml", type=Path, help="write MSCCL XML, FILE.xml")
    add_json(parser)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where: machine, group, what is broken."""
    parser.add_argument("--machine", required=True, help="of `stretto list`")
    parser.add_argument(
        "--root", type=int, help="of rooted collectives [the first rank]"
    )
    parser.add_argument(
        "--parts", default="", help="relative sizes of unequal parts, such as 5,1,1,1"
    )
    parser.add_argument("--group", default="", help="only these ranks, such as 0-3,8")
    parser.add_argument(
        "--relays", action="store_true", help="ranks outside the group pass data on"
    )
    add_dead_link(parser)


def network_of(machine: Machine, args: argparse.Namespace) -> synth.Network:
    """Return the network that these options describe."""
    if args.relays and not args.group:
        raise CallError("--relays: got no --group; want the ranks that take part")
    if args.dead_link:
        machine = machine.degraded(dead_links=args.dead_link)
    network = synth.from_machine(machine)
    if args.group:
        network = network.group(group_of(args.group), relays=args.relays)
    return network


def parts_of(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the relative sizes of the ranks' parts; empty when they are equal."""
    words = args.parts.split(",") if args.parts else []
    if wrong := [w for w in words if not w.isdigit()]:
        raise CallError(f"--parts {args.parts}: got {wrong[0]!r}; want such as 5,1,1,1")
    return tuple(map(int, words))


def root_of(network: synth.Network, args: argparse.Namespace) -> int | None:
    """Return the root as the network numbers its ranks: the options say the machine's.

    None where none was said: then it is the first rank, or there is none.
    """
    if args.root is None:
        return None
    if args.collective in synth.COLLECTIVES and args.collective not in synth.ROOTED:
        raise CallError(
            f"--root {args.root}: nobody is the root of {args.collective};"
            f" want it for {', '.join(synth.ROOTED)}"
        )
    ranks = {network.place(r): r for r in network.members}
    if args.root not in ranks:
        raise CallError(f"--root {args.root}: want one of {sorted(ranks)}")
    return ranks[args.root]


def can_write(*paths: Path | None) -> None:
    """Refuse files that cannot be written before time is spent on what is in them."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise CallError(f"{path}: want a file in a folder that is there")


def run(args: argparse.Namespace) -> int:
    """Search, prove, print the gap, write the program."""
    can_write(args.output, args.xml)
    if not 0 <= args.budget < math.inf:
        raise CallError(f"--budget {args.budget:g}: want 0 or more seconds")
    machine = topology.load(args.machine)
    network = network_of(machine, args)
    if args.xml and len(network.members) < network.num_ranks:
        raise CallError(
            f"--xml {args.xml}: MSCCL XML knows collectives among all ranks; want no"
            " --relays"
        )
    sketch = synth.load_sketch(args.sketch) if args.sketch else None
    sizes = parse_sizes(args.size or (sketch.size if sketch else "") or "1M")
    if len(sizes) != 1:
        raise CallError(f"--size {args.size}: {len(sizes)} sizes; want one")
    found = synth.synthesize(
        args.collective,
        network,
        sizes[0],
        root=root_of(network, args),
        weights=parts_of(args),
        budget=synth.Budget.within(args.budget, args.seed),
        splits=tuple(numbers(args.split, "--split")) if args.split else (),
        sketch=sketch,
        trees=args.trees,
        progress=_show if sys.stderr.isatty() else None,
        judge=_judge(network, sizes[0], equal=not args.parts),
    )
    name = synth.identifier(f"{network.name}_{spell_size(sizes[0])}")
    _proved(found, name)
    if args.output:  # before anything is said: who listens may go away
        args.output.write_text(found.text(name), encoding="utf-8")
    if args.xml:
        low, high = sizes[0] // 2, sizes[0] * 2
        text = foreign.to_xml(found.program(name), min_bytes=low, max_bytes=high)
        args.xml.write_text(text, encoding="utf-8")
    print_rows(args, [_row(args, found)], "")
    if not args.json:
        if found.runs_us is not None:
            print(
                f"runs_us decided: `stretto simulate` says it, with what operations "
                f"cost, {found.runs_gap:.2%} above the bound; time_us and gap are of "
                f"links alone, each serving what the file writes first"
            )
        print(f"bound: {found.bound.binding(sizes[0]).why}")
        spent = f"the budget of {args.budget:g} s was spent"
        why = "it was interrupted" if found.interrupted else spent
        for what in found.cut:
            print(f"left out, {why}: {what}")
    return 0


def _judge(
    network: synth.Network, nbytes: int, *, equal: bool
) -> Callable[[Program], float] | None:
    """Return what says how long a program takes; None: links say all of it."""
    machine = network.machine
    if machine is None or network.is_all or not equal:
        return None

    def judge(program: Program) -> float:
        try:
            return float(
                fastest(verify(program), machine, nbytes, _ITEM, group=network.places)[
                    1
                ].time_us
            )
        except StrettoError:
            return math.inf  # no schedule serves it

    return judge


_ITEM = 4
"""Bytes of an element, as `stretto simulate` has it."""


def _show(trial: synth.Candidate) -> None:
    sys.stderr.write(
        f"{float(trial.us):.6g} us, gap {trial.gap:.2%}: {trial.generator},"
        f" split {trial.split}\n"
    )


_MOST_WRITTEN = 200_000
_ROUNDING = 1e-7


def _proved(found: synth.SearchResult, name: str) -> None:
    """Prove the program, and have the simulator say what it takes as it is written."""
    network, nbytes = found.schedule.demand.network, found.schedule.demand.nbytes
    program = verify(found.program(name))
    short = len(program.value.ops) <= _MOST_WRITTEN
    if short and network.machine is not None and not found.schedule.demand.weights:
        ranks = network.places or ()
        us = synth.written(program, network.machine, nbytes=nbytes, ranks=ranks).time_us
        if abs(us / float(found.us) - 1) > _ROUNDING:
            raise PromiseError(
                f"{name}: {float(found.us):.9g} us were promised, and as it is written"
                f" it takes {us:.9g}"
            )


def _row(args: argparse.Namespace, found: synth.SearchResult) -> dict[str, Any]:
    demand, us = found.schedule.demand, float(found.us)
    return {
        "collective": demand.collective,
        "machine": demand.network.name,
        "size": spell_size(demand.nbytes),
        "time_us": us,
        **({} if found.runs_us is None else {"runs_us": found.runs_us}),
        "bound_us": float(found.bound_us),
        "gap": round(found.gap, 6),
        "algbw_gbps": demand.nbytes / us / 1e3,
        "generator": found.schedule.generator,
        "split": demand.split,
        "seed": found.budget.seed,
        "complete": not found.cut,
        "verified": True,
    }
