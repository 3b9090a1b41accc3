"""Search weaves of calls that compute and move, and hold the winners to account.

    python benchmarks/search_fused.py --evals 200 --out DIR
    python benchmarks/search_fused.py --device cpu --evals 30 --inputs 20 --out DIR

For each kind of call and size: the weave found, its time and that of the library's
collectives and the same matmuls one after the other (eager, or in a graph, whichever is
quicker), of the slowest rank, in turns; torch's fused operator, where there is one; how
many candidates were run and refused; how many new inputs the winner was right for.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

CASES = (
    ("gemm_all_gather", 8192, 2048),
    ("gemm_all_gather", 2048, 2048),
    ("gemm_reduce_scatter", 8192, 2048),
    ("gemm_reduce_scatter", 2048, 2048),
    ("all_gather_attention", 8192, 2048),
    ("moe_dispatch_combine", 8192, 2048),
    ("kv_transfer", 2048, 4096),
)
SMALL = (256, 64)


def main() -> int:
    """Search all cases within the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evals", type=int, default=200)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    rows = []
    for case in CASES:
        if args.only and case[0] not in args.only:
            continue
        try:
            rows.append(searched(args, *case))
        except Exception as e:  # the next case may do
            rows.append({"load": case[0], "tokens": case[1], "wrong": str(e)[:300]})
        print(json.dumps(rows[-1]), flush=True)
        Path(args.out).mkdir(parents=True, exist_ok=True)
        Path(args.out, "search_fused.json").write_text(json.dumps(rows, indent=1))
    text = table(rows)
    Path(args.out, "search_fused.md").write_text(text)
    print(text)
    return int(any("wrong" in row for row in rows))


def searched(args: argparse.Namespace, load: str, tokens: int, width: int) -> Any:
    """Return a row: what a search of a case found."""
    from stretto.search import evolve, problem

    began = time.monotonic()
    if args.device == "cpu":
        tokens, width = SMALL
    made = problem(
        "fused", load=load, ranks=args.ranks, tokens=tokens, width=width,
        device=args.device, inputs=args.inputs,
    )  # fmt: skip
    found = evolve(made, evals=args.evals, seed=args.seed, islands=2)
    every = list(found.run.rows())
    ran = [one for one in every if one.trial.rung == 1]
    refused = [one for one in every if one.verdict.refused]
    return {
        "load": load, "tokens": tokens, "width": width, "weave": found.text,
        "us": found.held_out["us"], "plain_us": found.held_out["plain_us"],
        "gain": 1 / found.held_out["of_the_other_way"],
        "first_gain": 1 / found.first["of_the_other_way"],
        "compute_us": found.held_out["compute_us"],
        "torch_fused_us": found.held_out.get("torch_fused_us"),
        "inputs": found.held_out["inputs"], "distance": found.held_out["distance"],
        "evals": found.evals, "to_best": found.to_best, "ran": len(ran),
        "refused": [(one.trial.text, one.verdict.refused) for one in refused],
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def table(rows: list[Any]) -> str:
    """Return rows as a table."""
    heads = ("call", "tokens, width", "one after the other us", "woven us",
             "its matmuls alone us", "gain", "first seed's", "torch fused us",
             "evaluation, of", "run", "seconds")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    done = [row for row in rows if "wrong" not in row]
    for row in done:
        peer = row["torch_fused_us"]
        words = (
            row["load"], f"{row['tokens']}, {row['width']}", f"{row['plain_us']:.0f}",
            f"{row['us']:.0f}", f"{row['compute_us']:.0f}", f"{row['gain']:.2f}",
            f"{row['first_gain']:.2f}", f"{peer:.0f}" if peer else "-",
            f"{row['to_best']}, {row['evals']}", str(row["ran"]), str(row["seconds"]),
        )  # fmt: skip
        lines.append("| " + " | ".join(words) + " |")
    if done:
        mean = math.exp(sum(math.log(row["gain"]) for row in done) / len(done))
        best = max(row["gain"] for row in done)
        lines += ["", f"Geomean {mean:.2f}, best {best:.2f}."]
    lines += ["", *(f"    {row['weave']}" for row in done)]
    lines += [f"WRONG: {row}" for row in rows if "wrong" in row]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
