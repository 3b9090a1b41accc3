"""Ask who publishes weights, who follows them, and how far each is."""

from __future__ import annotations

import argparse
import os

from stretto.cli.output import add_json, print_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    whats = parser.add_subparsers(dest="what", metavar="ACTION", required=True)
    one = whats.add_parser("show", help="a row for each rank of sources and replicas")
    one.add_argument(
        "address", metavar="ADDRESS",
        help="an engine of a source or a replica: its name on this host, or HOST:PORT",
    )  # fmt: skip
    one.add_argument("--name", default="", help="of which weights [all]")
    one.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="seconds [10]"
    )
    add_json(one)


def run(args: argparse.Namespace) -> int:
    """Print a row for each rank."""
    from stretto.transfer import Engine
    from stretto.weights.show import show

    with Engine(f"show-{os.getpid()}") as engine:
        print_rows(args, show(engine, args.address, args.name, args.timeout))
    return 0
