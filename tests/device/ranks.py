"""What several ranks do together on GPUs: sessions, graphs, streams, faults.

    python tests/device/ranks.py --ranks 4 --out DIR [--share] [--only WORDS]

Starts one process a rank and runs every check in all of them, each with a session of
its own, the most important first; a check that fails does not keep the next from
running. It ends within `--seconds`: what there was no time for is counted as not run.
Kernels of the last checks compile meanwhile. `--share` puts all ranks on one GPU, where
kernels take turns: slow, and enough to test what is said.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(HERE)]

import rank_calls  # noqa: E402, F401  (importing registers checks, in this order)
import rank_faults  # noqa: E402, F401
import rank_values  # noqa: E402
from gpu_group import Hub  # noqa: E402
from ranked import CHECKS, CheckGroup, Rank  # noqa: E402

END_S = 3.0
"""What the ranks have less than the program, to end and to be heard."""


def chosen(only: str) -> list[str]:
    """Return the names of checks with certain words, in their order."""
    return [n for n in CHECKS if all(word in n for word in only.split())]


def report_of(args: argparse.Namespace) -> Path:
    """Return the file that rank 0 writes."""
    return Path(args.out) / f"ranks{args.ranks}{'s' * args.share}.json"


def run(rank: Rank, name: str) -> dict[str, Any]:
    """Run a check, and hear what all ranks say of it."""
    function, seconds = CHECKS[name]
    if rank.late(seconds):
        return {"check": name, "not_run": f"less than {seconds:g} s were left"}
    began, error, answer = time.monotonic(), "", None
    try:
        answer = function(rank)
    except BaseException as e:
        error = f"{type(e).__name__}: {e}"[:1500]
        if not isinstance(e, AssertionError):
            error += "\n" + "".join(traceback.format_tb(e.__traceback__)[-3:])
    try:
        if rank.session is not None:
            rank.session.close()
    except Exception as e:
        error += f" (close: {e})"
    rank.session = None
    said = rank.group.end({"error": error, "answer": answer})
    return {
        "check": name,
        "seconds": round(time.monotonic() - began, 2),
        "errors": [m["error"] for m in said],
        "answers": [m["answer"] for m in said],
    }


def show(row: dict[str, Any]) -> None:
    """Print what came of a check."""
    if "not_run" in row:
        print("not run", row["check"], row["not_run"], flush=True)
        return
    ok = not any(row["errors"])
    left = next((a["not_run"] for a in row["answers"] if a and "not_run" in a), 0)
    more = f"({left} plans not run)" * bool(left)
    print("ok  " if ok else "FAIL", row["check"], row["seconds"], "s", more, flush=True)
    for q, text in enumerate(row["errors"]):
        if text:
            print(f"     rank {q}: {text[:700]}", flush=True)


def child(args: argparse.Namespace) -> None:
    """Run every check in one rank; rank 0 tells the outcomes of all."""
    import torch

    torch.cuda.set_device(0 if args.share else args.child)
    torch.zeros(1, device="cuda")
    rank = Rank(CheckGroup(args.child, args.ranks, args.fd), torch)
    rank.shared, rank.stop_at = args.share, args.until
    rows = []
    for name in chosen(args.only):
        rows.append(run(rank, name))
        if args.child == 0:
            show(rows[-1])
            report_of(args).write_text(json.dumps(rows, indent=1, default=str))


def start(args: argparse.Namespace, hub: Hub, until: float) -> list[Any]:
    """Start a process for each rank."""
    environment = {
        **os.environ,
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
        "CUDA_MODULE_LOADING": "EAGER",
    }
    if args.share:
        environment["STRETTO_CUDA_SHARE_GPU"] = "1"
    started = []
    for q in range(args.ranks):
        fd = hub.children[q].fileno()
        command = [sys.executable, __file__, "--child", str(q), "--fd", str(fd)]
        command += ["--ranks", str(args.ranks), "--only", args.only]
        command += ["--until", str(until)]
        command += ["--out", args.out] + ["--share"] * args.share
        environment["LOCAL_RANK"] = str(q)
        started.append(subprocess.Popen(command, pass_fds=[fd], env=dict(environment)))
    for link in hub.children:
        link.close()
    return started


def wait_for(started: list[Any], stop_at: float) -> list[int]:
    """Return the exit codes of processes; those that last longer are killed."""
    codes = []
    for process in started:
        try:
            codes.append(process.wait(max(0.1, stop_at - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(-9)
    return codes


def compile_meanwhile(args: argparse.Namespace) -> ProcessPoolExecutor | None:
    """Start to compile what `values` runs, on half of the cores."""
    checks = chosen(args.only)
    if not any(name.startswith("values") for name in checks):
        return None
    pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 2) // 2))
    for job in rank_values.compiled_ahead(args.ranks, args.share, checks):
        pool.submit(rank_values.compile_one, job)
    return pool


def end_pool(pool: ProcessPoolExecutor | None) -> None:
    """End the compilers, whatever they do."""
    if pool is None:
        return
    running = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in running:
        process.kill()


def options() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--child", type=int, default=-1)
    parser.add_argument("--fd", type=int, default=-1)
    parser.add_argument("--until", type=float, default=0)
    return parser.parse_args()


def main() -> int:
    """Start the ranks, wait for them, and say what came of every check."""
    args = options()
    if args.child >= 0:
        child(args)
        return 0
    stop_at = time.monotonic() + args.seconds
    Path(args.out).mkdir(parents=True, exist_ok=True)
    report_of(args).unlink(missing_ok=True)
    hub = Hub(args.ranks)
    started = start(args, hub, stop_at - END_S)
    pool = compile_meanwhile(args)
    codes = wait_for(started, stop_at - 1)
    end_pool(pool)
    out = report_of(args)
    rows = json.loads(out.read_text()) if out.exists() else []
    heard = {row["check"] for row in rows}
    for name in chosen(args.only):
        if name not in heard:
            rows.append({"check": name, "not_run": "the ranks had ended"})
    out.write_text(json.dumps(rows, indent=1, default=str))
    bad = [row["check"] for row in rows if any(row.get("errors", ()))]
    missed = [row["check"] for row in rows if "not_run" in row]
    print(
        f"{len(rows)} checks, failed: {bad or 'none'}, not run: {missed or 'none'}, "
        f"exit codes {codes}"
    )
    return 1 if bad or any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
