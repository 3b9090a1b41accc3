"""Show an algorithm: its program, its plan, its kernel, its picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from stretto import executors
from stretto.cli.targets import (
    add_target,
    build,
    find,
    find_epilogue,
    params_of,
    ranks_of,
)
from stretto.compiler.lower import lower
from stretto.compiler.plan import ProvedPlan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.executors import Call, cuda
from stretto.program.collectives import Operator, dtype_name
from stretto.program.epilogues import CASTS, Named, Spec, ValueForm, resolve
from stretto.program.ir import Program
from stretto.program.ir.drawing import svg
from stretto.program.lang import Algorithm

CONCLUDED = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that take an epilogue."""
FORMS = {form.value: form for form in ValueForm if form is not ValueForm.SCALAR}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_target(parser)
    parser.add_argument("--ranks", type=ranks_of, help="how many [4]")
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
    _add_epilogue(parser)


def _add_epilogue(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("an epilogue, which the kernel ends with")
    group.add_argument("--epilogue", metavar="FILE.py:NAME", help="what @epilogue made")
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FORM[:DTYPE]",
        help="an input: element, row, column or number [element]; may be repeated",
    )
    group.add_argument("--row", type=int, default=1024, help="elements [1024]")
    group.add_argument("--rows", type=int, help="of a part [as many as blocks]")


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; the program when nothing was."""
    _check(args)
    found = find(args.algorithm)
    default = 4 if isinstance(found, Algorithm) else found.num_ranks
    program = build(found, args.ranks or default, params_of(args))
    spec = _spec(args, program) if args.epilogue else None
    if args.svg:
        Path(args.svg).write_text(svg(program), encoding="utf-8")
        print(f"{args.svg}: {program.name}, {program.num_ranks} ranks")
    if args.plan or args.cuda:
        _show_plan(args, program, spec)
    elif not args.svg:
        print(program, end="")
    if spec is not None and not args.cuda:
        print(f"epilogue {spec}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise for a word that means nothing, whether or not it is about to be used."""
    try:
        Schedule.parse(args.schedule)
    except CallError as e:
        raise CallError(f"--schedule {args.schedule}: {e}") from None
    dtype_name(args.dtype)
    Operator.named(args.op)


def _spec(args: argparse.Namespace, program: Program) -> Spec:
    """Return the epilogue for the inputs that were described."""
    if program.collective not in CONCLUDED:
        raise CallError(
            f"--epilogue: {program.collective} takes none; {', '.join(CONCLUDED)} do"
        )
    dtype, found = dtype_name(args.dtype), find_epilogue(args.epilogue)
    if dtype not in CASTS:
        raise CallError(f"--epilogue: of {dtype} elements; want {', '.join(CASTS)}")
    if args.row < 1 or (args.rows is not None and args.rows < 1):
        raise CallError(f"--row {args.row} --rows {args.rows}; want at least 1")
    named = {n: Named(n, dtype, ValueForm.ELEMENT) for n in found.graph.inputs[1:]}
    for text in args.input:
        one = _input(text, list(named), dtype)
        named[one.name] = one
    return resolve(found.graph, named, dtype=dtype, row=args.row)


def _input(text: str, names: list[str], dtype: str) -> Named:
    """Return what `weight=row` or `weight=row:float32` says of an input."""
    name, _, rest = text.partition("=")
    form, colon, kind = rest.partition(":")
    is_number = form == "number" and not colon
    known = form in FORMS and (not colon or kind in CASTS)
    if name not in names or not (is_number or known):
        raise CallError(
            f"--input {text}: want NAME=FORM or NAME=FORM:DTYPE, NAME one of "
            f"{', '.join(names) or 'none'}, FORM one of {', '.join(FORMS)}, number, "
            f"DTYPE one of {', '.join(CASTS)}"
        )
    if is_number:
        return Named(name, "", ValueForm.SCALAR)
    return Named(name, kind or dtype, FORMS[form])


def _show_plan(args: argparse.Namespace, program: Program, spec: Spec | None) -> None:
    schedule = Schedule.parse(args.schedule)
    proved = verify(program)
    plan = verify_plan(lower(proved, schedule, in_place=args.in_place), proved)
    if args.plan:
        print(plan.value, end="")
        _say_trusted(plan, args, spec)
    if not args.cuda:
        return
    if not _has_cuda():
        raise CallError("--cuda: no executor here shows kernels; want executors/cuda")
    text = cuda.show(
        plan,
        dtype=dtype_name(args.dtype),
        op=Operator.named(args.op),
        epilogue=spec,
        rows=args.rows or 1 << 30,
    )
    print(text, end="")


def _say_trusted(plan: ProvedPlan, args: argparse.Namespace, spec: Spec | None) -> None:
    """Say what of a call by this plan stands on less than its proof."""
    call = Call(
        dtype=dtype_name(args.dtype),
        op=Operator.named(args.op),
        counts=(1,),
        epilogue=spec,
    )
    for name in ("cpu", "cuda"):
        if name in executors.names():
            word = executors.get(name).trusted(plan, call)
            print(f"# on {name}, trusted: {word}\n" * bool(word), end="")


def _has_cuda() -> bool:
    return "cuda" in executors.names()
