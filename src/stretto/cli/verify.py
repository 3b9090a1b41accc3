"""Prove that an algorithm is the collective it claims to be.

Exit status 0: all that was asked is proved; 1: something is not, with the reason; 2:
unreadable or misused. Nothing proved is never 0.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stretto.cli.output import Progress, add_json, print_rows
from stretto.cli.targets import add_target, build, find_all, numbers, params_of
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, ProgramError, RanksError, StrettoError
from stretto.program import collectives
from stretto.program.collectives import Shape
from stretto.program.ir import Program
from stretto.program.lang import Algorithm
from stretto.trace import MONOTONIC

_SCHEDULES = ("push packets", "push bulk", "pull bulk")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_target(parser)
    parser.add_argument("--ranks", default="", help="such as 2,3,4-8 [2-9,16]")
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
    """Prove the programs and their plans for every number of ranks."""
    schedules = [Schedule.parse(words) for words in args.schedule or _SCHEDULES]
    asked = numbers(args.ranks) if args.ranks else []
    params = params_of(args)
    found = find_all(args.algorithm)
    rows: list[dict[str, Any]] = []
    with Progress(len(found) * len(asked or range(9))) as progress:
        for label, one in found.items():
            if isinstance(one, StrettoError):
                rows.append(_row(label, None) | {"error": _tell(one), "label": label})
                continue
            for n in asked or _usual(one):
                progress.step(f"proving {one.name} for {n} ranks")
                row = _judge(one, n, params, schedules, args.in_place)
                if row["ok"] is None and asked:  # it was asked for by name
                    row["ok"] = False
                rows.append(row | {"label": label})
    if all(row["misused"] for row in rows):
        raise CallError(rows[0]["error"].removeprefix("CallError: "))
    _print(args, rows)
    return _status(rows)


def _usual(found: Algorithm | Program) -> list[int]:
    """Return the numbers of ranks to prove when none is asked for."""
    if isinstance(found, Program):
        return [found.num_ranks]
    fewest = max(2, found.members[-1] + 1 if found.members else 2)
    return [*range(fewest, fewest + 8), fewest + 14]


def _print(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    inner = ("label", "misused")
    shown = [{k: row[k] for k in row if k not in inner} for row in rows]
    if not args.json:
        words = {True: "yes", False: "no", None: "declined"}
        shown = [
            {k: row[k] for k in row if k != "error"} | {"ok": words[row["ok"]]}
            for row in shown
        ]
    print_rows(args, shown)
    for row in rows:
        if row["error"]:
            ranks = "" if row["ranks"] is None else f", {row['ranks']} ranks"
            declined = "declined: " if row["ok"] is None else ""
            sys.stderr.write(f"{row['name']}{ranks}: {declined}{row['error']}\n")


def _status(rows: list[dict[str, Any]]) -> int:
    """Return 0 only when nothing failed and every algorithm was proved somewhere."""
    names = {row["label"] for row in rows}
    proved = {row["label"] for row in rows if row["ok"]}
    if rows and names == proved and not any(row["ok"] is False for row in rows):
        return 0
    for name in sorted(names - proved):
        sys.stderr.write(f"{name}: nothing was proved\n")
    return 1


def _row(name: str, ranks: int | None) -> dict[str, Any]:
    return {
        "name": name,
        "ranks": ranks,
        "ok": False,
        "operations": 0,
        "plans": 0,
        "ms": 0.0,
        "error": "",
        "misused": False,
    }


def _tell(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _judge(
    found: Algorithm | Program,
    num_ranks: int,
    params: dict[str, Any],
    schedules: list[Schedule],
    in_place: bool,
) -> dict[str, Any]:
    """Return one row; ok is None when its author declines the number of ranks."""
    row = _row(found.name, num_ranks)
    start_us = MONOTONIC.now_us()
    try:
        program = build(found, num_ranks, params)
        row["operations"] = len(program.ops)
        _check_promises(program)
        proved = verify(program)
        for schedule in schedules:
            verify_plan(lower(proved, schedule, in_place=in_place))
            row["plans"] += 1
        row["ok"] = row["plans"] > 0
    except RanksError as e:
        row |= {"ok": None, "error": _tell(e)}
    except CallError as e:  # parameters that this number of ranks cannot have
        row |= {"ok": False if e.where else None, "error": _tell(e)}
        row["misused"] = not e.where
    except ProgramError as e:
        row["error"] = _tell(e)
    row["ms"] = round((MONOTONIC.now_us() - start_us) / 1e3, 3)
    return row


def _check_promises(program: Program) -> None:
    """Raise when the collective promises nothing here, so that there is no proof."""
    kind = collectives.get(program.collective)
    shape = Shape.of(program)
    kind.check(shape)
    if kind.num_parts(shape) and not any(
        kind.promise(shape, rank) for rank in range(program.num_ranks)
    ):
        raise ProgramError(
            f"{program.name}: nothing to prove: with these parameters {kind.name} "
            f"promises nothing; want some, such as --param 'pairs=((0, 1),)'"
        )
