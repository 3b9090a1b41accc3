"""Print what no schedule of a collective can beat on a machine, with the proof."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stretto import topology
from stretto.cli.output import add_json, print_rows
from stretto.cli.synth import add_place, can_write, network_of, parts_of, root_of
from stretto.cli.targets import numbers
from stretto.errors import CallError
from stretto.runtime.choice import parse_sizes, spell_size
from stretto.synth import COLLECTIVES, Bounds, Network, bound, frontier

_SPREADING = {
    "all_gather": "all_gather",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "reduce_scatter": "all_gather",
    "reduce": "broadcast",
    "gather": "scatter",
}
"""What a frontier is counted for: who combines or collects, does it backwards."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("collective", metavar="COLLECTIVE", help=", ".join(COLLECTIVES))
    add_place(parser)
    parser.add_argument(
        "--sizes", "--size", default="1K:1G:32", help="such as 4K, 1K:1G:4 [1K:1G:32]"
    )
    parser.add_argument(
        "--frontier",
        action="store_true",
        help="steps against rounds, instead of sizes, where there are no switches",
    )
    parser.add_argument(
        "--chunks", default="1-6", help="a part, for the frontier, such as 1,2 [1-6]"
    )
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        type=Path,
        help="write what proves each bound, as JSON that a checker reads again",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the bound by size and its certificate."""
    machine = topology.load(args.machine)
    network = network_of(machine, args)
    can_write(args.certificate)
    weights = parts_of(args)
    if args.frontier:
        rows = list(_frontier(args, network))
        print_rows(args, rows, f"{args.collective} on {network.name}")
        return 0
    root = root_of(network, args)
    root = network.members[0] if root is None else root
    found = bound(args.collective, network, root=root, weights=weights)
    sizes = parse_sizes(args.sizes)
    if args.certificate:
        proofs = [found.certificate(nbytes) for nbytes in sizes]
        args.certificate.write_text(json.dumps(proofs, indent=1), encoding="utf-8")
    rows = [_row(found, nbytes) for nbytes in sizes]
    title = (
        f"{args.collective} on {network.name}, {len(network.members)} ranks:"
        f" at most {float(found.algbw):.6g} GB/s, at least {found.steps} steps"
    )
    print_rows(args, rows, title)
    if found.note and not args.json:
        print(f"note: {found.note}")
    return 0


def _frontier(args: argparse.Namespace, network: Network) -> Iterator[dict[str, Any]]:
    """Yield the points: fewest steps first, until the bandwidth bound is met."""
    if args.parts or args.collective not in _SPREADING:
        raise CallError(
            f"--frontier of {args.collective}{' with --parts' * bool(args.parts)}: "
            f"want equal parts of {', '.join(_SPREADING)}"
        )
    spread = _SPREADING[args.collective]
    way = network if spread == args.collective else network.reversed
    root = root_of(network, args)
    root = network.members[0] if root is None else root
    limit = bound(spread, way, root=root)
    chunks = numbers(args.chunks, "--chunks")
    for point in frontier(spread, way, limit, root=root, chunks=chunks):
        yield {
            "chunks": point.chunks,
            "steps": point.steps,
            "rounds": point.rounds,
            "rounds_per_chunk": float(point.ratio),
            "proved": point.proved,
        }


def _row(found: Bounds, nbytes: int) -> dict[str, Any]:
    us = float(found.us(nbytes))
    return {
        "size": spell_size(nbytes),
        "bound_us": us,
        "algbw_gbps": nbytes / us / 1e3 if us else None,
        "because": found.binding(nbytes).why,
    }
