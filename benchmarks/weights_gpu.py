"""New weights from a trainer's GPU into a rollout's on another, beside NCCL.

    python benchmarks/weights_gpu.py --time-budget 150 --out DIR
    python benchmarks/weights_gpu.py --device cpu --small --out DIR

One process trains, on the first GPU, the other decodes on the second: 16 GB, in the
shape of an 8B Llama; the trainer has q, k, v, gate and up apart, the rollout has them
fused. After each way every byte is compared with what the rollout's GPU draws itself.

    ours        a snapshot, then a second copy that is written while steps go on
    in place    the trainer's own tensors are read, and must stay until that is over
    one copy    into the only copy, in the tensors that graphs hold: steps pause
    fp8         with a scale for each block of 128 by 128, made at the source
    broadcast   NCCL's, one call a tensor, each into its place of the fused one
    buckets     NCCL's of 1 GB: packed, sent, unpacked into their places

A step of the decode reads all weights, in a CUDA graph for each copy. Its times and the
gaps between two steps are those of events on its stream.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torch_ranks import launch, outer, write

WAYS = ("ours", "in place", "one copy", "fp8", "broadcast", "buckets")


def table(said: dict[str, Any]) -> str:
    """Return the rows, and the goals, as markdown."""
    keys = ("ms", "least_ms", "push_ms", "pull_ms", "first_ms", "step_ms",
            "slowest_step_ms", "gap_ms", "switch_gap_ms", "largest_gap_ms",
            "wrong_bytes")  # fmt: skip
    lines = [f"| way | GB | GB/s | {' | '.join(keys)} |"]
    lines.append(f"| --- {'| ---: ' * (len(keys) + 2)}|")
    by = {}
    for row in said["rows"]:
        by[row["way"]] = row
        size, ms = row.get("nbytes", 0), row.get("ms")
        rate = f"{size / ms / 1e6:.0f}" if ms else "-"
        cells = [str(row.get(key, "-")) for key in keys]
        lines.append(
            f"| {row['way']} | {size / 1e9:.2f} | {rate} | {' | '.join(cells)} |"
        )
        if row["failed"]:
            lines.append(f"\n**{row['way']}: {row['failed'][:600]}**\n")
    goals = []
    have = by.get("ours", {})
    if "ms" in have:
        goals.append(("16 GB, push until switched, ms", have["ms"], 60))
        goals.append(
            (
                "gap at a switch with a second copy, ms",
                have.get("switch_gap_ms", 1e9),
                1,
            )
        )
        if "ms" in by.get("fp8", {}):
            goals.append(("fp8 in bf16's time", by["fp8"]["ms"] / have["ms"], 0.5))
        goals += [
            (f"in the time of {way}", have["ms"] / by[way]["ms"], 1)
            for way in ("broadcast", "buckets")
            if "ms" in by.get(way, {})
        ]
    for what, got, most in goals:
        lines.append(f"- {what}: {got:.3g}, at most {most}: "
                     f"{'reached' if got <= most else '**not reached**'}")  # fmt: skip
    lines += [f"- {said[key]}" for key in ("cut", "wrong") if said.get(key)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()
    words = ["--repeats", str(args.repeats), "--ways", *args.ways]
    words += ["--small"] * args.small
    said = {"rows": [], **launch("weights_gpu_worker.py", words, args)}
    if any(row["failed"] or row.get("wrong_bytes") for row in said["rows"]):
        said["wrong"] = said["wrong"] or "some ways failed, or brought wrong bytes"
    return write(args.out, "weights_gpu_x2", said, table(said))


if __name__ == "__main__":
    sys.exit(main())
