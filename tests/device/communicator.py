"""Communicators on GPUs, as users have them: every verb, every way it can be called.

    python tests/device/communicator.py --ranks 4 --out DIR [--share] [--only A,B]

Every stage has a communicator of its own (a split of the whole), so one that breaks
does not keep the next from running. Data are random and outputs poisoned; results are
due bit for bit, from the reference interpreter, and the CPU executor must give the same
bits. With `--device cpu` the program tests itself, on any machine.
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
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{HERE}:{os.environ.get('PYTHONPATH', '')}"

import stage_counts  # noqa: E402, F401  (importing registers stages)
import stage_members  # noqa: E402, F401
import stage_shared  # noqa: E402, F401
import stage_started  # noqa: E402, F401
import stage_streams  # noqa: E402, F401
import stage_suspend  # noqa: E402, F401
from calls import warm  # noqa: E402
from stage import STAGES, Stage  # noqa: E402
from stages import empty_cases, type_cases, verb_cases  # noqa: E402


def chosen_gpu(rank: int) -> int:
    """Return this rank's GPU as it sees it, hiding the others when asked to."""
    if os.environ.get("STRETTO_CUDA_SHARE_GPU") == "1":
        return 0
    if os.environ.get("ONE_VISIBLE") != "1":
        return rank
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    return 0


def work(comm: Any, device: str, only: str, out: str) -> list[dict[str, Any]]:
    """Run every stage on one rank."""
    gpu = chosen_gpu(comm.rank)
    import torch

    if device != "cpu":
        torch.cuda.set_device(gpu)
        torch.zeros(1, device="cuda")
    rows = []
    for name, function in STAGES.items():
        if only and name not in only.split(","):
            continue
        began = time.monotonic()
        part = Stage(comm.split(0), torch, device)
        try:
            function(part)
        except Exception as e:
            text = "".join(traceback.format_tb(e.__traceback__)[-2:])
            part.wrong.append(f"{type(e).__name__}: {e}\n{text}"[:1500])
        try:
            part.comm.close()
        except Exception as e:
            part.wrong.append(f"close: {e}"[:500])
        rows.append(
            {
                "stage": name,
                "seconds": round(time.monotonic() - began, 2),
                "cases": part.cases,
                "wrong": part.wrong[:20],
                **part.said,
            }
        )
        path = Path(out) / f"communicator_rank{comm.rank}.json"
        path.write_text(json.dumps(rows, indent=1))
        if comm.rank == 0:
            print("FAIL" if part.wrong else "ok  ", rows[-1], flush=True)
    return rows


def main() -> int:
    """Compile, spawn the ranks, and report."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="stages, with commas")
    parser.add_argument("--share", action="store_true", help="one GPU for all ranks")
    parser.add_argument("--one-visible", action="store_true", help="hide peers' GPUs")
    parser.add_argument("--expandable", action="store_true", help="torch's segments")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for name in ("NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS"):
        os.environ[name] = "0" if name.startswith("NCCL") else "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    if args.one_visible:
        os.environ["ONE_VISIBLE"] = "1"
    if args.expandable:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    began, compiled = time.monotonic(), (0, 0.0)
    if args.device != "cpu" and not args.only:
        n = args.ranks
        cases = [*verb_cases(n), *type_cases(n), *empty_cases(n)]
        compiled = warm(cases)
    try:
        words = (args.device, args.only, args.out)
        said = stretto.spawn(work, *words, num_ranks=args.ranks, deadline_s=8.0)
    except Exception as e:
        said = [[{"stage": "spawn", "wrong": [f"{type(e).__name__}: {e}"[:3000]]}]]
    document = {
        "kernels": compiled[0],
        "compile_s": round(compiled[1], 1),
        "seconds": round(time.monotonic() - began, 1),
        "ranks": said,
    }
    (Path(args.out) / "communicator.json").write_text(json.dumps(document, indent=1))
    bad = [(q, row) for q, rows in enumerate(said) for row in rows if row["wrong"]]
    for q, row in bad:
        print(f"rank {q} {row['stage']}: {row['wrong'][:3]}"[:1500])
    print({k: v for k, v in document.items() if k != "ranks"}, "failed:", len(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
