"""Groups of jobs on GPUs: what calls on CPUs need is loaded by the first of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

RANK = """
import json, sys
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
said |= {"numba then": "numba" in sys.modules, "sessions then": list(comm._sessions)}
dist.destroy_process_group()
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_group_opens_late(tmp_path):
    """Nothing of the CPU's at first; the first calls load it, and are right."""
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
        "numba then": True,
        "sessions then": ["cpu"],
    }
    said = [text.strip().splitlines()[-1] for text in texts]  # Gloo may say more
    assert [want, want] == [json.loads(text) for text in said]
