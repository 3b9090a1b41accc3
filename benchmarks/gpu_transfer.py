"""Transfers between GPUs of one host: each figure, the goal, and yes or no.

    python benchmarks/gpu_transfer.py --ranks 4 --seconds 120 --out DIR
    python benchmarks/gpu_transfer.py --ranks 4 --device cpu --small --out DIR

One process for each GPU. Before a way is timed, the GPU that has the bytes then
compares every one of them with what it draws itself; a way that is wrong is not timed.
Beside ours stands NCCL's send and recv, with packing where blocks are scattered.

    puts       one piece, 1 KB to 256 MB, by a kernel and by copy engines
    blocks     40,000 of 8 KB and 82,000 of 4 KB, from any places to any others
    reshards   a KV cache from 2 to 1, 1 to 2 and 2 to 2 ranks; 4 to 2 and 2 to 4
    signals    1 KB and a word, until the peer's kernel has seen it
    layers     a prefill of 70B's shape that puts each layer as it is computed
    crossover  64 MB in pieces of 4 KB to 4 MB, by a kernel and by copy engines
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torch_ranks import launch, outer, write

STAGES = ("puts", "blocks", "reshards", "signals", "layers", "crossover")


def crossover(rows: list[dict[str, Any]]) -> str:
    """Return from which size on copy engines are as fast as a kernel, or faster."""
    least = None
    for row in reversed(rows):
        us = row["us"]
        if not {"kernel", "engines"} <= set(us):
            continue
        if us["engines"] > 1.02 * us["kernel"]:  # less is noise
            break
        least = row
    return "nowhere" if least is None else f"from {least['what']} on"


def table(said: dict[str, Any]) -> str:
    """Return the rows as markdown, stage by stage."""
    lines = []
    for stage in STAGES:
        rows = [row for row in said["rows"] if row["stage"] == stage]
        if not rows:
            continue
        names = list(dict.fromkeys(name for row in rows for name in row["us"]))
        heads = [stage, *(f"{n} us" for n in names), *(f"{n} GB/s" for n in names)]
        heads += ["goal", "reached"]
        lines += ["", f"| {' | '.join(heads)} |"]
        lines.append(f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} |")
        for row in rows:
            us, cells = row["us"], [row["what"]]
            cells += [f"{us[n]:.2f}" if n in us else "-" for n in names]
            for name in names:
                rate = row["nbytes"] / us[name] / 1e3 if us.get(name) else None
                cells.append(f"{rate:.1f}" if rate else "-")
            cells += [row.get("goal", ""), row.get("reached", "")]
            lines.append(f"| {' | '.join(cells)} |")
        for row in rows:
            lines += [f"- {row['what']}: {note}" for note in row.get("notes", [])]
            lines += [
                f"- **{row['what']}, {name}: {why[:300]}**"
                for name, why in row["failed"].items()
            ]
        if stage in ("puts", "crossover"):
            lines += ["", f"Copy engines are as fast as a kernel: {crossover(rows)}."]
    lines += ["", f"{said.get('checked', 0)} ways compared, every byte."]
    lines += [f"- {said[key]}" for key in ("cut", "wrong") if said.get(key)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--seconds", type=float, help="the same as --time-budget")
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()
    args.time_budget = args.seconds or args.time_budget
    words = ["--repeats", str(args.repeats), "--stages", *args.stages]
    words += ["--small"] * args.small
    said = {"rows": [], **launch("gpu_transfer_worker.py", words, args)}
    if any(row["failed"] for row in said["rows"]) and not said["wrong"]:
        said["wrong"] = "some ways failed"
    return write(args.out, f"gpu_transfer_x{args.ranks}", said, table(said))


if __name__ == "__main__":
    sys.exit(main())
