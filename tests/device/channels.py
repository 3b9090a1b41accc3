"""Kernels of one's own on GPUs: channels, copy engines, Triton, registered kernels.

    python tests/device/channels.py --ranks 4 --out DIR [--share] [--only WORDS]

Ranks are processes that `stretto.spawn` starts. Each check has a communicator of its
own, so that one which fails, or tests a fault, does not keep the next from running.
`--share` puts all ranks on one GPU, where kernels take turns: slow, and enough to test
what is said.
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

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

import channel_cuda  # noqa: E402, F401  (importing registers checks, in this order)
import channel_faults  # noqa: E402, F401
import channel_programs  # noqa: E402, F401
from channel_rank import CHECKS, Rank  # noqa: E402


def work(world: Any, names: list[str], share: bool, out: str) -> list[dict[str, Any]]:
    """Run the checks on one rank; rank 0 prints and writes as it goes."""
    import torch

    torch.cuda.set_device(0 if share else world.rank)
    torch.zeros(1, device="cuda")
    rank, rows = Rank(world, torch, share), []
    for name in names:
        began, error, answer = time.monotonic(), "", None
        try:
            answer = CHECKS[name](rank)
        except BaseException as e:
            error = f"{type(e).__name__}: {e}"[:1500]
            if not isinstance(e, AssertionError):
                error += "\n" + "".join(traceback.format_tb(e.__traceback__)[-3:])
        try:
            if rank.comm is not None:
                rank.comm.close()
        except Exception as e:
            error += f" (close: {e})"
        rank.comm = None
        world.barrier()
        took = round(time.monotonic() - began, 2)
        rows.append({"check": name, "seconds": took, "error": error, "said": answer})
        if error or world.rank == 0:
            word = "FAIL" if error else "ok  "
            text = error or json.dumps(answer, default=str)
            print(f"{word} rank {world.rank} {name} {took} s: {text[:900]}", flush=True)
        (Path(out) / f"channels{world.num_ranks}r{world.rank}.json").write_text(
            json.dumps(rows, indent=1, default=str)
        )
    return rows


def main() -> int:
    """Spawn the ranks and report."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--only", default="", help="words a check's name must contain")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    names = [n for n in CHECKS if all(word in n for word in args.only.split())]
    rows = stretto.spawn(
        work, names, args.share, args.out, num_ranks=args.ranks, deadline_s=30.0
    )
    bad = sorted({row["check"] for one in rows for row in one if row["error"]})
    print(f"{len(names)} checks on {args.ranks} ranks, failed: {bad or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
