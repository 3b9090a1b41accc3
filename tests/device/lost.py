"""How soon the others hear of a rank that dies while its kernel waits for a peer.

    python tests/device/lost.py --out DIR [--share] [--only A,B] [--seconds 60]

Three ranks. Rank 2 never comes to a call; ranks 0 and 1 wait for it on the GPU; rank 1
is killed. Rank 0 tells when it could know and when its kernel had left, in seconds
after the kill. `within` of a case is what is promised.
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{HERE}:{os.environ.get('PYTHONPATH', '')}"

DEADLINE_S = 5.0
CASES = (
    "eager",
    "full_queue",
    "graph",
    "engine",
    "engine_graph",
    "outside",
    "only_device_word",
    "only_host_word",
)
COUNT = 65536
COPIES = "all_gather/one_shot push engine zero_copy"
EXITING = 0x4
"""PF_EXITING in the flags of /proc/PID/stat."""


def flags_of(pid: int) -> int:
    """Return the kernel's flags of a process, -1 once it has none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except (OSError, IndexError, ValueError):
        return -1


def sample(
    pid: int, group: Any, watch: Any, seen: dict[str, float], note: Path
) -> None:
    """Note when each sign of a death is first to be seen."""
    pidfd = os.pidfd_open(pid)
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    signs = {
        "exiting": lambda: flags_of(pid) & EXITING,
        "pidfd": lambda: poll.poll(0),
        "group": lambda: int(group.broken[0]),
        "watch": lambda: watch.fault is not None,
    }
    until = time.monotonic() + 2 * DEADLINE_S
    while len(seen) < len(signs) and time.monotonic() < until:
        for name, sign in signs.items():
            if name not in seen and sign():
                seen[name] = time.monotonic()
                note.write_text(json.dumps(seen))
        time.sleep(0.002)


def call_of(case: str, comm: Any, torch: Any) -> Any:
    """Return the call that everybody has made once, as it is made again."""
    x = torch.zeros(COUNT, device="cuda")
    if case.startswith("engine"):
        one = torch.from_dlpack(comm.empty(COUNT, "float32", device="cuda"))
        out = torch.from_dlpack(comm.empty(3 * COUNT, "float32", device="cuda"))

        def call() -> None:
            comm.all_gather(one, out=out, algorithm=COPIES)
    else:

        def call() -> None:
            comm.all_reduce(x)

    call()
    call()
    torch.cuda.synchronize()
    if "graph" not in case:
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def work(comm: Any, case: str, folder: str, share: bool) -> None:
    """One rank: 0 measures, 1 dies, 2 does not come."""
    import torch

    torch.cuda.set_device(0 if share else comm.rank % torch.cuda.device_count())
    call = call_of(case, comm, torch)
    session, place = comm._session("cuda"), Path(folder) / f"{case}.died"
    pids = [m["pid"] for m, _ in comm._group.exchange({"pid": os.getpid()})]
    torch.cuda.synchronize()
    comm._group.exchange({})
    if comm.rank == 2:
        time.sleep(2 * DEADLINE_S)
        return
    if comm.rank == 1:
        if case != "outside":
            call()
        time.sleep(1.0)
        place.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "only_device_word":
        session.watch._pinned.words = session.watch._pinned.words.copy()
    elif case == "only_host_word":
        session.watch._break_device = lambda: None
    seen: dict[str, float] = {}
    note = Path(folder) / f"{case}.signs"
    args = pids[1], comm._group, session.watch, seen, note
    threading.Thread(target=sample, args=args, daemon=True).start()
    began, error = time.monotonic(), ""
    try:
        for _ in range(5000 if case == "full_queue" else 1):
            call()
    except Exception as e:
        error = f"in a call, {type(e).__name__}: {e}"
    issued = time.monotonic()
    torch.cuda.synchronize()
    left = time.monotonic()
    try:
        comm.check()
    except Exception as e:
        error = error or f"{type(e).__name__}: {e}"
    told = time.monotonic()
    died = float(place.read_text()) if place.exists() else began
    times = {**seen, "began": began, "issued": issued, "left": left, "told": told}
    row = {"case": case, "error": error[:400]}
    row |= {name: round(at - died, 3) for name, at in sorted(times.items())}
    works = float(torch.ones(1000, device="cuda").sum()) == 1000
    row["gpu_works"] = works
    (Path(folder) / f"{case}.json").write_text(json.dumps(row))


def main() -> int:
    """Kill a rank in every case, as long as there is time."""
    from calls import Case, warm

    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", action="store_true", help="one GPU for all ranks")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    stop_at = time.monotonic() + args.seconds
    warm([Case(collective="all_reduce", num_ranks=3, count=COUNT)])
    rows: list[dict[str, Any]] = []
    for case in args.only.split(",") if args.only else CASES:
        if time.monotonic() > stop_at:
            rows.append({"case": case, "not_run": "no time was left"})
            continue
        said, began = "", time.monotonic()
        try:
            words = case, args.out, args.share
            stretto.spawn(work, *words, num_ranks=3, deadline_s=DEADLINE_S)
        except stretto.RankFailed as e:
            said = str(e)[-600:]
        path = Path(args.out) / f"{case}.json"
        row = json.loads(path.read_text()) if path.exists() else {"case": case}
        row["ok"] = row.get("left", 99) < 1.0 and "PeerLost" in row.get("error", "")
        signs = path.with_suffix(".signs")
        if not path.exists() and signs.exists():
            died = float(path.with_suffix(".died").read_text())
            signs_s = json.loads(signs.read_text())
            row |= {name: round(at - died, 3) for name, at in signs_s.items()}
        row["seconds"] = round(time.monotonic() - began, 1)
        if not row["ok"]:
            row["spawn"] = said
        rows.append(row)
        print(row, flush=True)
        with contextlib.suppress(OSError):
            (Path(args.out) / "lost.json").write_text(json.dumps(rows, indent=1))
    bad = [row["case"] for row in rows if not row.get("ok", True)]
    print("failed:", bad or "none")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
