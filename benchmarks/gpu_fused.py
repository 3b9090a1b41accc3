"""all_reduce + residual add + RMSNorm in one kernel, beside NCCL and a fused norm.

    python benchmarks/gpu_fused.py --ranks 4 --time-budget 70 --out DIR

Hidden 8192, bf16, CUDA graphs, the slowest rank, medians over interleaved repeats. One
call of every variant is checked, eagerly and replayed, before it is timed: all ranks
must have the same bits, and ours those of the reference. Peers: NCCL as it comes, NCCL
with NCCL_GRAPH_MIXING_SUPPORT=0, NCCL in symmetric windows, each followed by a Triton
kernel (8, 16 and 32 warps: the best counts). All kernels are compiled before anything
is timed, on all cores, while the peers start; a fault of one candidate is no fault of
the others; results are written after every row. `variant` of a row is the best of our
candidates (gpu_fused_kernels.py), `chosen` what the runtime takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_fused_kernels import Kernels  # noqa: E402
from gpu_peers import PeerSet  # noqa: E402

ORDER = (1, 64, 8, 32, 2, 16, 4, 128)
"""Of rows: what an end of the time leaves out is between what there is."""
A_ROW = 4.0
"""Seconds that a number of rows takes; the first more, while everything is new."""
GOAL = 1.5
WARPS = (8, 16, 32)
STARTS = 4
"""Times that the processes of a set are started, at most."""
AGAIN = 3
"""Faults of one number of rows after which its set is left out."""


class Run:
    """One measurement: peer sets, rows, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.failures: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.kernels = Kernels(ORDER, args.ranks)
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
        self.say("peers are there")
        self.say(self.kernels.ready(self.left() / 3))

    def left(self) -> float:
        """Return the seconds left."""
        return self.args.time_budget - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def variants(self, rows: int) -> list[tuple[str, str]]:
        """Return (set, variant) of everything to measure."""
        found = [
            (kind, f"{name} {warps}")
            for kind in self.sets
            if kind != "fused_ours"
            for name in ("plain", "symm")
            for warps in WARPS
            if name == "plain" or kind == "fused_nccl_mix0"
        ]
        if "fused_ours" in self.sets:
            ours, wrong = self.kernels.of(rows)
            self.failures += wrong
            found = [("fused_ours", v) for v in ours] + found
        return found

    def prepare(self, rows: int, kind: str, variant: str) -> str:
        """Prepare a variant on all ranks; return what is wrong, or nothing."""
        one = self.sets[kind]
        how = {"collective": "norm", "nbytes": rows, "variant": variant}
        answers = one.ask("prepare", timeout=15, **how)
        if answers is None:
            return f"the processes are lost: {one.dead[:300]}"
        errors = [a["error"] for a in answers if "error" in a]
        if errors:
            if one.ask("reset", timeout=15) is None:
                return f"{errors[0][:300]}; lost: {one.dead[:200]}"
            return f"was reset: {errors[0][:300]}"
        wrong = [a["wrong"] for a in answers if a["wrong"]]
        if not wrong and len({a["checksum"] for a in answers}) > 1:
            wrong = ["ranks have different bits"]
        return f"wrong: {wrong[0][:300]}" if wrong else ""

    def all_prepared(self, rows: int, kind: str) -> list[str]:
        """Return the variants of a set that are right, all of them ready for timing.

        One that fails with a fault takes what its set had with it: that is prepared
        again, once, without the one that failed.
        """
        one, left = self.sets[kind], [v for k, v in self.variants(rows) if k == kind]
        right: list[str] = []
        again = 0
        while left and self.left() > 0:
            if one.dead:
                if one.starts > STARTS or self.left() < 2 * A_ROW:
                    self.failures.append(f"{rows} rows: {kind}: not started again")
                    return []
                one.start()
                one.ready(40)
                continue
            variant = left.pop(0)
            wrong = self.prepare(rows, kind, variant)
            if not wrong:
                right.append(variant)
                continue
            self.failures.append(f"{rows} rows: {kind} {variant}: {wrong}")
            if not wrong.startswith("wrong"):  # everybody else's graphs are gone
                again += 1
                left, right = ([*right, *left] if again <= AGAIN else []), []
        return right

    def measure(self, rows: int) -> None:
        """Measure one number of rows."""
        right = [(k, v) for k in self.sets for v in self.all_prepared(rows, k)]
        times: dict[tuple[str, str], list[float]] = {v: [] for v in right}
        for turn in range(self.args.repeats):
            for kind, variant in right if turn % 2 == 0 else right[::-1]:
                how = {"collective": "norm", "nbytes": rows, "variant": variant}
                answers = self.sets[kind].ask("time", timeout=10, replays=20, **how)
                if answers and all("us" in a for a in answers):
                    times[kind, variant].append(max(a["us"] for a in answers))
        found = {
            f"{kind} {variant}": round(statistics.median(taken), 3)
            for (kind, variant), taken in times.items()
            if taken
        }
        self.rows.append(summary(rows, found, self.kernels.chosen(rows)))
        self.say(str({k: v for k, v in self.rows[-1].items() if k != "all"}))
        self.write()
        for one in self.sets.values():
            one.ask("drop", timeout=10)

    def write(self) -> None:
        """Write what there is."""
        from stretto.bench.machine import commit

        document = {
            "command": "python benchmarks/gpu_fused.py " + " ".join(sys.argv[1:]),
            "commit": commit(),
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


def summary(rows: int, found: dict[str, float], chosen: str) -> dict[str, Any]:
    """Return the best of everybody, the ratio, and what the runtime would choose."""

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
    said["chosen"] = chosen
    said["chosen_us"] = found.get(f"fused_ours {chosen}")
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
    parser.add_argument("--time-budget", type=float, default=70)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sets", default="fused_ours,fused_nccl,fused_nccl_mix0")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    args.largest = 1 << 21
    Path(args.out).mkdir(parents=True, exist_ok=True)
    run = Run(args)
    for rows in ORDER:
        if run.left() < A_ROW:
            run.failures.append(f"{rows} rows: no time left")
            continue
        run.measure(rows)
    run.rows.sort(key=lambda row: row["tokens"])
    run.write()
    run.kernels.stop()
    for one in run.sets.values():
        one.stop()
    print("\n".join(run.failures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
