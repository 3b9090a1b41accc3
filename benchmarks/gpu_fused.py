"""all_reduce + residual add + RMSNorm in one kernel, beside NCCL and a fused norm.

    python benchmarks/gpu_fused.py --ranks 4 --time-budget 60 --out DIR

Hidden 8192, bf16, CUDA graphs, the slowest rank, medians over interleaved repeats. One
call of every variant is checked, eagerly and replayed, before it is timed; all ranks
must have the same bits. Peers: NCCL as it comes, NCCL with NCCL_GRAPH_MIXING_SUPPORT=0,
NCCL in symmetric windows, each followed by a Triton kernel (4, 8 and 16 warps: the best
counts). Results are written after every row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_collectives import PeerSet  # noqa: E402

ROWS = (1, 2, 4, 8, 16, 32, 64)
GOAL = 1.5
WARPS = (4, 8, 16)


def candidates(rows: int, ranks: int) -> list[str]:
    """Return the schedules to try for a number of rows."""
    found = []
    for name, most in (("one_shot", rows), ("two_shot", rows // ranks)):
        for share in (1, 2, 4, 8):  # blocks to a row
            if not 0 < most * share <= 128 or (share == 1 and name == "two_shot"):
                continue
            for threads in (1024 // share, 512 // share)[: 2 if share < 4 else 1]:
                words = f"blocks={most * share} threads={threads}"
                found.append(f"all_reduce/{name}|push packets staged {words}")
    return found


def compile_one(rows: int, ranks: int, variant: str, rank: int) -> str:
    """Compile a kernel into the disk cache; return what went wrong, or nothing."""
    from gpu_fused_worker import call_of

    from stretto import algorithms
    from stretto.executors.cuda.compile import compile_kernel
    from stretto.executors.cuda.epilogue import shared_by
    from stretto.executors.cuda.generate import generate
    from stretto.lower import lower
    from stretto.plan import Schedule
    from stretto.verify import verify, verify_plan

    try:
        name, schedule = variant.split("|")
        program = verify(algorithms.get(name).build(ranks))
        plan = verify_plan(lower(program, Schedule.parse(schedule))).value
        spec = call_of(rows).epilogue
        part = rows if "one_shot" in name else -(-rows // ranks)
        kernel = generate(
            plan,
            rank=rank,
            dtype="bfloat16",
            epilogue=spec,
            share=shared_by(spec, plan.schedule.blocks, part),
        )
        compile_kernel(kernel, arch=(9, 0))
    except Exception as e:
        return f"{variant}: {type(e).__name__}: {e}"
    return ""


class Run:
    """One measurement: peer sets, rows, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.failures: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.pool = ProcessPoolExecutor(max(2, (os.cpu_count() or 4) // 2))
        jobs = [
            self.pool.submit(compile_one, rows, args.ranks, variant, rank)
            for rows in ROWS
            for variant in candidates(rows, args.ranks)
            for rank in range(args.ranks)
        ]
        self.sets: dict[str, PeerSet] = {}
        for kind in args.sets.split(","):
            if kind.endswith("mix0"):
                os.environ["NCCL_GRAPH_MIXING_SUPPORT"] = "0"
            self.sets[kind] = PeerSet(kind, args)
            os.environ.pop("NCCL_GRAPH_MIXING_SUPPORT", None)
        for one in self.sets.values():
            one.ready(60)
            if one.dead:
                self.failures.append(f"{one.kind} does not start: {one.dead[:500]}")
        done, late = wait(jobs, timeout=max(1.0, self.left() - 14))
        self.failures += sorted({j.result() for j in done if j.result()})
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.say(f"{len(done)} kernels compiled, {len(late)} not")

    def left(self) -> float:
        """Return the seconds left."""
        return self.args.time_budget - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def variants(self, rows: int) -> list[tuple[str, str]]:
        """Return (set, variant) of everything to measure."""
        kinds = [
            (k, v) for k in self.sets if k != "fused_ours" for v in ("plain", "symm")
        ]
        found = [
            (kind, f"{name} {warps}")
            for kind, name in kinds
            for warps in WARPS
            if name == "plain" or kind == "fused_nccl_mix0"
        ]
        if "fused_ours" in self.sets:
            ours = candidates(rows, self.args.ranks)
            found = [("fused_ours", v) for v in ours] + found
        return found

    def prepare(self, rows: int, kind: str, variant: str) -> bool:
        """Prepare a variant on all ranks; return whether it is right."""
        one = self.sets[kind]
        how = {"collective": "norm", "nbytes": rows, "variant": variant}
        answers = one.ask("prepare", timeout=20, **how)
        label = f"{rows} rows: {kind} {variant}"
        if answers is None:
            self.failures.append(f"{label}: {one.dead}")
            return False
        wrong = [a.get("error") or a["wrong"] for a in answers]
        if not any(wrong) and len({a["checksum"] for a in answers}) > 1:
            wrong = ["ranks have different bits"]
        if any(wrong):
            self.failures.append(f"{label}: {next(w for w in wrong if w)[:300]}")
        if any("error" in a for a in answers):
            one.ask("reset", timeout=20)
        return not any(wrong)

    def measure(self, rows: int) -> None:
        """Measure one number of rows."""
        right = [v for v in self.variants(rows) if self.prepare(rows, *v)]
        times: dict[tuple[str, str], list[float]] = {v: [] for v in right}
        for _ in range(self.args.repeats):
            for kind, variant in right:
                how = {"collective": "norm", "nbytes": rows, "variant": variant}
                answers = self.sets[kind].ask("time", timeout=10, replays=20, **how)
                if answers and all("us" in a for a in answers):
                    times[kind, variant].append(max(a["us"] for a in answers))
        found = {
            f"{kind} {variant}": round(statistics.median(taken), 3)
            for (kind, variant), taken in times.items()
            if taken
        }
        self.rows.append(summary(rows, found))
        self.say(str({k: v for k, v in self.rows[-1].items() if k != "all"}))
        self.write()
        for one in self.sets.values():
            one.ask("drop", timeout=10)

    def write(self) -> None:
        """Write what there is."""
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        ).stdout.strip()  # fmt: skip
        document = {
            "command": "python benchmarks/gpu_fused.py " + " ".join(sys.argv[1:]),
            "commit": commit or os.environ.get("COMMIT", ""),
            "host": platform.node(),
            "ranks": self.args.ranks,
            "hidden": 8192,
            "dtype": "bfloat16",
            "rows": self.rows,
            "failures": self.failures,
        }
        out = Path(self.args.out)
        text = json.dumps(document, indent=1)
        (out / f"gpu_fused_h200x{self.args.ranks}.json").write_text(text)
        (out / f"gpu_fused_h200x{self.args.ranks}.md").write_text(markdown(document))


def summary(rows: int, found: dict[str, float]) -> dict[str, Any]:
    """Return the best of everybody, and the ratio."""

    def best(*begins: str) -> tuple[float, str] | None:
        theirs = [(us, k) for k, us in found.items() if k.startswith(begins)]
        return min(theirs) if theirs else None

    ours, peer = best("fused_ours"), best("fused_nccl")
    said: dict[str, Any] = {"tokens": rows, "bytes": rows * 8192 * 2}
    for name, begins in (
        ("ours", "fused_ours"),
        ("nccl", "fused_nccl plain"),
        ("nccl_mix0", "fused_nccl_mix0 plain"),
        ("nccl_symm", "fused_nccl_mix0 symm"),
    ):
        one = best(begins)
        said[name] = one and one[0]
    said["variant"] = ours and ours[1]
    said["over_best"] = ours and peer and round(peer[0] / ours[0], 3)
    said["all"] = found
    return said


def markdown(document: dict[str, Any]) -> str:
    """Return the table."""
    lines = [
        "# all_reduce + residual add + RMSNorm, hidden 8192, bf16",
        "",
        f"{document['ranks']} H200, CUDA graphs, medians of the slowest rank in us;",
        f"commit {document['commit']}, `{document['command']}`.",
        f"Peers are followed by a Triton kernel; the goal is {GOAL} times the best.",
        "",
        "| rows | stretto | NCCL | mixing off | symmetric | over the best | schedule |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in document["rows"]:
        cells = [row["tokens"], row["ours"], row["nccl"], row["nccl_mix0"]]
        cells += [row["nccl_symm"], row["over_best"], row["variant"]]
        said = ("-" if c is None else str(c).replace("|", " ") for c in cells)
        lines.append(f"| {' | '.join(said)} |")
    lines += ["", *(f"- {failure}" for failure in document["failures"]), ""]
    return "\n".join(lines)


def main() -> int:
    """Measure everything there is time for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--time-budget", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sets", default="fused_ours,fused_nccl,fused_nccl_mix0")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    args.largest = 1 << 21
    Path(args.out).mkdir(parents=True, exist_ok=True)
    run = Run(args)
    for rows in (64, 1, 16, 4, 32, 8, 2):
        if run.left() < 4:
            run.failures.append(f"{rows} rows: no time left")
            continue
        run.measure(rows)
    run.rows.sort(key=lambda row: row["tokens"])
    run.write()
    for one in run.sets.values():
        one.stop()
    print("\n".join(run.failures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
