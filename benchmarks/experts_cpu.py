"""Dispatch and combine of experts on CPUs, beside all_to_all_v and Gloo.

    python benchmarks/experts_cpu.py [--ranks 2] [--tokens 4096] [--hidden 2048]

Milliseconds of the slowest rank: last rank out after a barrier, the median of 9. The
all_to_all_v moves the rows that a dispatch moves (each token once to each rank that has
one of its experts), from and to memory that is there already. Gloo's way is that of
programs without a dispatch: rows sorted by expert, counts exchanged, a row for every
choice, by all_to_all_single.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"


def timed(comm: Any, work: Any, times: int = 9) -> float:
    """Return milliseconds of the slowest rank, the median of several calls."""
    found = []
    for turn in range(times + 2):
        comm.barrier()
        since = time.perf_counter()
        work()
        took = (time.perf_counter() - since) * 1e3
        if turn >= 2:
            found.append(max(comm.all_gather_object(took)))
    return round(statistics.median(found), 2)


def work(comm: Any, args: Any, port: int) -> dict[str, float]:
    """Measure on one rank."""
    import numpy as np
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=comm.rank,
        world_size=comm.num_ranks,
    )  # fmt: skip
    n, tokens, hidden = comm.num_ranks, args.tokens, args.hidden
    experts, k = args.experts, args.choices
    rng, found = np.random.default_rng(comm.rank), {}
    x = rng.standard_normal((tokens, hidden)).astype(np.float32)
    ids = np.argsort(rng.random((tokens, experts)), 1)[:, :k].copy()
    weights = rng.random((tokens, k)).astype(np.float32)
    local = experts // n
    goes = [np.flatnonzero((ids // local == q).any(1)) for q in range(n)]
    packed = np.concatenate([x[one] for one in goes])
    counts = [len(one) * hidden for one in goes]
    every = np.array(comm.all_gather_object(counts)).reshape(-1)
    out = np.empty(int(every.reshape(n, n)[:, comm.rank].sum()), np.float32)
    found["all_to_all_v"] = timed(
        comm, lambda: comm.all_to_all_v(packed.reshape(-1), every, out=out)
    )
    for layout in ("rank", "token", "expert"):
        ep = comm.experts(experts, k, hidden, tokens, layout=layout, dtype="float32")
        found[f"dispatch {layout}"] = timed(
            comm, lambda ep=ep: ep.dispatch(x, ids, weights)
        )
        sent = ep.dispatch(x, ids, weights)
        found[f"combine {layout}"] = timed(
            comm, lambda ep=ep, sent=sent: ep.combine(sent.rows, sent)
        )
        if layout == "expert":
            off = ep.combine(sent.rows, sent) - x * weights.sum(1, keepdims=True)
            assert np.abs(off).max() < 1e-4, "the sum is that of the weights"
        del ep, sent
    found["Gloo, sorted"] = timed(comm, lambda: by_gloo(x, ids, experts, n), 5)
    dist.destroy_process_group()
    return found


def by_gloo(x: Any, ids: Any, experts: int, n: int) -> Any:
    """Return this rank's rows by expert, as programs without a dispatch do."""
    import torch
    import torch.distributed as dist

    tokens, every = torch.from_numpy(x), torch.from_numpy(ids).view(-1)
    order = every.argsort(stable=True)
    rows = tokens[order // ids.shape[1]]
    per = torch.bincount(every, minlength=experts)
    theirs = torch.empty_like(per)
    dist.all_to_all_single(theirs, per)
    gives = per.view(n, -1).sum(1).tolist()
    gets = theirs.view(n, -1).sum(1).tolist()
    made = tokens.new_empty(sum(gets), tokens.shape[1])
    dist.all_to_all_single(made, rows, gets, gives)
    where = torch.arange(experts // n).repeat(n).repeat_interleave(theirs)
    return made[where.argsort(stable=True)]


def main() -> int:
    """Spawn the ranks and print what they found."""
    import stretto

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--choices", type=int, default=8)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    found = stretto.spawn(work, args, port, num_ranks=args.ranks, deadline_s=120)[0]
    base, gloo = found["all_to_all_v"], found["Gloo, sorted"]
    for name, took in found.items():
        print(f"{name:22} {took:9.2f} ms {took / base:6.2f} of all_to_all_v "
              f"{gloo / took:6.1f} times Gloo")  # fmt: skip
    if args.out:
        Path(args.out).write_text(json.dumps(vars(args) | {"ms": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
