"""Print what no schedule of a collective can beat on a machine, with the proof."""

from __future__ import annotations

import argparse
from typing import Any

from stretto import topology
from stretto.cli.output import add_json, print_rows
from stretto.cli.synth import add_place, network_of, parts_of
from stretto.runtime import parse_sizes, spell_size
from stretto.synth import COLLECTIVES, Bound, bound

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("collective", metavar="COLLECTIVE", help=", ".join(COLLECTIVES))
    add_place(parser)
    parser.add_argument(
        "--sizes", "--size", default="1K:1G:32", help="such as 4K, 1K:1G:4 [1K:1G:32]"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the bound by size and its certificate."""
    machine = topology.load(args.machine)
    network = network_of(machine, args)
    weights = parts_of(args)
    found = bound(args.collective, network, root=args.root, weights=weights)
    rows = [_row(found, nbytes) for nbytes in parse_sizes(args.sizes)]
    title = (
        f"{args.collective} on {network.name}, {len(network.members)} ranks:"
        f" at most {float(found.algbw):.6g} GB/s, at least {found.steps} steps"
    )
    print_rows(args, rows, title)
    if found.note and not args.json:
        print(f"note: {found.note}")
    return 0


def _row(found: Bound, nbytes: int) -> dict[str, Any]:
    us = float(found.us(nbytes))
    return {
        "size": spell_size(nbytes),
        "bound_us": us,
        "algbw_gbps": nbytes / us / 1e3 if us else None,
        "because": found.binding(nbytes).why,
    }
