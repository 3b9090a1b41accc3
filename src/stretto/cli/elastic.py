"""Look at a job whose ranks may change, and order it about.

    stretto elastic status
    stretto elastic drain 2
    stretto elastic replace 2
    stretto elastic grow 1
    stretto elastic rehearse --kill 2 --after 3s

To drain is to have a standby take over between two steps; to replace is to do it at
once: that rank hangs, and is ended. To rehearse is to kill it and print the downtime.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from stretto import elastic
from stretto.cli.options import seconds
from stretto.cli.output import add_json, print_rows
from stretto.elastic import JobView
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.meeting.watching import watching


def _after(text: str) -> float:
    """Return seconds, with or without their unit."""
    return seconds(text.removesuffix("s"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    whats = parser.add_subparsers(dest="what", metavar="ACTION", required=True)
    for name, about, number in (
        ("status", "print who is there", ""),
        ("drain", "have a standby take over between two steps", "RANK"),
        ("replace", "have a standby take over at once: that rank hangs", "RANK"),
        ("grow", "take standbys in as further ranks", "N"),
        ("rehearse", "kill a rank, and print the downtime by phase", ""),
    ):
        one = whats.add_parser(name, help=about)
        if number:
            many = "whom" if number == "RANK" else "how many"
            one.add_argument("number", type=int, metavar=number, help=many)
        if name == "drain":
            one.add_argument(
                "--stays", action="store_true", help="who is drained stands by then"
            )
        if name == "rehearse":
            one.add_argument(
                "--kill", type=int, metavar="RANK", required=True, help="whom to end"
            )
            one.add_argument(
                "--after", type=_after, default=0.0, metavar="S", help="seconds [now]"
            )
        one.add_argument(
            "--job", metavar="ADDRESS", help="[STRETTO_ADDRESS, or the only job here]"
        )
        if name != "status":
            one.add_argument(
                "--within", type=float, default=60.0, metavar="S",
                help="give up then [60]",
            )  # fmt: skip
        add_json(one)


def run(args: argparse.Namespace) -> int:
    """Do it, and print what there is afterwards."""
    with watching(args.job) as meeting:
        if args.what == "rehearse":
            print_rows(args, _rehearsed(args, meeting))
        else:
            print_rows(args, _rows(_done(args, meeting)))
    return 0


def _done(args: argparse.Namespace, meeting: Meeting) -> JobView:
    if args.what == "status":
        return elastic.look(meeting)
    number, within_s = args.number, args.within
    if args.what == "drain":
        return elastic.drain(meeting, number, stays=args.stays, within_s=within_s)
    if args.what == "replace":
        return elastic.replace(meeting, number, within_s=within_s)
    return elastic.grow(meeting, number, within_s=within_s)


def _rows(seen: JobView) -> list[Mapping[str, Any]]:
    """Return a row for each process of a job."""
    return [
        {
            "rank": one.rank if one.rank >= 0 else None,
            "generation": seen.generation,
            "what": _what(one),
            "host": one.host or one.said.get("host", ""),
            "pid": one.pid or one.said.get("pid"),
            "step": one.said.get("step"),
        }
        for one in seen.members
    ]


def _what(one: elastic.JobMember) -> str:
    if one.gone is not None:
        return one.gone or "has left"
    if one.rank >= 0:
        return "rank"
    return one.state


def _rehearsed(args: argparse.Namespace, meeting: Meeting) -> list[Mapping[str, Any]]:
    found = elastic.rehearse(
        meeting, args.kill, after_s=args.after, within_s=args.within
    )
    rows = [{"phase": k, "ms": round(v * 1e3, 1)} for k, v in found.seconds.items()]
    return [*rows, {"phase": "in all", "ms": round(found.downtime_s * 1e3, 1)}]
