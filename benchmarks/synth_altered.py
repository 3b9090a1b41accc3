"""Synthesis away from known machines: altered ones, made from a seed, in a table.

Links are down or halved, NICs dead, groups have relays or none, generations are mixed;
tori, meshes, dragonflies, fat trees, stars. Every figure is of an emitted program: its
text is read back, its moves are replayed here, link by link, by code that knows nothing
of `stretto.synth`, and its gap is to a bound that is computed here too, by linear
programs. Run from the repository, in part if need be; what is there is not run again:

    python benchmarks/synth_altered.py --out benchmarks/results/synth_altered_202611

On a computer of 64 cores, many at a time, no row begun that would end too late:

    python benchmarks/synth_altered.py --jobs 60 --minutes 9 --wall --out FILE
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
for _name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):  # before anything asks
    os.environ.setdefault(f"{_name}_NUM_THREADS", "2")

from dataclasses import replace  # noqa: E402

from altered_bounds import bound_us  # noqa: E402
from altered_check import check  # noqa: E402
from altered_machines import SEED, Case, altered  # noqa: E402

from stretto import topology  # noqa: E402
from stretto.bench.machine import commit  # noqa: E402
from stretto.compiler.verify import verify  # noqa: E402
from stretto.synth import (  # noqa: E402
    Budget,
    clock,
    from_machine,
    synthesize,
    written,
)
from stretto.synth.planning import timing  # noqa: E402
from stretto.synth.planning.compiled import compiled  # noqa: E402

_LARGE = 10**8
COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "all_reduce")
GOALS = {
    "all_gather": (0.03, 0.10),
    "reduce_scatter": (0.03, 0.10),
    "all_to_all": (0.03, 0.12),
    "all_reduce": (0.05, 0.15),
}


def run_one(number: int, collective: str, nbytes: int, budget: float) -> Case:
    """Synthesise one case here, check its text, and say how it went."""
    case = list(altered())[number]
    begun = clock.now()
    network = from_machine(case["machine"])
    if case["group"]:
        network = network.group(case["group"], relays=case["relays"])
    found = synthesize(collective, network, nbytes, budget=Budget.within(budget))
    took = clock.now() - begun
    if not found.schedule.listed:  # in the order of the plan, move by move
        schedule = replace(found.schedule, listed=True, waves=())
        found = replace(found, schedule=schedule)
    program = verify(found.program("altered"))
    emitted = clock.now() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    us = check(case, str(program.value), collective, nbytes)
    claim = written(
        program, case["machine"], nbytes=nbytes, ranks=network.places
    ).time_us
    assert abs(us / claim - 1) < 1e-6, f"checker {us}, simulator {claim}"
    least = bound_us(case, collective, nbytes)
    ours = float(found.bound_us)
    assert us >= least, f"{us} us is below the bound of {least}"
    assert us >= ours * (1 - 1e-9)
    return {
        "case": number,
        "machine": case["name"],
        "collective": collective,
        "nbytes": nbytes,
        "budget": budget,
        "clock": "process" if clock.now is time.process_time else "wall clock",
        "us": us,
        "independent_us": least,
        "bound_us": ours,
        "gap": us / max(least, ours) - 1,
        "independent_gap": us / least - 1,
        "moves": len(found.schedule.moves),
        "vias": sum(1 for op in program.value.ops if op.via),
        "generator": found.schedule.generator,
        "seconds": round(took, 1),
        "with_file": round(emitted, 1),
        "peak_mb": round(peak),
        "load": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
        "commit": commit()[:7],
    }


def main() -> None:
    """Run what is missing, each case in a process of its own; write after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="without a suffix")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--sizes", default="1000000000,65536")
    parser.add_argument("--cases", default="", help="such as 0-9; empty: all")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--again", type=float, default=-1, help="rows above this gap")
    parser.add_argument("--shard", default="0/1", help="such as 0/2: every other case")
    parser.add_argument("--wall", action="store_true", help="budgets are of the clock")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="end by then")
    args = parser.parse_args()
    begun = time.monotonic()
    _compile()
    if not args.wall:
        clock.now = time.process_time
    running: dict[int, Running] = {}
    for key, row in list(_missing(args)):
        while len(running) >= max(1, args.jobs):
            _collect(args, running)
        left = args.minutes * 60 - (time.monotonic() - begun)
        if left < args.budget * 1.2 + 10:
            break
        child = _begin(key, row)
        running[child.pipe] = child
    while running:
        _collect(args, running)


def _compile() -> None:
    """Plan a little with compiled code, in another process: what it keeps is shared."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    timing._fast.functions = compiled() or timing._fast.functions
    network = from_machine(topology.load("dgx1"))
    synthesize("all_gather", network, 10**9, budget=Budget.within(2))
    os._exit(0)


def _missing(args: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    """Yield what is to be run: what is not there, or too far from its bound."""
    which, _, of = args.shard.partition("/")
    rows = load(args.out)
    count = len(list(altered()))
    low, _, high = args.cases.partition("-")
    numbers = range(int(low or 0), int(high or low or count - 1) + 1)
    for nbytes in map(int, args.sizes.split(",")):
        for number in (i for i in numbers if i % int(of) == int(which)):
            for collective in args.collectives.split(","):
                key = f"{number} {collective} {nbytes}"
                old = rows.get(key)
                redo = old is not None and 0 <= args.again < old.get("gap", 9)
                if old is None or redo:
                    yield (
                        key,
                        {
                            "case": number,
                            "collective": collective,
                            "nbytes": nbytes,
                            "budget": args.budget,
                        },
                    )


class Running(NamedTuple):
    """A row that is being made in a process of its own."""

    key: str
    row: Case
    pid: int
    pipe: int
    begun: float


def _begin(key: str, row: Case) -> Running:
    """Begin a row in a process of its own; its failure is a row, too."""
    begun = time.monotonic()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        resource.setrlimit(resource.RLIMIT_CPU, (int(row["budget"] * 3 + 120),) * 2)
        try:
            try:
                asked = (row[k] for k in ("case", "collective", "nbytes", "budget"))
                out = run_one(*asked)
            except BaseException as e:  # a row says what it was
                out = {"failed": f"{type(e).__name__}: {e}"[:2000]}
            os.write(writes, json.dumps(out).encode())
        finally:
            os._exit(0)
    os.close(writes)
    return Running(key, row, child, reads, begun)


def _collect(args: argparse.Namespace, running: dict[int, Running]) -> None:
    """Wait until some rows are done; write them."""
    ready, _, _ = select.select(list(running), [], [])
    done = {}
    for pipe in ready:
        one = running.pop(pipe)
        with os.fdopen(pipe) as file:
            text = file.read()
        os.waitpid(one.pid, 0)
        row = json.loads(text) if text else {"failed": "no end"}
        row |= one.row
        row["wall"] = round(time.monotonic() - one.begun, 1)
        print(json.dumps(row), file=sys.stderr, flush=True)
        done[one.key] = row
    with _locked(args.out):  # shards write one file
        rows = load(args.out)
        for key, row in done.items():
            if key not in rows or row.get("gap", 9) < rows[key].get("gap", 9):
                rows[key] = row
        write(args.out, rows)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    with out.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        out.with_suffix(".lock").unlink(missing_ok=True)


def load(out: Path) -> dict[str, Case]:
    """Return the rows that are there."""
    file = out.with_suffix(".json")
    if not file.exists():
        return {}
    document = json.loads(file.read_text())
    cells = [zip(document["columns"], row, strict=True) for row in document["rows"]]
    rows = [{k: v for k, v in row if v is not None} for row in cells]
    return {f"{r['case']} {r['collective']} {r['nbytes']}": r for r in rows}


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write(out: Path, rows: dict[str, Case]) -> None:
    """Write JSON and a table, after every row: stopping early loses nothing."""
    ordered = sorted(
        rows.values(), key=lambda r: (-r["nbytes"], r["case"], r["collective"])
    )
    columns = list(dict.fromkeys(name for row in ordered for name in row))
    lines = [json.dumps([_short(row.get(c)) for c in columns]) for row in ordered]
    text = ",\n".join(lines)
    head = f'{{"seed": {SEED}, "columns": {json.dumps(columns)}, "rows": ['
    out.with_suffix(".json").write_text(f"{head}\n{text}\n]}}\n")
    good = [r for r in ordered if "gap" in r]
    budgets = ", ".join(f"{b:g}" for b in sorted({r["budget"] for r in good}))
    clocks = {r.get("clock", "process") for r in good}
    whose = " or ".join(f"the {name}'s time" for name in sorted(clocks))
    loads = [r["load"] for r in good] or [0]
    cores: list[object] = sorted({r["cores"] for r in good if r.get("cores")})
    counts = Counter(r["commit"] for r in good if r.get("commit"))
    commits: list[object] = [f"{c} ({n} rows)" for c, n in counts.most_common()]
    said = (
        f"`benchmarks/synth_altered.py`, seed {SEED};"
        f" {len({r['case'] for r in ordered})} of {len(list(altered()))} machines so"
        f" far. Budgets of {budgets} s of {whose}; {_listed(cores)} cores, load"
        f" {min(loads)} to {max(loads)}, commit {_listed(commits)}."
        " Times are of the emitted program, replayed by"
        " a checker that shares no code with synthesis and agrees with"
        " `stretto simulate --schedule written` to a"
        " millionth. A gap is to the larger of two bounds, the script's own and"
        " `stretto bound`'s."
    )
    lines = [
        "# Synthesis on altered machines",
        "",
        said,
        "",
        *_summary(ordered),
        "",
        *_details(ordered),
    ]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def _summary(rows: list[Case]) -> Iterator[str]:
    """Yield a line for every size and collective."""
    head = ("size", "collective", "rows", "failed", "median gap", "worst gap", "goal")
    more = ("over the goal's worst", "script's own bound: median, worst", "peak MB")
    yield _line(*head, *more)
    yield _line(*["---"] * (len(head) + len(more)))
    for nbytes in sorted({r["nbytes"] for r in rows}, reverse=True):
        for collective in COLLECTIVES:
            here = [
                r
                for r in rows
                if (r["nbytes"], r["collective"]) == (nbytes, collective)
            ]
            some = [r for r in here if "gap" in r]
            if not some:
                continue
            gaps = [r["gap"] for r in some]
            own = [r["independent_gap"] for r in some]
            goal, worst = GOALS[collective] if nbytes > _LARGE else (0.3, 1e9)
            shown = f"{goal:.0%}, {worst:.0%}" if nbytes > _LARGE else "30 %, none"
            yield _line(
                nbytes,
                collective,
                len(some),
                len(here) - len(some),
                f"{median(gaps):.2%}",
                f"{max(gaps):.2%}",
                shown,
                sum(1 for g in gaps if g > worst),
                f"{median(own):.2%}, {max(own):.2%}",
                max(r["peak_mb"] for r in some),
            )


def _details(rows: list[Case]) -> Iterator[str]:
    """Yield a line for every row."""
    head = ("size", "machine", "collective", "us", "bound us", "gap", "moves")
    more = ("named ways", "s", "with the file", "MB", "budget s", "load", "commit")
    yield _line(*head, *more, "found by")
    yield _line(*["---"] * (len(head) + len(more) + 1))
    for r in rows:
        first = r["nbytes"], r.get("machine", f"case {r['case']}"), r["collective"]
        if "gap" not in r:
            yield _line(*first, f"failed: {r['failed']}", *[""] * 11)
            continue
        yield _line(
            *first,
            f"{r['us']:.6g}",
            f"{max(r['bound_us'], r['independent_us']):.6g}",
            f"{r['gap']:.2%}",
            *(r["moves"], r["vias"], r["seconds"], r["with_file"], r["peak_mb"]),
            *(f"{r['budget']:g}", r["load"], r.get("commit", ""), r["generator"]),
        )


def _listed(words: list[object]) -> str:
    return " and ".join(map(str, words)) or "unknown"


def _line(*words: object) -> str:
    return f"| {' | '.join(map(str, words))} |"


if __name__ == "__main__":
    main()
