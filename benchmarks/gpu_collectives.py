"""Collectives on the GPUs of one host: stretto beside its peers, in one run.

    python benchmarks/gpu_collectives.py --ranks 4 --time-budget 480 --out DIR

bf16, CUDA graphs, the slowest rank, medians over interleaved repeats, every variant
checked on fresh data before it is timed. Ours is what the library chooses by itself
for registered arrays; with `--shapes search`, the fastest of all that there may be.
Peers run in processes of their own, since what makes them fast is set in the
environment; only one set is at work at a time.
Results are written after every row: stopping early loses nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

from gpu_candidates import HALF, shapes, shipped  # noqa: E402
from gpu_peers import PeerSet  # noqa: E402
from gpu_report import (  # noqa: E402
    COLLECTIVES,
    K,
    M,
    busbw,
    channels,
    commit,
    fewest,
    floor_us,
    machine,
    markdown,
    parse_sizes,
    size,
    sms,
)
from gpu_warm import warm  # noqa: E402

RECORDED_MSCCLPP = {
    "all_reduce": {
        K: 3.0, 4 * K: 3.3, 16 * K: 4.0, 64 * K: 5.3, 256 * K: 6.6, M: 10.4,
        4 * M: 25.0, 16 * M: 84.4, 64 * M: 324, 256 * M: 1239,
    },
    "all_gather": {
        K: 6.1, 4 * K: 6.1, 16 * K: 6.3, 64 * K: 6.8, 256 * K: 7.1, M: 8.2,
        4 * M: 16.6, 16 * M: 45.9, 64 * M: 165, 256 * M: 632,
    },
}  # fmt: skip
"""us, 4x H200, MSCCL++ 0.9 without multicast; of 2026-11-21, not of this run."""


class Run:
    """One measurement: sets, rows, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = args.began
        self.rows: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.eager: list[dict[str, Any]] = []
        self.sets = {k: PeerSet(k, args) for k in args.sets.split(",")}
        for one in self.sets.values():
            one.ready(90)
            if one.dead:
                self.failures.append(f"{one.kind} does not start: {one.dead[:500]}")
        self.say(f"sets ready: {[k for k, s in self.sets.items() if not s.dead]}")

    def left(self) -> float:
        """Return the seconds left."""
        return self.args.time_budget - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """Print with the time."""
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def prepare(self, kind: str, collective: str, nbytes: int, variant: str) -> bool:
        """Prepare one variant everywhere; return whether it is right."""
        one = self.sets[kind]
        how = {"collective": collective, "nbytes": nbytes, "variant": variant}
        answers = one.ask("prepare", **how)
        label = f"{kind} {collective} {nbytes} {variant}"
        if answers is None:
            self.failures.append(f"{label}: {one.dead}")
            self.say(self.failures[-1])
            self.revive(kind)
            return False
        wrong = [a.get("error") or a.get("wrong") for a in answers]
        same = len({a.get("checksum") for a in answers}) == 1
        if kind == "ours" and collective == "all_reduce" and not same:
            wrong.append("ranks hold different bits")
        if any(wrong):
            self.failures.append(f"{label}: {next(w for w in wrong if w)[:400]}")
            self.say(self.failures[-1][:300])
            if any("error" in a for a in answers) and kind == "ours":
                said = one.ask("reset")
                if said is None or any("error" in a for a in said):
                    one.stop("its GPU is lost")
                    self.revive(kind)
            return False
        return True

    def revive(self, kind: str) -> None:
        """Start our set again, when it fell and there is time."""
        one = self.sets[kind]
        if kind == "ours" and one.dead and one.starts < 4 and self.left() > 60:
            one.start()
            one.ready(60)

    def time(
        self, kind: str, collective: str, nbytes: int, variant: str, replays: int
    ) -> float | None:
        """Return the slowest rank's microseconds."""
        how = {"collective": collective, "nbytes": nbytes, "variant": variant}
        answers = self.sets[kind].ask("time", replays=replays, **how)
        if answers is None or any("error" in a for a in answers):
            said = answers and next(a["error"] for a in answers if "error" in a)
            self.failures.append(f"time {kind} {how}: {said or self.sets[kind].dead}")
            if kind == "ours" and answers is not None:
                self.sets[kind].ask("reset")
            return None
        return max(a["us"] for a in answers)

    def peers(self, collective: str, nbytes: int) -> list[tuple[str, str]]:
        """Return the peers' variants that are right at a size."""
        wanted = [("nccl", "default"), ("nccl", "symm")]
        wanted += [("nccl_mix0", "default"), ("nccl_mix0", "symm")]
        if collective == "all_reduce" and nbytes <= 64 * M:
            wanted += [("torch_symm", "two_shot")]
            wanted += [("torch_symm", "one_shot")] * (nbytes <= M)
        return [
            (k, v)
            for k, v in wanted
            if k in self.sets
            and not self.sets[k].dead
            and self.prepare(k, collective, nbytes, v)
        ]

    def sweep(
        self, collective: str, nbytes: int, variants: list[tuple[str, str]]
    ) -> list[tuple[float, str]]:
        """Return our variants that are right, fastest first, quickly timed."""
        found = []
        if "ours" not in self.sets:
            return []
        for name, schedule in variants:
            if self.sets["ours"].dead or self.left() < 20:
                break
            variant = f"{name}|{schedule}"
            if not self.prepare("ours", collective, nbytes, variant):
                continue
            us = self.time(
                "ours", collective, nbytes, variant, max(5, _replays(nbytes) // 4)
            )
            if us is not None:
                found.append((us, variant))
        return sorted(found)

    def is_ours(self, collective: str, nbytes: int, variant: str) -> bool:
        """Return whether a variant may be the figure of ours, or is shown beside it."""
        own = [f"{a}|{s}" for a, s in shipped(collective, nbytes, self.args.ranks)]
        return variant in own or self.args.shapes == "search"

    def row(self, collective: str, nbytes: int) -> None:
        """Measure one size of one collective, everybody in turn."""
        failed = len(self.failures)
        tried = shapes(self.args.shapes, collective, nbytes, self.args.ranks)
        ranked = self.sweep(collective, nbytes, tried)
        runners = self.peers(collective, nbytes)
        best = [v for _, v in ranked if self.is_ours(collective, nbytes, v)][:3]
        on_few = [v for _, v in ranked if sms(v) <= HALF and nbytes >= 64 * M][:1]
        best += [variant for variant in on_few if variant not in best]
        if len(self.failures) > failed:  # what was prepared may be gone with a session
            best = [v for v in best if self.prepare("ours", collective, nbytes, v)]
        runners += [("ours", variant) for variant in best]
        samples: dict[tuple[str, str], list[float]] = {r: [] for r in runners}
        replays = _replays(nbytes)
        for _ in range(self.args.repeats):
            for kind, variant in runners:
                us = self.time(kind, collective, nbytes, variant, replays)
                if us is not None:
                    samples[kind, variant].append(us)
        row: dict[str, Any] = {"collective": collective, "nbytes": nbytes}
        row["samples"] = {f"{k} {v}": s for (k, v), s in samples.items()}
        row["sweep"] = [{"variant": v, "us": us} for us, v in ranked]
        row["few_sms"] = fewest(ranked)
        medians = {r: statistics.median(s) for r, s in samples.items() if s}
        theirs = {f"{k} {v}": m for (k, v), m in medians.items() if k != "ours"}
        recorded = RECORDED_MSCCLPP.get(collective, {}).get(nbytes)
        if recorded and self.args.ranks == 4:
            theirs["mscclpp (recorded)"] = recorded
        row["peers_us"] = theirs
        ours = sorted(
            (m, v)
            for (k, v), m in medians.items()
            if k == "ours" and self.is_ours(collective, nbytes, v)
        )
        if ours:
            row["ours_us"], row["ours"] = ours[0]
            row["sms"] = sms(ours[0][1])
            row["floor_us"] = floor_us(collective, nbytes, self.args.ranks)
            row["busbw_gbps"] = busbw(collective, nbytes, self.args.ranks, ours[0][0])
        if on_few and ("ours", on_few[0]) in medians:
            row["half"] = {"variant": on_few[0], "us": medians["ours", on_few[0]]}
        row |= _compared(row)
        self.rows.append(row)
        self.say(
            f"{collective:14} {size(nbytes):>5}  "
            f"ours {row.get('ours_us', math.nan):9.2f}"
            f"  best peer {row.get('best_peer_us', math.nan):9.2f}"
            f" ({row.get('best_peer', '-')})  {row.get('ours', '')}"
        )
        if nbytes == K and collective == "all_reduce":
            self.measure_eager(collective, nbytes, runners)
        for one in self.sets.values():
            one.ask("drop")
        self.write()

    def measure_eager(
        self, collective: str, nbytes: int, runners: list[tuple[str, str]]
    ) -> None:
        """Measure calls from Python, back to back, one synchronisation at the end.

        They take the CPU's time, so the other sets' processes stand still.
        """
        for kind, variant in runners:
            others = [one for one in self.sets.values() if one.kind != kind]
            for one in others:
                one.hold(still=True)
            how = {"collective": collective, "nbytes": nbytes, "variant": variant}
            for _ in range(3):
                answers = self.sets[kind].ask("eager", calls=1000, **how)
                if answers and not any("error" in a for a in answers):
                    slowest = max(answers, key=lambda a: a["us"])
                    self.eager.append({**how, "set": kind, **slowest})
            for one in others:
                one.hold(still=False)
        for e in self.eager:
            self.say(f"eager {e['set']} {e['variant']}: {e['us']:.2f} us")

    def write(self) -> None:
        """Write JSON and Markdown."""
        document = {
            "command": sys.argv,
            "commit": commit(),
            "machine": self.args.machine,
            "ranks": self.args.ranks,
            "dtype": "bfloat16",
            "rows": self.rows,
            "eager": self.eager,
            "failures": self.failures,
            "nccl_channels": channels(Path(self.args.out) / "workers.log"),
            "seconds": time.monotonic() - self.began,
        }
        out = Path(self.args.out)
        (out / "collectives.json").write_text(json.dumps(document, indent=1))
        (out / "collectives.md").write_text(markdown(document))

    def close(self) -> None:
        """End all processes."""
        for one in self.sets.values():
            if not one.dead:
                one.stop()


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    """Return the best peer of a row, and how many times its speed ours is."""
    theirs, ours = row["peers_us"], row.get("ours_us")
    if not theirs:
        return {}
    best = min(theirs, key=lambda k: theirs[k])
    found = {"best_peer": best, "best_peer_us": theirs[best]}
    if ours is not None:
        found["speedup"] = theirs[best] / ours
        if "nccl default" in theirs:
            found["speedup_nccl"] = theirs["nccl default"] / ours
    return found


def _replays(nbytes: int) -> int:
    """Return how many replays of ten calls are timed at once: a millisecond or two."""
    return max(10 if nbytes <= 64 * M else 4, min(100, 4 * M // nbytes))


def main() -> int:
    """Measure until all is measured or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", default="1K:1G:4")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sets", default="ours,nccl,nccl_mix0,torch_symm")
    parser.add_argument("--shapes", choices=("shipped", "search"), default="shipped")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--time-budget", type=float, default=480)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    sizes = parse_sizes(args.sizes)
    args.largest = max(sizes)
    args.began = time.monotonic()
    args.machine = machine()
    if "ours" in args.sets.split(","):
        warm(args, sizes)
    run = Run(args)
    try:
        for nbytes in sizes:  # all collectives at a size, so that time cuts off sizes
            for collective in args.collectives.split(","):
                if run.left() < 15:
                    run.failures.append(f"no time for {collective} {nbytes}")
                    continue
                run.row(collective, nbytes)
    finally:
        run.write()
        run.close()
    print(markdown(json.loads((Path(args.out) / "collectives.json").read_text())))
    print(f"{len(run.failures)} failures")
    for line in run.failures[:30]:
        print("  ", line[:300])
    return 0


if __name__ == "__main__":
    sys.exit(main())
