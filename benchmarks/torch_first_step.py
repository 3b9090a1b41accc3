"""The first step on a fresh machine, by who communicates: groups, DDP, thirty kinds.

    python benchmarks/torch_first_step.py --ranks 4 --out DIR
    python benchmarks/torch_first_step.py --device cpu --width 64 --out DIR

Each variant has processes of its own. `cold` begins with an empty cache of kernels,
`again` with what that left; `alone` is cold, too, and nothing is compiled ahead. Said
in seconds from the imports on: the group, a model in DistributedDataParallel, its first
step, a later one, and then first calls of thirty kinds; how many kernels were in the
cache by then, whoever compiled them, and how many rank 0 compiled itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch_ranks import inner, launch, outer, write

AFTER_BASELINE_S = 5.0
VARIANTS = ("baseline", "cold", "again", "alone")
POINTS = ("group", "model", "first step", "later step", "thirty kinds")
SIZES = (4 << 10, 1 << 20, 32 << 20)


def calls(torch: Any, dist: Any, device: Any, n: int) -> list[Any]:
    """Return first calls of thirty kinds: collectives, types and sizes."""
    made: list[Any] = []
    for nbytes in SIZES:
        for kind in (torch.float32, torch.bfloat16):
            x = torch.zeros(nbytes // kind.itemsize, dtype=kind, device=device)
            part = x[: x.numel() // n].clone()
            whole = part.repeat(n)
            op = dist.ReduceOp.AVG if kind == torch.float32 else dist.ReduceOp.SUM
            made += [
                lambda x=x: dist.all_reduce(x),
                lambda x=x: dist.broadcast(x, 0),
                lambda w=whole, p=part: dist.all_gather_into_tensor(w, p),
                lambda w=whole, p=part, op=op: dist.reduce_scatter_tensor(p, w, op),
                lambda w=whole: dist.all_to_all_single(torch.empty_like(w), w),
            ]
    return made


def work(words: list[str]) -> int:
    """Be a rank of one variant; rank 0 writes when it was where."""
    parser = argparse.ArgumentParser()
    inner(parser)
    parser.add_argument("--backend")
    parser.add_argument("--width", type=int)
    args = parser.parse_args(words)
    import torch
    import torch.distributed as dist
    from torch import nn

    import stretto.torch  # noqa: F401  (registers the backend)

    is_gpu = args.device == "cuda"
    compiled = _count_compilations() if is_gpu else []
    device = torch.device("cpu")
    if is_gpu:
        at = 0 if args.share else args.rank
        torch.cuda.set_device(at)
        device = torch.device("cuda", at)
        torch.zeros(1, device=device)
    began, found, kernels = time.monotonic(), {}, {}

    def reached(point: str) -> None:
        if is_gpu:
            torch.cuda.synchronize()
        found[point] = round(time.monotonic() - began, 3)
        kept = Path(os.environ["STRETTO_CACHE_DIR"], "cubins")
        kernels[point] = len(list(kept.glob("*.cubin")))

    dist.init_process_group(
        args.backend,
        init_method=f"file://{args.meet}",
        rank=args.rank,
        world_size=args.ranks,
    )
    reached("group")
    width = args.width
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(12)]
    model: Any = nn.Sequential(*layers).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    reached("model")
    for point in ("first step", "later step"):
        loss = model(torch.ones(8, width, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reached(point)
    for call in calls(torch, dist, device, args.ranks):
        call()
    reached("thirty kinds")
    if args.rank == 0:
        said = {"s": found, "compiled here": len(compiled), "kernels": kernels}
        Path(args.answers).write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _count_compilations() -> list[str]:
    """Return a list that grows by every kernel that this process compiles."""
    from stretto.executors.cuda.codegen import compile as compiler

    found: list[str] = []
    build = compiler.build

    def counted(kernel: Any, **how: Any) -> Any:
        found.append(kernel.digest)
        return build(kernel, **how)

    compiler.build = counted
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as markdown, and whether the goals are reached."""
    heads = ["variant", *POINTS, "compiled by rank 0"]
    lines = [f"| {' | '.join(heads)} |"]
    lines.append(f"| --- | {' | '.join(['---:'] * (len(heads) - 1))} |")
    at: dict[str, dict[str, float]] = {}
    for row in rows:
        if "s" not in row:
            lines.append(f"| {row['variant']} | {row['wrong'][:200]} |")
            continue
        at[row["variant"]] = row["s"]
        cells = [f"{row['s'][p]:.2f}" for p in POINTS] + [str(row["compiled here"])]
        lines.append(f"| {row['variant']} | {' | '.join(cells)} |")
        there = [str(row["kernels"][p]) for p in POINTS]
        lines.append(f"| kernels in the cache | {' | '.join(there)} | |")
    lines.append("")
    if {"baseline", "cold"} <= set(at):
        for point in ("first step", "thirty kinds"):
            after = at["cold"][point] - at["baseline"][point]
            word = "yes" if after <= AFTER_BASELINE_S else "no"
            lines.append(
                f"- {point}, cold: {after:+.1f} s after the baseline; goal at most "
                f"{AFTER_BASELINE_S:g}: {word}"
            )
    again = next((r for r in rows if r["variant"] == "again"), {})
    if "compiled here" in again:
        word = "yes" if not again["compiled here"] else "no"
        lines.append(f"- nothing compiled in a second process: {word}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure all variants, or be a rank when started as one."""
    if "--rank" in sys.argv:
        return work(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    outer(parser)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    args = parser.parse_args()
    baseline = "nccl" if args.device == "cuda" and not args.share else "gloo"
    rows = []
    cold = tempfile.mkdtemp()
    for variant in args.variants:
        fresh = cold if variant in ("cold", "again") else tempfile.mkdtemp()
        os.environ["STRETTO_CACHE_DIR"] = fresh
        os.environ["STRETTO_AHEAD"] = "0" if variant == "alone" else "1"
        backend = baseline if variant == "baseline" else "stretto"
        words = ["--backend", backend, "--width", str(args.width)]
        rows.append({"variant": variant})
        rows[-1] |= launch("torch_first_step.py", words, args)
        print(rows[-1], flush=True)
    wrong = "; ".join(row["wrong"] for row in rows if row["wrong"])
    said = {"rows": rows, "wrong": wrong, "command": rows[0]["command"]}
    return write(args.out, f"torch_first_step_x{args.ranks}", said, table(rows))


if __name__ == "__main__":
    sys.exit(main())
