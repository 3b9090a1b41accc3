"""all_reduce + residual + RMSNorm beside what serving engines run, 1 to 128 rows.

    python benchmarks/gpu_serving.py --build FLASHINFER_DATA --peers peers.so
    python benchmarks/gpu_serving.py --ranks 2 --peers peers.so --out DIR

The first compiles FlashInfer's fused kernel and vLLM's all_reduce out of FlashInfer's
package (`flashinfer/data` of its wheel), with nvcc, on any machine. Without `--peers`
ours are measured alone. Three times of each: a call back to back with itself, a call
after an elementwise kernel of torch that writes its input (that kernel's own time taken
off), and the same where our launches may not begin before that kernel ends
(`strictly`). bf16, CUDA graphs of ten, medians of the slowest rank over interleaved
repeats. Every variant is checked four ways before it is timed; ours have to have the
bits of the reference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_peers import PeerSet  # noqa: E402
from gpu_serving_kernels import candidates, compile_one  # noqa: E402

ROWS = (128, 64, 32, 1, 8, 16, 2, 4, 96)
HIDDEN = (4096, 8192, 5120, 7168)
THEIRS = (
    "flashinfer late",
    "flashinfer early",
    *(f"vllm {blocks} {warps}" for blocks in (16, 36) for warps in (8, 16)),
)
GOAL, FOLLOWS = 1.1, 0.3
TIMES = ("alone", "after", "strictly")
A_CASE = 6.0
"""Seconds that a case takes, at most."""


def build(data: Path, target: Path) -> int:
    """Compile the peers' kernels."""
    source = ROOT / "benchmarks" / "gpu_serving_peers.cu"
    include = [f"-I{data / 'include'}", f"-I{data / 'spdlog' / 'include'}"]
    how = ["-std=c++17", "-O3", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"]
    arch = ["-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr"]
    command = ["nvcc", *how, *arch, *include, "-o", str(target), str(source)]
    return subprocess.run(command, check=False).returncode


class Run:
    """One measurement: both sets of processes, and what was found."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.failures: list[str] = []
        self.cases: list[dict[str, Any]] = []
        self.soaked: list[dict[str, Any]] = []
        self.jobs: dict[tuple[int, int, str], Any] = {}
        self.pool = ProcessPoolExecutor(os.cpu_count() or 4)
        for rows, hidden in self.order():
            for variant in self.wanted(rows, hidden):
                self.jobs[rows, hidden, variant] = [
                    self.pool.submit(
                        compile_one, rows, hidden, args.ranks, variant, rank
                    )
                    for rank in range(args.ranks)
                ]
        kinds = ["serving_ours"]
        if args.peers and Path(args.peers).is_file():
            os.environ["STRETTO_SERVING_PEERS"] = str(Path(args.peers).resolve())
            kinds.append("serving_theirs")
        else:
            self.failures.append(f"no peers at {args.peers!r}: ours alone")
            print(self.failures[-1], flush=True)
        self.sets = {kind: PeerSet(kind, args) for kind in kinds}
        for one in self.sets.values():
            one.ready(90)
            if one.dead:
                self.failures.append(f"{one.kind} does not start: {one.dead[:500]}")
        self.say("processes are there")

    def order(self) -> list[tuple[int, int]]:
        """Return the cases, the most wanted first."""
        return [(r, h) for r in self.args.rows for h in self.args.hidden]

    def wanted(self, rows: int, hidden: int) -> list[str]:
        """Return our variants of a case."""
        found = candidates(rows, hidden, self.args.ranks)
        return found[:1] if self.args.chosen else found

    def left(self) -> float:
        """Return the seconds left."""
        return float(self.args.time_budget) - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def variants(self, rows: int, hidden: int) -> list[tuple[str, str]]:
        """Return (set, variant) of a case: what has been compiled, and theirs."""
        found = [("serving_ours", "other")]
        for (r, h, variant), jobs in self.jobs.items():
            if (r, h) != (rows, hidden):
                continue
            wrong = [w for w in (job.result(timeout=120) for job in jobs) if w]
            self.failures += wrong[:1]
            if not wrong:
                found.append(("serving_ours", variant))
        if "serving_theirs" in self.sets:
            found += [("serving_theirs", v) for v in THEIRS]
        return found

    def prepare(self, rows: int, hidden: int, kind: str, variant: str) -> bool:
        """Prepare a variant on all ranks; return whether it is right."""
        one = self.sets[kind]
        if one.dead and one.starts < 3:
            one.start()
            one.ready(60)
        how = {"rows": rows, "hidden": hidden, "variant": variant}
        answers = one.ask("prepare", timeout=30, **how)
        wrong = one.dead if answers is None else ""
        for answer in answers or ():
            wrong = wrong or answer.get("error", "") or answer.get("wrong", "")
        if not wrong and len({a["checksum"] for a in answers or ()}) > 1:
            wrong = "ranks have different bits"
        if answers and variant != "other":
            self.loose = max(a.get("loose", 0) for a in answers)
        if wrong:
            self.failures.append(f"{rows} x {hidden} {variant}: {wrong[:400]}")
            self.say(self.failures[-1])
            self.fault = answers is None or any("error" in a for a in answers)
            if answers is not None and self.fault:
                one.ask("reset", timeout=20)
        return not wrong

    def all_right(
        self, wanted: list[tuple[str, str]], rows: int, hidden: int
    ) -> list[tuple[str, str]]:
        """Return the variants that are right, all of them prepared.

        A fault takes what its set had with it: then that is prepared again.
        """
        left, right = list(wanted), []
        while left and self.left() > 0:
            kind, variant = left.pop(0)
            self.fault = False
            if self.prepare(rows, hidden, kind, variant):
                right.append((kind, variant))
            elif self.fault:
                left = [*(v for v in right if v[0] == kind), *left]
                right = [v for v in right if v[0] != kind]
        return right

    def measure(self, rows: int, hidden: int) -> None:
        """Measure one case."""
        right = self.all_right(self.variants(rows, hidden), rows, hidden)
        times: dict[tuple[str, str, str], list[float]] = {}
        for turn in range(self.args.repeats):
            for kind, variant in right if turn % 2 == 0 else right[::-1]:
                how = {"rows": rows, "hidden": hidden, "variant": variant}
                said = self.sets[kind].ask("time", timeout=20, replays=20, **how)
                for name in TIMES:
                    taken = [a[name] for a in said or () if name in a]
                    if len(taken) == self.args.ranks:
                        slowest = times.setdefault((kind, variant, name), [])
                        slowest.append(max(taken))
        median = {key: statistics.median(taken) for key, taken in times.items()}
        spread = max(
            (max(t) - min(t) for key, t in times.items() if key[2] == "alone"),
            default=0.0,
        )
        other = median.get(("serving_ours", "other", "alone"), 0.0)
        found = []
        for kind, variant in right:
            got = [median.get((kind, variant, name)) for name in TIMES]
            if variant == "other" or got[0] is None:
                continue
            less = [round(g - other, 3) if g else None for g in got[1:]]
            one = dict(zip(TIMES, [round(got[0], 3), *less], strict=True))
            found.append({"who": kind[8:], "variant": variant, **one})
        found.sort(key=lambda one: one["alone"])
        first = candidates(rows, hidden, self.args.ranks)[0]
        case = {"rows": rows, "hidden": hidden, "other": round(other, 3)}
        case["chosen"] = first
        self.cases.append({**case, "spread": round(spread, 3), "found": found})
        self.say(f"{rows} x {hidden}: other {other:.2f}, spread {spread:.2f}")
        for one in found:
            line = " ".join(f"{one[name] or 0:6.2f}" for name in TIMES)
            print(f"    {one['who']:6} {line}  {one['variant']}", flush=True)
        self.write()
        for one in self.sets.values():
            one.ask("drop", timeout=10)

    def soak(self) -> None:
        """Replay graphs in which one array is everybody's, and look for wrong bits."""
        for rows, hidden in ((1, 4096), (16, 4096), (128, 4096), (128, 8192)):
            variant = candidates(rows, hidden, self.args.ranks)[0]
            how = {"rows": rows, "hidden": hidden, "variant": variant, "replays": 300}
            said = self.sets["serving_ours"].ask("soak", timeout=40, **how)
            self.soaked.append({"rows": rows, "hidden": hidden, "said": said})
            self.say(f"soak {rows} x {hidden}: {said}")
            self.sets["serving_ours"].ask("drop", timeout=10)

    def issue(self) -> None:
        """Say what a call costs Python, with and without looking at captures."""
        rows, hidden = self.args.rows[-1], self.args.hidden[0]
        variant = candidates(rows, hidden, self.args.ranks)[0]
        if not self.prepare(rows, hidden, "serving_ours", variant):
            return
        how = {"rows": rows, "hidden": hidden, "variant": variant}
        self.issued = [
            self.sets["serving_ours"].ask("issue", timeout=20, **how) for _ in range(3)
        ]
        self.say(f"issue: {self.issued}; loose launches: {self.loose}")

    def write(self) -> None:
        """Write what there is."""
        from stretto.bench.machine import commit

        document = {
            "command": "python benchmarks/gpu_serving.py " + " ".join(sys.argv[1:]),
            "commit": commit(),
            "ranks": self.args.ranks,
            "goal": {"times": GOAL, "follows_us": FOLLOWS},
            "cases": self.cases,
            "soak": self.soaked,
            "issue": getattr(self, "issued", None),
            "failures": self.failures,
        }
        out = Path(self.args.out)
        name = f"gpu_serving_h200x{self.args.ranks}"
        (out / f"{name}.json").write_text(json.dumps(document, indent=1))
        (out / f"{name}.md").write_text(self.table())

    def table(self) -> str:
        """Return ours and theirs, the best of each."""
        names = ["rows", "hidden", "ours", "theirs", "times", "after: ours", "theirs"]
        names += ["times", "follows", "ours is"]
        rules = ["---:"] * (len(names) - 1) + ["---"]
        lines = [f"| {' | '.join(names)} |", f"| {' | '.join(rules)} |"]
        for case in sorted(self.cases, key=lambda c: (c["hidden"], c["rows"])):
            ours = [
                f
                for f in case["found"]
                if f["who"] == "ours" and f["variant"] == case["chosen"]
            ]
            theirs = [f for f in case["found"] if f["who"] == "theirs"]
            if not ours:
                continue
            best = min(ours, key=lambda f: f["alone"] + (f["after"] or 0))
            cells = [case["rows"], case["hidden"]]
            for name in ("alone", "after"):
                mine = best[name]
                peer = min((f[name] for f in theirs), default=None)
                cells += [mine, peer, round(peer / mine, 2) if peer and mine else None]
            cells += [round((best["after"] or 0) - best["alone"], 2), best["variant"]]
            said = ("-" if c is None else str(c).replace("|", " ") for c in cells)
            lines.append(f"| {' | '.join(said)} |")
        return "\n".join(lines) + "\n"


def main() -> int:
    """Build, or measure everything there is time for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--peers", default="")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--hidden", type=int, nargs="+", default=list(HIDDEN))
    parser.add_argument("--chosen", action="store_true", help="what the runtime takes")
    parser.add_argument("--time-budget", type=float, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    if args.build:
        return build(args.build, Path(args.peers))
    args.largest = 1 << 21
    Path(args.out).mkdir(parents=True, exist_ok=True)
    run = Run(args)
    for rows, hidden in run.order():
        if run.left() < A_CASE:
            run.failures.append(f"{rows} x {hidden}: no time left")
            continue
        run.measure(rows, hidden)
    if run.left() > 5 * A_CASE:
        run.soak()
    if run.left() > A_CASE:
        run.issue()
    run.write()
    run.pool.shutdown(wait=False, cancel_futures=True)
    for one in run.sets.values():
        one.stop()
    print("\n".join(run.failures))
    print(run.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
