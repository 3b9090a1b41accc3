"""GPU ranks that believe they are on several hosts: every collective, type and graph.

    python tests/device/hosts.py --ranks 4 --hosts 2 --out DIR [--share] [--only A,B]

Starts one process a rank; STRETTO_HOST makes the first half of them one host and the
others another, so that what goes between goes through pinned memory, the thread that
serves it, and TCP on loopback. `--share` puts all ranks on one GPU. Values are small
whole numbers, so every sum is exact in every type, and NumPy says what is due. Each
check has a communicator of its own; all deadlines are `--deadline` seconds. With
`--device cpu` the program tests itself, on any machine.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE)]

import host_checks  # noqa: E402, F401  (importing registers checks, in this order)
from hosted import CHECKS, Hosted  # noqa: E402

MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def chosen(only: str) -> list[str]:
    """Return the names of checks that are asked for, in their order."""
    return [name for name in CHECKS if not only or name in only.split(",")]


def child(args: argparse.Namespace) -> None:
    """Run every check on one rank, and write what came of each."""
    import torch

    import stretto

    if args.device != "cpu":
        many = torch.cuda.device_count()
        torch.cuda.set_device(0 if args.share else args.child % many)
        torch.zeros(1, device="cuda")
    whole = stretto.connect(deadline_s=max(60.0, args.deadline))
    rows: list[dict[str, Any]] = []
    for name in chosen(args.only):
        left = args.until - time.monotonic()
        late = whole.all_gather_object(left < CHECKS[name].seconds)
        if any(late):
            rows.append({"check": name, "not_run": f"{left:.0f} s were left"})
            continue
        began = time.monotonic()
        part = whole.split(0)
        part.deadline_s = args.deadline
        one = Hosted(part, torch, args.device, args.until)
        try:
            CHECKS[name].function(one)
        except Exception as e:
            text = "".join(traceback.format_tb(e.__traceback__)[-3:])
            one.wrong.append(f"{type(e).__name__}: {e}\n{text}"[:2500])
        try:
            part.close()
        except Exception as e:
            one.wrong.append(f"close: {e}"[:500])
        took = round(time.monotonic() - began, 2)
        row = {"check": name, "seconds": took, "cases": one.cases, **one.said}
        rows.append({**row, "wrong": one.wrong[:12]})
        path = Path(args.out) / f"hosts_rank{args.child}.json"
        path.write_text(json.dumps(rows, indent=1))
        if args.child == 0:
            print("FAIL" if one.wrong else "ok  ", json.dumps(row)[:900], flush=True)
    whole.close()


def start(args: argparse.Namespace, until: float) -> list[subprocess.Popen[bytes]]:
    """Start a process for each rank, the first ones on the first host."""
    secret = Path(args.out) / "secret"
    secret.unlink(missing_ok=True)
    secret.touch(0o600)
    secret.write_text(os.urandom(32).hex())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []
    for rank in range(args.ranks):
        host = rank * args.hosts // args.ranks
        own = {
            **MULTICAST,
            "RANK": str(rank),
            "WORLD_SIZE": str(args.ranks),
            "STRETTO_HOST": f"pretended{host}",
            "STRETTO_ADDRESS": f"tcp://127.0.0.1:{port}",
            "STRETTO_SECRET_FILE": str(secret),
            "PYTHONPATH": f"{ROOT / 'src'}:{HERE}:{os.environ.get('PYTHONPATH', '')}",
        }
        if args.share:
            own["STRETTO_CUDA_SHARE_GPU"] = "1"
        words = [sys.executable, __file__, "--child", str(rank), "--until", str(until)]
        for name in ("ranks", "hosts", "device", "only", "out", "deadline"):
            words += [f"--{name}", str(getattr(args, name))]
        words += ["--share"] * args.share
        started.append(subprocess.Popen(words, env={**os.environ, **own}))
    return started


def options() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--share", action="store_true", help="one GPU for all ranks")
    parser.add_argument("--only", default="", help="checks, with commas")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--deadline", type=float, default=15)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--child", type=int, default=-1)
    parser.add_argument("--until", type=float, default=0)
    return parser.parse_args()


def main() -> int:
    """Start the ranks, wait for them, and say what was wrong."""
    args = options()
    if args.child >= 0:
        child(args)
        return 0
    Path(args.out).mkdir(parents=True, exist_ok=True)
    stop_at = time.monotonic() + args.seconds
    for rank in range(args.ranks):
        (Path(args.out) / f"hosts_rank{rank}.json").unlink(missing_ok=True)
    started = start(args, stop_at - 5)
    codes = []
    for process in started:
        try:
            codes.append(process.wait(max(0.1, stop_at - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(-9)
    bad = int(any(codes))
    for rank in range(args.ranks):
        path = Path(args.out) / f"hosts_rank{rank}.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        heard = {row["check"] for row in rows}
        missing = [n for n in chosen(args.only) if n not in heard]
        bad += len(missing)
        if missing:
            print(f"rank {rank} did not come to: {missing}")
        for row in rows:
            if row.get("wrong"):
                bad += 1
                print(f"rank {rank} {row['check']}: {row['wrong'][:3]}"[:2200])
            if "not_run" in row:
                print(f"rank {rank} {row['check']}: not run, {row['not_run']}")
    print({"exit codes": codes, "failed": bad})
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
