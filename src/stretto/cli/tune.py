"""Find the fastest algorithm and schedule for each size; the runtime then uses them."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stretto import bench, topology
from stretto.bench import tune
from stretto.cli.output import Progress
from stretto.errors import CallError, ParseError, reading
from stretto.runtime.calls import VERBS
from stretto.runtime.choice import own, parse_sizes, spell_size

_TUNABLE = tuple(
    name
    for name, verb in VERBS.items()
    if not verb.unequal and {"algorithm", "pairs"} & {*verb.parameters} == {"algorithm"}
)
_ZERO_COPY = (*_TUNABLE[:4], "broadcast")
"""Those that the runtime serves with registered memory as it is."""
_SIZES = {"cpu": "8:16M:4", "cuda": "1K:1G:4"}
_QUICK_S = 20.0
_QUICK_SIZES = {"cpu": "512:8M:16", "cuda": "4K:64M:16"}
_QUICK = (*_TUNABLE[:4], "broadcast")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add = parser.add_argument
    add(
        "collectives",
        nargs="*",
        metavar="COLLECTIVE",
        help=f"all, or of {', '.join(_TUNABLE)} [all_reduce]",
    )
    add("--ranks", type=int, help="start so many [2; those of a launcher]")
    add("--sizes", "--size", help="[8:16M:4; on GPUs 1K:1G:4]")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="[cpu]")
    add("--mode", default="", help="blocking or graph [graph on GPUs]")
    add("--dtype", default="", help="[float32; bfloat16 on GPUs]")
    add("--memory", default="both", choices=("staged", "zero_copy", "both"))
    add("--quick", action="store_true", help="the usual ones, in 20 s")
    add("--if-unknown", action="store_true", help="unless a profile is there already")
    add("--budget", type=float, metavar="S", help="seconds in all [60; 20 if quick]")
    add("--from-scratch", action="store_true", help="as if no profile were shipped")
    add("--deadline", type=float, metavar="S", help="what hangs longer has failed [10]")
    add("--keep", type=int, help="measured, of those simulated [12; 4 if quick]")
    add("--seed", type=int, default=0, help="of inputs and of the comparison [0]")
    add("--out", metavar="FILE", help="the profile [this user's, which is then used]")
    add("--state", metavar="FILE", help="what is decided so far [beside the profile]")
    add("--again", action="store_true", help="forget what was decided before")
    add("--report", metavar="FILE", help="everything that was measured, as JSON")
    add("--plot", metavar="FILE", help="best by size; simulated against measured")
    add("--fit", metavar="BENCH.json", help="fit the simulator's constants instead")
    add("--machine", metavar="NAME", help="where --fit begins [cpux2, h200x4...]")


def run(args: argparse.Namespace) -> int:
    """Search, write the profile, and say what it brings."""
    if args.fit:
        return _fit(args)
    if args.budget is None:
        args.budget = _QUICK_S if args.quick else 60.0
    if args.keep is None:
        args.keep = 4 if args.quick else 12
    here = bench.under_launcher() and args.ranks is None
    with contextlib.nullcontext() if here else own.one_tuner():  # these are one
        ranks = args.ranks or bench.launched_ranks() or 2
        known = own.texts().get(args.device) if args.if_unknown else None
        if own.knows(known, ranks):
            print(f"profile: {own.path_of(args.device)} has rows for {ranks} ranks")
            return 0
        return _tune(args)


def _tune(args: argparse.Namespace) -> int:
    """Search, and write."""
    path = Path(args.out) if args.out else own.path_of(args.device)
    state = Path(args.state) if args.state else path.with_suffix(".state.json")
    if args.again:
        tune.forget(state)
    if args.plot:
        bench.open_figure(args.plot)
    memories = ("staged", "zero_copy") if args.memory == "both" else (args.memory,)
    how = "here" if bench.under_launcher() and args.ranks is None else "auto"
    rules, reports = [], []
    for memory in memories:
        task = _task(args, memory, state, args.budget / len(memories))
        if not task.tests:
            continue
        with Progress(1) as progress:
            found = bench.run_search(
                task, partial(_say, progress), partial(tune.blame, state), how=how
            )
        if found:  # only rank 0 has any
            reports.append({**found, "memory": memory, "ranks": task.num_ranks})
            rules += _rules(found, memory, task)
            about = f"{task.num_ranks} ranks, {task.dtype}, {task.mode}"
    if not reports:
        return 0
    machine = bench.machine_of()
    where = "; ".join(dict.fromkeys(machine.get("gpus", ()))) or machine["processor"]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = tune.merged(path, args.device, rules, f"{where}, {about}")
    path.write_text(text, encoding="utf-8")
    if args.report:
        Path(args.report).write_text(json.dumps(reports, indent=1), encoding="utf-8")
    if args.plot:
        bench.plot_tuning(_joined(reports), args.plot)
    _show(reports)
    _say_used(reports, path, own.path_of(args.device))
    return 0


def _task(
    args: argparse.Namespace, memory: str, state: Path, budget_s: float
) -> bench.BenchTask:
    on_gpu = args.device == "cuda"
    names = tuple(args.collectives) or (_QUICK if args.quick else ("all_reduce",))
    sizes = (_QUICK_SIZES if args.quick else _SIZES)[args.device]
    names = _TUNABLE if "all" in names else names
    for name in names:
        if name not in _TUNABLE:
            raise CallError(f"{name} cannot be tuned; want all, {', '.join(_TUNABLE)}")
    if memory == "zero_copy":
        names = tuple(name for name in names if name in _ZERO_COPY)
    if args.keep < 1:
        raise CallError(f"--keep {args.keep}; want at least 1")
    return bench.BenchTask(
        tests=names,
        sizes=tuple(parse_sizes(args.sizes or sizes)),
        num_ranks=args.ranks or bench.launched_ranks() or 2,
        dtype=args.dtype or ("bfloat16" if on_gpu else "float32"),
        device=args.device,
        buffer="torch" if on_gpu else "numpy",
        registered=memory == "zero_copy",
        mode=args.mode or ("graph" if on_gpu else "blocking"),
        seed=args.seed,
        batch_us=1000.0 if on_gpu else 100.0,
        budget_s=budget_s,
        options={
            "state": str(state.resolve()),
            "keep": args.keep,
            "scratch": args.from_scratch,
            "deadline_s": args.deadline or 10.0,
        },
    )


def _say(progress: Progress, said: str) -> None:
    progress.step(said)
    if not sys.stderr.isatty():
        sys.stderr.write(said + "\n")
        sys.stderr.flush()


def _rules(
    found: Mapping[str, Any], memory: str, task: bench.BenchTask
) -> list[dict[str, Any]]:
    rules = []
    for name, by_size in found["decided"].items():
        decided = {int(n): tune.decision_of(d) for n, d in by_size.items()}
        if decided:
            ranks, dtype = task.num_ranks, task.dtype
            rules.append(tune.rule_of(name, memory, ranks, decided, dtype))
    return rules


def _joined(reports: list[dict[str, Any]]) -> dict[str, Any]:
    decided = {
        f"{name} {report['memory']}": by_size
        for report in reports
        for name, by_size in report["decided"].items()
    }
    return {"decided": decided, "trials": [t for r in reports for t in r["trials"]]}


def _show(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        for name, by_size in report["decided"].items():
            print(f"{name}, {report['memory']}, {report['ranks']} ranks")
            for n in sorted(by_size, key=int):
                row = by_size[n]
                gain = row["untuned_us"] / row["us"] if row["us"] else 1.0
                gained = f"{gain:5.2f}x" if math.isfinite(gain) else "     -"
                size, beside = spell_size(int(n)), _beside_shipped(row)
                said = f"  {size:>6}  {row['us']:10.4g} us  {gained}"
                print(f"{said}{beside}  {row['pin']}")
        for row in report["held_back"]:
            size = spell_size(row["nbytes"])
            print(f"held back: {row['test']} {size}: {row['ratio']:.3f} of untuned")
        for pin, why in report["wrong"].items():
            print(f"not used: {pin}: {why}")


def _say_used(reports: list[dict[str, Any]], path: Path, used: Path) -> None:
    """Say where the profile lies, who reads it, and for which calls."""
    print(f"profile: {path}")
    if path.resolve() == used.resolve():
        print("  every later run of yours reads it; delete it to undo this")
    else:
        print(
            f"  no run reads it yet: copy it to {used}, or to {used.name} in a folder "
            f"that STRETTO_PROFILES names"
        )
    for report in reports:
        for name, by_size in report["decided"].items():
            sizes = sorted(map(int, by_size))
            low, high = spell_size(sizes[0] // 2), spell_size(2 * sizes[-1])
            print(
                f"  {name} of {low} to {high}, {report['memory']}, on "
                f"{report['ranks']} ranks; others are chosen as before"
            )


def _beside_shipped(row: Mapping[str, Any]) -> str:
    """Return how the choice compares with the shipped one, where that was measured."""
    if not row["shipped"]:
        return ""
    if row.get("found"):
        ratio = row["found_us"] / row["shipped_us"]
        return f"  {ratio:5.3f} of shipped, SLOWER, so that is kept: {row['found']}; "
    ratio = row["us"] / row["shipped_us"]
    verdict = row["shipped_interval"]
    said = "the same" if row["pin"] == row["shipped"] else "no slower"
    if verdict and verdict["low"] > 1:
        said = "SLOWER"
    elif verdict and verdict["high"] < 1:
        said = "faster"
    return f"  {ratio:5.3f} of shipped, {said}"


def _fit(args: argparse.Namespace) -> int:
    """Fit, and print the constants."""
    path = Path(args.fit)
    want = "what stretto bench --json or stretto tune --report wrote"
    with reading(ParseError, f"--fit {path}", want):
        text = json.loads(path.read_text(encoding="utf-8"))
        documents = text if isinstance(text, list) else [text]
        seen = [one for doc in documents for one in tune.observations(doc)]
    ranks = seen[0].plan.value.num_ranks
    machine = topology.load(args.machine or topology.assumed(args.device, ranks))
    found = tune.fit(seen, machine)
    written = tune.toml_of(found)
    if args.out:
        Path(args.out).write_text(written, encoding="utf-8")
    print(written, end="")
    return 0
