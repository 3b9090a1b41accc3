"""Show an algorithm: its program, its plan, its kernel, its picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from stretto import executors
from stretto.cli.draw import svg
from stretto.cli.targets import add_target, build, find, params_of
from stretto.collectives import Operator, dtype_name
from stretto.errors import CallError
from stretto.ir import Program
from stretto.lang import Algorithm
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.verify import verify, verify_plan

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_target(parser)
    parser.add_argument("--ranks", type=int, help="how many [4]")
    parser.add_argument("--plan", action="store_true", help="the plan, proved")
    parser.add_argument("--cuda", action="store_true", help="the kernel of the plan")
    parser.add_argument("--svg", metavar="FILE", help="write a space-time picture")
    parser.add_argument(
        "--schedule", default="", metavar="WORDS", help="[push bulk staged]"
    )
    parser.add_argument(
        "--in-place", action="store_true", help="a plan for use in place"
    )
    parser.add_argument("--dtype", default="float32", help="of the kernel [float32]")
    parser.add_argument("--op", default="sum", help="of the kernel [sum]")


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; the program when nothing was."""
    found = find(args.algorithm)
    default = 4 if isinstance(found, Algorithm) else found.num_ranks
    program = build(found, args.ranks or default, params_of(args))
    if args.svg:
        Path(args.svg).write_text(svg(program), encoding="utf-8")
        print(f"{args.svg}: {program.name}, {program.num_ranks} ranks")
    if args.plan or args.cuda:
        _show_plan(args, program)
    elif not args.svg:
        print(program, end="")
    return 0


def _show_plan(args: argparse.Namespace, program: Program) -> None:
    schedule = Schedule.parse(args.schedule)
    plan = verify_plan(lower(verify(program), schedule, in_place=args.in_place))
    if args.plan:
        print(plan.value, end="")
    if not args.cuda:
        return
    show = getattr(executors.get("cuda"), "show", None) if _has_cuda() else None
    if show is None:
        raise CallError("--cuda: no executor here shows kernels; want executors/cuda")
    op = Operator.named(args.op)
    print(show(plan, dtype=dtype_name(args.dtype), op=op), end="")


def _has_cuda() -> bool:
    return "cuda" in executors.names()
