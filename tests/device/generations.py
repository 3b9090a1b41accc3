"""What was captured or prepared before ranks changed errs afterwards, and never hangs.

    python tests/device/generations.py --out DIR [--share] [--seconds 60]

Two ranks make a sum, prepare it and capture it; the communicator is revoked, and goes
on in a new generation. There calls are right, what was prepared says that it must be
examined anew, and the graph's replay is an error of the driver, within seconds: what it
was given lies nowhere any more. That ends its process's use of the GPU, so it is last.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]
COUNTS = (16, 5000, 3_000_001)
"""Packets, staged bulk, and what is larger than a tile."""
HANGS_S, SOON_S = 40, 10.0


def work(rank: int, job: str, count: int, share: bool, path: Path) -> None:
    """Be one rank; write what was found."""
    import torch

    import stretto

    signal.alarm(HANGS_S)  # a process that hangs is ended, and the row says so
    torch.cuda.set_device(0 if share else rank)
    how = stretto.Elastic(min_ranks=2)
    comm = stretto.connect(rank, 2, job, deadline_s=15.0, elastic=how)
    x = torch.zeros(count, device="cuda")

    def is_right() -> bool:
        x.fill_(comm.rank + 1.0)
        comm.all_reduce(x)
        torch.cuda.synchronize()
        return bool((x == 3.0).all())

    row: dict[str, Any] = {"rank": rank, "count": count, "before": is_right()}
    again = comm.repeated_in_place(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(x)
    x.fill_(comm.rank + 1.0)
    graph.replay()
    torch.cuda.synchronize()
    row["replayed"] = bool((x == 3.0).all())
    comm.barrier()
    if rank == 0:
        comm.revoke("a test of generations")
    try:
        while True:
            comm.barrier()
    except stretto.CommunicatorBroken:
        comm.replace()
    row |= {"generation": comm.generation, "after": is_right()}
    row["prepared"] = again is not None and again() is False and is_right()
    comm.check()
    comm.barrier()
    began, row["error"] = time.monotonic(), ""
    try:
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError as e:
        row["error"] = str(e).partition("\n")[0]
    row["took_s"] = round(time.monotonic() - began, 3)
    path.write_text(json.dumps(row))
    os._exit(0)  # nothing more can be asked of this GPU from here


def found(count: int, share: bool, folder: Path) -> list[dict[str, Any]]:
    """Run two ranks; return what each found."""
    job, said = f"generations-{os.getpid()}-{count}", []
    paths = [folder / f"generations.{count}.{rank}.json" for rank in range(2)]
    ranks = []
    for rank, path in enumerate(paths):
        path.unlink(missing_ok=True)
        words = [str(rank), job, str(count), str(int(share)), str(path)]
        ranks.append(subprocess.Popen([sys.executable, __file__, "--rank", *words]))
    for one, path in zip(ranks, paths, strict=True):
        ended = one.wait(2 * HANGS_S)
        none = {"count": count, "hung": ended == -signal.SIGALRM, "status": ended}
        row = json.loads(path.read_text()) if path.exists() else none
        good = all(row.get(k) for k in ("before", "replayed", "after", "prepared"))
        row["ok"] = good and bool(row["error"]) and row["took_s"] < SOON_S
        said.append(row)
    return said


def main() -> int:
    """Try a call of each size, as long as there is time."""
    if sys.argv[1:2] == ["--rank"]:
        rank, job, count, share, path = sys.argv[2:]
        work(int(rank), job, int(count), share == "1", Path(path))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", action="store_true", help="one GPU for both ranks")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    folder, stop_at = Path(args.out), time.monotonic() + args.seconds
    folder.mkdir(parents=True, exist_ok=True)
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    rows: list[dict[str, Any]] = []
    for count in COUNTS:
        if time.monotonic() > stop_at:
            rows.append({"count": count, "not_run": "no time was left"})
            continue
        rows += found(count, args.share, folder)
        print(*rows[-2:], sep="\n", flush=True)
        (folder / "generations.json").write_text(json.dumps(rows, indent=1))
    bad = [row for row in rows if not row.get("ok", "not_run" in row)]
    print("failed:", bad or "none")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
