"""Prove that an algorithm is the collective it claims to be.

Exit status 0: proved; 1: not, with the reason; 2: unreadable or misused.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stretto.cli.output import Progress, add_json, print_rows
from stretto.cli.targets import add_target, build, find, numbers, params_of
from stretto.errors import CallError, ProgramError, StrettoError
from stretto.ir import Program
from stretto.lang import Algorithm
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.trace import MONOTONIC
from stretto.verify import verify, verify_plan

__all__ = ["add_arguments", "run"]

_SCHEDULES = ("push packets", "push bulk", "pull bulk")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_target(parser)
    parser.add_argument("--ranks", default="", help="such as 2,3,4-8 [2,3,4,8]")
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        metavar="WORDS",
        help="prove plans under these schedules; may be repeated [the staged]",
    )
    parser.add_argument(
        "--in-place", action="store_true", help="plans must be safe in place"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prove the program and its plans for every number of ranks."""
    found = find(args.algorithm)
    schedules = [Schedule.parse(words) for words in args.schedule or _SCHEDULES]
    default = "2,3,4,8" if isinstance(found, Algorithm) else str(found.num_ranks)
    rows = []
    ranks = numbers(args.ranks or default)
    with Progress(len(ranks)) as progress:
        for n in ranks:
            progress.step(f"proving {found.name} for {n} ranks")
            rows.append(_judge(found, n, params_of(args), schedules, args.in_place))
    hidden = () if args.json else ("error",)
    print_rows(args, [{k: row[k] for k in row if k not in hidden} for row in rows])
    for row in rows:
        if row["error"]:
            sys.stderr.write(f"{row['ranks']} ranks: {row['error']}\n")
    verdicts = [row["ok"] for row in rows]
    if False in verdicts:
        return 1
    return 0 if True in verdicts else 2


def _judge(
    found: Algorithm | Program,
    num_ranks: int,
    params: dict[str, Any],
    schedules: list[Schedule],
    in_place: bool,
) -> dict[str, Any]:
    """Return one row; ok is None when the number of ranks is not served."""
    row: dict[str, Any] = {"name": found.name, "ranks": num_ranks}
    if isinstance(found, Algorithm) and (why := found.refuses(num_ranks)):
        return row | {"ok": None, "operations": 0, "plans": 0, "ms": 0.0, "error": why}
    start_us, plans, operations, error = MONOTONIC.now_us(), 0, 0, ""
    try:
        program = build(found, num_ranks, params)
        operations = len(program.ops)
        proved = verify(program)
        for schedule in schedules:
            verify_plan(lower(proved, schedule, in_place=in_place))
            plans += 1
    except CallError:
        raise
    except StrettoError as e:
        if not isinstance(e, ProgramError):
            raise
        error = f"{type(e).__name__}: {e}"
    elapsed_ms = (MONOTONIC.now_us() - start_us) / 1e3
    return row | {
        "ok": not error,
        "operations": operations,
        "plans": plans,
        "ms": round(elapsed_ms, 3),
        "error": error,
    }
