"""Dispatch and combine of experts on GPUs, in graphs, beside what PyTorch offers.

    python benchmarks/experts_gpu.py --ranks 2 --out DIR [--tokens 1,8,32,128,4096]
        [--shape 7168,8,256] [--blocks 16,24,32] [--peers]

Each figure is of the slowest rank: a graph of 20 calls, replayed 20 times, the median,
for one call. Results of ours are checked in the run. `--peers` also times all_gather
with reduce_scatter (fp8 made before, rows sorted by expert after) in graphs, and
all_to_all_single with sort, which has its host wait and so is in none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
CALLS, REPLAYS = 20, 20


def timed(world: Any, torch: Any, work: Any, *, graph: bool = True) -> float:
    """Return microseconds of one call, at this rank."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    run, many = work, 1
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(CALLS):
                work()
        run, many = captured.replay, CALLS
    found = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        world.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / many)
    return statistics.median(found)


def eager_us(torch: Any, work: Any) -> float:
    """Return microseconds of the host for one call."""
    for _ in range(20):
        work()
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        since = time.perf_counter()
        for _ in range(50):
            work()
        found.append((time.perf_counter() - since) / 50 * 1e6)
        torch.cuda.synchronize()
    return min(found)


def routed(torch: Any, rank: int, tokens: int, shape: tuple[int, int, int]) -> Any:
    """Return tokens, ids and weights of uniform routing."""
    hidden, k, experts = shape
    torch.manual_seed(rank)
    x = torch.randn(tokens, hidden, device="cuda").to(torch.bfloat16)
    ids = torch.rand(tokens, experts, device="cuda").argsort(1)[:, :k].contiguous()
    return x, ids, torch.rand(tokens, k, device="cuda")


def ours(
    world: Any, torch: Any, tokens: int, shape: Any, blocks: int
) -> dict[str, Any]:
    """Time ours; the combine's result is checked."""
    hidden, k, experts = shape
    x, ids, weights = routed(torch, world.rank, tokens, shape)
    made: dict[str, Any] = {}

    def opened(**how: Any) -> Any:
        return world.experts(
            experts, k, hidden, tokens, device="cuda", blocks=blocks, **how
        )

    whole = hidden % 128 == 0  # else fp8 is refused: its scales are of 128
    for layout in ("rank", "expert") if whole else ():
        ep = opened(layout=layout, quantise="fp8_128")
        made[f"dispatch fp8 {layout}"] = timed(
            world, torch, lambda ep=ep: ep.dispatch(x, ids, weights)
        )
        if layout == "expert":
            made["eager host"] = eager_us(
                torch, lambda ep=ep: ep.dispatch(x, ids, weights)
            )
        del ep
    for order in ("rank", "k"):
        ep = opened(layout="expert", order=order)
        made[f"dispatch bf16 expert order {order}"] = timed(
            world, torch, lambda ep=ep: ep.dispatch(x, ids, weights)
        )
        sent = ep.dispatch(x, ids, weights)
        out = ep.combine(sent.rows, sent)
        want = x.float() * weights.sum(1, keepdim=True)
        off = ((out.float() - want).abs() / want.abs().clamp(1e-2)).max().item()
        assert off < 0.05, f"combine is off by {off}"
        made[f"combine bf16 order {order}"] = timed(
            world, torch, lambda ep=ep, sent=sent: ep.combine(sent.rows, sent)
        )
        del ep, sent
    world.check()
    return made


def peers(world: Any, torch: Any, tokens: int, shape: Any) -> dict[str, float]:
    """Time what PyTorch's own collectives do."""
    import torch.distributed as dist

    hidden, k, experts = shape
    n, local = world.num_ranks, experts // world.num_ranks
    x, ids, _ = routed(torch, world.rank, tokens, shape)
    scaled = hidden % 128 == 0  # else rows go as they are
    kind = torch.uint8 if scaled else x.dtype
    every = x.new_empty(n * tokens, hidden, dtype=kind)
    scales = torch.empty(n * tokens, hidden // 128, device="cuda")
    all_ids = ids.new_empty(n * tokens, k)

    def quantised() -> Any:
        if not scaled:
            return x, scales[:tokens]
        groups = x.view(tokens, -1, 128).float()
        most = groups.abs().amax(-1).clamp(1e-4)
        made = (groups * (448.0 / most[..., None])).to(torch.float8_e4m3fn)
        return made.view(tokens, hidden).view(torch.uint8), most / 448.0

    def gathered() -> Any:
        q, s = quantised()
        dist.all_gather_into_tensor(every, q)
        dist.all_gather_into_tensor(scales, s)
        dist.all_gather_into_tensor(all_ids, ids)
        return every, scales

    def permuted() -> Any:
        gathered()
        mine = torch.where(all_ids // local == world.rank, all_ids, experts)
        order = mine.view(-1).argsort(stable=True)
        return every[order // k], scales[order // k]

    whole = x.new_empty(n * tokens, hidden).normal_()
    part = x.new_empty(tokens, hidden)
    found = {"all_gather, quantised": timed(world, torch, gathered)}
    if tokens <= 1024:
        found["all_gather, quantised, permuted"] = timed(world, torch, permuted)
    found["reduce_scatter"] = timed(
        world, torch, lambda: dist.reduce_scatter_tensor(part, whole)
    )

    def swapped() -> Any:
        order = ids.view(-1).argsort(stable=True)
        rows = x[order // k]
        counts = torch.bincount(ids.view(-1) // local, minlength=n)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        gets, gives = theirs.tolist(), counts.tolist()
        out = x.new_empty(sum(gets), hidden)
        dist.all_to_all_single(out, rows, gets, gives)
        return out

    found["all_to_all_single, sorted"] = timed(world, torch, swapped, graph=False)
    return found


def work(world: Any, args: Any, meet: str) -> dict[str, Any]:
    """Measure on one rank; return the worst of all."""
    import torch

    torch.cuda.set_device(world.rank)
    torch.zeros(1, device="cuda")
    if args.peers:
        import torch.distributed as dist

        dist.init_process_group(
            "nccl", init_method=f"file://{meet}", rank=world.rank,
            world_size=world.num_ranks,
        )  # fmt: skip
    shape, found = tuple(int(n) for n in args.shape.split(",")), {}
    for tokens in (int(t) for t in args.tokens.split(",")):
        rows = {}
        for blocks in (int(b) for b in args.blocks.split(",")):
            rows[f"blocks {blocks}"] = ours(world, torch, tokens, shape, blocks)
        if args.peers:
            rows["peers"] = peers(world, torch, tokens, shape)
        said = world.all_gather_object(rows)
        worst = {
            part: {name: round(max(one[part][name] for one in said), 2) for name in of}
            for part, of in rows.items()
        }
        found[str(tokens)] = worst
        torch.cuda.empty_cache()
        if world.rank == 0:
            print(tokens, "tokens:", json.dumps(worst, indent=1), flush=True)
    if args.peers:
        dist.destroy_process_group()
    return {"device": torch.cuda.get_device_name(), "shape": shape, "us": found}


def main() -> int:
    """Spawn the ranks, and write what they found."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", default="1,8,32,128,4096")
    parser.add_argument(
        "--shape", default="7168,8,256", help="hidden, choices, experts"
    )
    parser.add_argument("--blocks", default="32")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        meet = str(Path(folder) / "meet")
        rows = stretto.spawn(work, args, meet, num_ranks=args.ranks, deadline_s=60.0)
    name = f"experts_{args.ranks}_{args.shape.replace(',', '_')}.json"
    Path(args.out).mkdir(parents=True, exist_ok=True)
    (Path(args.out) / name).write_text(json.dumps(rows[0], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
