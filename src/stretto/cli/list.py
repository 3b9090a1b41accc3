"""List collectives, algorithms and machines."""

from __future__ import annotations

import argparse

from stretto import topology
from stretto.cli.output import add_json, print_json, table
from stretto.program import algorithms, collectives
from stretto.program.lang import Algorithm

_TRIED = range(2, 65)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the catalogues."""
    found = [algorithms.get(name) for name in algorithms.names()]
    rows = [
        {"name": one.name, "collective": one.collective, "ranks": served(one)}
        for one in found
    ]
    if args.json:
        print_json(
            {
                "collectives": list(collectives.names()),
                "algorithms": rows,
                "machines": list(topology.names()),
            }
        )
        return 0
    print("collectives\n  " + "\n  ".join(collectives.names()))
    print("\nalgorithms")
    about = [{**row, "about": one.about} for row, one in zip(rows, found, strict=True)]
    print("  " + table(about).replace("\n", "\n  "))
    print("\nmachines\n  " + "\n  ".join(topology.names()))
    return 0


def served(algorithm: Algorithm) -> str:
    """Return for which numbers of ranks an algorithm is, in words."""
    good = [n for n in _TRIED if algorithm.refuses(n) is None]
    if good == list(_TRIED):
        return "any"
    if good == [n for n in _TRIED if n & (n - 1) == 0]:
        return "powers of two"
    return ", ".join(map(str, good)) or "none"
