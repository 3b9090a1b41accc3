"""Communicators on GPUs, as users have them: spawn, every verb, graphs, an eager loop.

python tests/device/communicator.py --ranks 4 --out DIR
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"


def verbs(comm: Any, torch: Any, count: int, dtype: Any) -> dict[str, str]:
    """Return what is wrong with each verb on fresh data."""
    n, me = comm.num_ranks, comm.rank

    def of(rank: int, size: int) -> Any:
        made = torch.Generator("cuda").manual_seed(rank * 7 + count)
        return torch.randint(
            -8, 8, (size,), generator=made, device="cuda", dtype=torch.int32
        ).to(dtype)

    every = [of(q, count * n) for q in range(n)]
    whole = torch.stack(every)
    mine = every[me].clone()
    total = whole.float().sum(0).to(dtype)
    part = slice(me * count, (me + 1) * count)
    pairs = tuple((q, (q + 1) % n) for q in range(n))
    due = {
        "all_reduce": (lambda: comm.all_reduce(mine.clone()), total),
        "all_gather": (lambda: comm.all_gather(mine), whole),
        "reduce_scatter": (lambda: comm.reduce_scatter(mine), total[part]),
        "all_to_all": (
            lambda: comm.all_to_all(mine),
            torch.cat([x[part] for x in every]),
        ),
        "broadcast": (lambda: comm.broadcast(mine.clone(), root=n - 1), every[n - 1]),
        "permute": (lambda: comm.permute(mine, pairs), every[(me - 1) % n]),
        "reduce": (lambda: comm.reduce(mine, root=0), total if me == 0 else None),
        "gather": (lambda: comm.gather(mine, root=0), whole if me == 0 else None),
    }
    wrong = {}
    for name, (call, want) in due.items():
        try:
            got = call()
            torch.cuda.synchronize()
            if want is not None and not torch.equal(got.reshape(want.shape), want):
                wrong[name] = f"count={count} {dtype}: {got.ravel()[:4]} {want[:4]}"
        except Exception as e:
            wrong[name] = f"count={count} {dtype}: {type(e).__name__}: {e}"[:500]
            break  # a broken communicator says nothing new
    return wrong


def work(comm: Any) -> dict[str, Any]:
    """Run on one rank."""
    import torch

    torch.cuda.set_device(comm.rank)
    torch.zeros(1, device="cuda")
    answer: dict[str, Any] = {"wrong": {}}
    for count in (1, 1000, 1 << 18):
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            answer["wrong"].update(verbs(comm, torch, count, dtype))
    try:
        answer["graph"] = graph(comm, torch)
        answer["eager_us"] = eager(comm, torch)
    except Exception as e:
        answer["wrong"]["graph"] = f"{type(e).__name__}: {e}"[:500]
    return answer


def graph(comm: Any, torch: Any) -> bool:
    """Return whether a captured zero-copy call is right when replayed."""
    x = torch.from_dlpack(comm.empty((4096,), "float32", device="cuda"))
    x.fill_(1)
    comm.all_reduce(x)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        comm.all_reduce(x)
    x.fill_(1)
    torch.cuda.synchronize()
    comm.barrier()
    for _ in range(3):
        captured.replay()
    torch.cuda.synchronize()
    return bool((x == float(comm.num_ranks) ** 3).all())


def eager(comm: Any, torch: Any) -> float:
    """Return microseconds of a 1 KB all_reduce, back to back."""
    x = torch.zeros(512, device="cuda", dtype=torch.bfloat16)
    best = 1e9
    for _ in range(5):
        comm.all_reduce(x)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(1000):
            comm.all_reduce(x)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) * 1e3)
    return round(best, 2)


def main() -> int:
    """Spawn the ranks and report."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    for name in ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS"):
        os.environ[name] = "0" if name.startswith("NCCL") else "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    try:
        said = stretto.spawn(work, num_ranks=args.ranks, deadline_s=20.0)
    except Exception as e:
        said = [{"wrong": {"spawn": f"{type(e).__name__}: {e}"[:3000]}}]
    print(json.dumps(said, indent=1)[:5000])
    (Path(args.out) / "communicator.json").write_text(json.dumps(said, indent=1))
    return 1 if any(one["wrong"] or not one.get("graph") for one in said) else 0


if __name__ == "__main__":
    sys.exit(main())
