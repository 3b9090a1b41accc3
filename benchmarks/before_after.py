"""Compare what the proof and a call cost in two trees, in turns, in one run.

    python benchmarks/before_after.py TREE_A TREE_B [--turns 5] [--only proof|calls]
        [--json FILE]

A tree is a checkout (`git worktree add /tmp/before a12e501`). Each turn runs A, then B,
each in a process of its own, with this file and that tree's `src`: the proof of
programs, of plans, both together (least CPU time of several), and the cost of small
calls (that tree's benchmarks/call_cost.py, with fewer repeats). A turn takes about 30 s
for proofs and 10 s for calls. A ratio is B over A of the least figures.
Exit 1: some proof takes more than 1.3 times as long. FILE.md gets the table.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 1.3
CALL_REPEATS = 100
"""Of 500 calls each, in place of call_cost.py's 2,000: turns add up."""
PROVED: tuple[tuple[str, int, dict[str, Any], str], ...] = (
    ("all_reduce/hierarchical", 256, {"group": 8}, "push bulk staged"),
    ("all_reduce/ring", 64, {}, "push packets staged"),
    ("all_to_all/one_shot", 48, {}, "push bulk staged"),
    ("all_reduce/two_shot", 64, {}, "pull bulk zero_copy copy:push"),
)
"""Programs that are proved: algorithm, ranks, parameters, schedule."""


def main() -> int:
    """Run all in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=tuple(PARTS), help="measure one part")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(PARTS[args.part]()))
        return 0
    parts = [args.only] if args.only else list(PARTS)
    if len(args.trees) != 2:
        parser.error("want two trees")
    rows: list[dict[str, Any]] = []
    least: list[dict[str, float]] = [{}, {}]
    for turn in range(args.turns):
        for nth, tree in enumerate(args.trees):
            for name, figure in _figures(tree.resolve(), parts).items():
                least[nth][name] = min(figure, least[nth].get(name, figure))
        print(f"turn {turn + 1} of {args.turns}", file=sys.stderr, flush=True)
    for name, before in least[0].items():
        after = least[1].get(name)
        if after is not None and before > 0:
            ratio = round(after / before, 3)
            rows.append({"figure": name, "a": before, "b": after, "ratio": ratio})
    proofs = [row["ratio"] for row in rows if row["figure"].startswith("prove")]
    worst = max(proofs, default=0.0)
    document = {
        "command": "python benchmarks/before_after.py",
        "trees": [_commit(tree) for tree in args.trees],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "turns": args.turns,
        "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "worst_proof_ratio": worst,
        "limit": LIMIT,
        "ok": worst <= LIMIT,
        "rows": rows,
    }
    page = _page(document)
    print(json.dumps(document, indent=1))
    print(page)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        args.json.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if document["ok"] else 1


def _figures(tree: Path, parts: list[str]) -> dict[str, float]:
    """Return what a tree's processes measure, one a part."""
    env = {**os.environ, "PYTHONPATH": os.fspath(tree / "src")}
    figures: dict[str, float] = {}
    for part in parts:
        done = subprocess.run(
            [sys.executable, os.fspath(Path(__file__).resolve()), "--part", part],
            env=env,
            cwd=tree,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        figures |= json.loads(done.stdout.splitlines()[-1])
    return figures


def _prove() -> dict[str, float]:
    """Return CPU seconds of proofs, with what the tree in PYTHONPATH has."""
    from stretto.compiler.lower import lower
    from stretto.compiler.plan import Schedule
    from stretto.compiler.verify import verify, verify_plan
    from stretto.program import algorithms

    figures: dict[str, float] = {}
    with_program = "means" in inspect.signature(verify_plan).parameters
    for name, ranks, params, text in PROVED:
        program = algorithms.get(name).build(ranks, **params)
        program_s, proved = _least(lambda p=program: verify(p))  # type: ignore[misc]
        plan = lower(proved, Schedule.parse(text))
        means = (proved,) if with_program else ()
        alone_s, _ = _least(lambda a=plan: verify_plan(a))  # type: ignore[misc]
        plan_s, _ = _least(lambda a=plan, b=means: verify_plan(a, *b))  # type: ignore[misc]
        what = f"{name} of {ranks}, {text}"
        figures[f"prove program, s: {name} of {ranks}"] = program_s
        figures[f"prove plan alone, s: {what}"] = alone_s
        figures[f"prove plan, with its program where it can, s: {what}"] = plan_s
        figures[f"prove both, s: {what}"] = round(program_s + plan_s, 5)
    return figures


def _calls() -> dict[str, float]:
    """Return what small calls cost, by the script of the tree that this runs in."""
    folder = Path("benchmarks").resolve()
    sys.path[0] = os.fspath(folder)
    spec = importlib.util.spec_from_file_location("call_cost", folder / "call_cost.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.REPEATS = CALL_REPEATS
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "calls.json"
        sys.argv = ["call_cost.py", os.fspath(out)]
        script.main()
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return {f"call, us: {row['call']}": row["us"] for row in rows}


PARTS: dict[str, Callable[[], dict[str, float]]] = {"proof": _prove, "calls": _calls}
"""What is measured, each in a process of its own."""


def _least(work: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    took, result = float("inf"), None
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        took = min(took, time.process_time() - start)
    return round(took, 5), result


def _commit(tree: Path) -> str:
    done = subprocess.run(
        ["git", "-C", os.fspath(tree), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or tree.name


def _page(document: dict[str, Any]) -> str:
    a, b = document["trees"]
    load = document["load_per_core"]
    lines = [
        f"# What the proof and a call cost: {a} and {b}, in turns",
        "",
        f"`{document['command']}`, {document['turns']} turns, {document['machine']}.",
        f"Load at the end: {load} a core. Figures are least times.",
        f"Worst ratio of a proof: {document['worst_proof_ratio']}, limit {LIMIT}.",
        "",
        f"| figure | {a} | {b} | ratio |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['figure']} | {row['a']:.4f} | {row['b']:.4f} | {row['ratio']} |"
        for row in document["rows"]
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
