"""List congestion controls of the packet engine, or show one with its parameters."""

from __future__ import annotations

import argparse

from stretto import network
from stretto.cli.output import add_json, print_json, table
from stretto.topology.traffic import Congestion


def control_of(name: str) -> Congestion:
    """Return a congestion control by name, or by the file of one that was searched."""
    if not name.endswith(".toml"):
        return network.find(name)
    from stretto.search import load

    return load(name).congestion()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_json(actions.add_parser("list", help="names, each in a line"))
    one = actions.add_parser("show", help="one: what it hears, its figures, sources")
    one.add_argument(
        "name",
        metavar="NAME",
        help="of `stretto cc list`, or FILE.toml of `stretto search cc`",
    )
    add_json(one)


def run(args: argparse.Namespace) -> int:
    """Print names, or one algorithm: what it hears, its figures and their sources."""
    if args.action == "list":
        rows = [{"name": n, "about": network.find(n).about} for n in network.names()]
        if args.json:
            print_json({"command": "cc", "rows": rows})
            return 0
        print(table(rows))
        print("\nmltcp+NAME puts MLTCP around another")
        return 0
    found = control_of(args.name)
    heard = [
        said
        for said, there in (
            ("an ACK of every packet", found.acks),
            ("the load of every port (INT)", found.loads),
            (f"complaints of marks, every {found.cnp_us:g} us at most", found.cnp_us),
        )
        if there
    ]
    figures = [
        {"parameter": p.name, "value": p.value, "unit": p.unit, "source": p.source}
        for p in found.parameters
    ]
    marks = found.ecn_us
    if args.json:
        about = {"name": found.name, "about": found.about, "hears": heard}
        print_json({**about, "ecn_us": marks, "parameters": figures})
        return 0
    print(f"{found.name}: {found.about}")
    print(f"  hears: {', '.join(heard) or 'nothing'}")
    if marks:
        print(
            f"  marking: {marks[0]:g} to {marks[1]:g} us of the link, to {marks[2]:g}"
        )
    else:
        print("  marking: as the machine's [ports] say")
    if figures:
        print("  " + table(figures).replace("\n", "\n  "))
    return 0
