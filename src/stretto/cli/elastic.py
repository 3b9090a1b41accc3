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
from stretto.errors import CallError
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.meeting.watching import watching

_NUMBERED = ("drain", "replace", "grow")


def _after(text: str) -> float:
    """Return seconds, with or without their unit."""
    return seconds(text.removesuffix("s"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add = parser.add_argument
    add("what", choices=["status", *_NUMBERED, "rehearse"], help="what to do")
    add("number", nargs="?", type=int, metavar="N", help="a rank, or how many to grow")
    add("--job", metavar="ADDRESS", help="[STRETTO_ADDRESS, or the only job here]")
    add("--stays", action="store_true", help="who is drained stands by, and stays")
    add("--kill", type=int, metavar="RANK", help="rehearse: the rank to end")
    add("--after", type=_after, default=0.0, metavar="S", help="rehearse: in S seconds")
    add("--within", type=float, default=60.0, metavar="S", help="give up then [60]")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, and print what there is afterwards."""
    if args.what in _NUMBERED and args.number is None:
        raise CallError(
            f"{args.what} what? want a number: stretto elastic {args.what} 2"
        )
    if args.what == "rehearse" and args.kill is None:
        raise CallError("rehearse what? want the rank to end: --kill 2")
    with watching(args.job) as meeting:
        if args.what == "rehearse":
            print_rows(args, _rehearsed(args, meeting))
        else:
            print_rows(args, _rows(_done(args, meeting)))
    return 0


def _done(args: argparse.Namespace, meeting: Meeting) -> JobView:
    number, within_s = args.number, args.within
    if args.what == "drain":
        return elastic.drain(meeting, number, stays=args.stays, within_s=within_s)
    if args.what == "replace":
        return elastic.replace(meeting, number, within_s=within_s)
    if args.what == "grow":
        return elastic.grow(meeting, number, within_s=within_s)
    return elastic.look(meeting)


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
    return "stands by" if one.said.get("ready") else "warms up"


def _rehearsed(args: argparse.Namespace, meeting: Meeting) -> list[Mapping[str, Any]]:
    found = elastic.rehearse(
        meeting, args.kill, after_s=args.after, within_s=args.within
    )
    rows = [{"phase": k, "ms": round(v * 1e3, 1)} for k, v in found.seconds.items()]
    return [*rows, {"phase": "in all", "ms": round(found.downtime_s * 1e3, 1)}]
