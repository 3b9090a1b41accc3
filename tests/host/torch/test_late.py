"""Groups of jobs on GPUs: what calls on CPUs need is made ready beside the first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

RANK = """
import json, sys, time
import torch, torch.distributed as dist
import stretto.torch
from stretto.torch import meeting

meeting._opens_late = lambda store, rank: True  # as rank 0 says where it has a GPU
rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group(
    "stretto", init_method=f"file://{store}", rank=rank, world_size=2
)
comm = stretto.torch.communicator()
said = {"numba at first": "numba" in sys.modules, "sessions": list(comm._sessions)}

x, everybody = torch.full((3,), rank + 1.0), [None] * 2
dist.barrier()
dist.all_reduce(x)
dist.all_gather_object(everybody, rank)
half = dist.new_group([0, 1])
y = torch.ones(5)
work = dist.all_reduce(y, group=half, async_op=True)
work.wait()
said |= {"sum": x.tolist(), "objects": everybody, "started": y.tolist()}
said["first"] = comm._sessions["cpu"].interpreter

ready, until, wrong = torch.zeros(1), time.monotonic() + 150, 0
while not ready.item() and time.monotonic() < until:
    time.sleep(0.02)  # another process compiles on these cores
    x = torch.full((7,), float(rank))
    dist.all_reduce(x)
    wrong += not x.eq(1.0).all().item()
    both = [s._sessions["cpu"].interpreter for s in
            (comm, stretto.torch.communicator(half))]
    dist.all_reduce(y, group=half)
    ready.fill_(float(both == ["numba"] * 2))
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
said |= {"wrong": wrong, "in the end": both}
dist.destroy_process_group()
print(json.dumps(said))
"""


@pytest.mark.timeout(240)
def test_a_group_opens_late_and_becomes_fast(tmp_path):
    """Nothing of the CPU's at first, right results throughout, compiled in the end."""
    source = Path(__file__).parents[3] / "src"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), f"{tmp_path}/store"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=220)[0] for rank in ranks]

    want = {
        "numba at first": False,
        "sessions": [],
        "sum": [3.0] * 3,
        "objects": [0, 1],
        "started": [2.0] * 5,
        "first": "numpy",
        "wrong": 0,
        "in the end": ["numba", "numba"],
    }
    said = [text.strip().splitlines()[-1] for text in texts]  # Gloo may say more
    assert [want, want] == [json.loads(text) for text in said]
