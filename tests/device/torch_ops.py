"""Operators, fused layers and engines' interfaces of stretto.torch, on GPUs.

    python tests/device/torch_ops.py --ranks 2 --out DIR [--share] [--only A,B]

Runs the checks of tests/host/torch_ops with tensors on GPUs, and some that only a GPU
can fail: graphs, fifty streams, graphs of torch.compile. With `--device cpu` the
program tests itself, on any machine.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATHS = [str(ROOT / "src"), str(ROOT), str(HERE)]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = ":".join([*PATHS, os.environ.get("PYTHONPATH", "")])

SLOW = ("in_graphs_of_inductor",)
"""Checks that need Triton and a C compiler, run when they are asked for."""


def checks() -> dict[str, Any]:
    """Return every check by its name; importing registers them."""
    import torch_graphs  # noqa: F401
    from tests.host.torch_ops import test_operators
    from tests.host.torch_ops.checks import CHECKS

    assert test_operators.MODULES, "the checks are registered"
    return CHECKS


def work(comm: Any, device: str, share: bool, only: str, out: str) -> Any:
    """Run every check on one rank."""
    import torch

    if device == "cuda":
        torch.cuda.set_device(0 if share else comm.rank)
        torch.set_default_device("cuda")
    torch.set_num_threads(1)
    known = checks()
    from tests.host.torch_ops.checks import Bench

    rows = []
    for name, function in known.items():
        if (only and name not in only.split(",")) or (not only and name in SLOW):
            continue
        bench, began = Bench(comm), time.monotonic()
        try:
            function(bench)
            if device == "cuda":
                torch.cuda.synchronize()
            comm.check()
        except Exception as e:
            text = "".join(traceback.format_tb(e.__traceback__)[-3:])
            bench.wrong.append(f"{type(e).__name__}: {e}\n{text}"[:2000])
        said = getattr(bench, "said", {})
        rows.append({"check": name, "wrong": bench.wrong[:20], **said})
        rows[-1]["seconds"] = round(time.monotonic() - began, 2)
        path = Path(out) / f"torch_ops_rank{comm.rank}.json"
        path.write_text(json.dumps(rows, indent=1))
        if comm.rank == 0:
            print("FAIL" if bench.wrong else "ok  ", rows[-1], flush=True)
    return rows


def main() -> int:
    """Spawn the ranks, and report."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="checks, with commas")
    parser.add_argument("--share", action="store_true", help="one GPU for all ranks")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    began = time.monotonic()
    words = (args.device, args.share, args.only, args.out)
    try:
        said = stretto.spawn(work, *words, num_ranks=args.ranks, deadline_s=40.0)
    except Exception as e:
        said = [[{"check": "spawn", "wrong": [f"{type(e).__name__}: {e}"[:3000]]}]]
    document = {"seconds": round(time.monotonic() - began, 1), "ranks": said}
    (Path(args.out) / "torch_ops.json").write_text(json.dumps(document, indent=1))
    bad = [(q, row) for q, rows in enumerate(said) for row in rows if row["wrong"]]
    for q, row in bad:
        print(f"rank {q} {row['check']}: {row['wrong'][:3]}"[:2000])
    print(f"{sum(map(len, said))} checks, failed: {len(bad)}, {document['seconds']} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
