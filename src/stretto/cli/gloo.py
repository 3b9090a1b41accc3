"""Time Gloo's all_reduce beside ours, in processes of its own.

PyTorch is not imported here: the script below is run by other interpreters, and only
where PyTorch is installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["gloo_times_us", "is_there"]

_SCRIPT = """
import json, os, statistics, sys, time
import torch
import torch.distributed as dist
rank, ranks, meet, sizes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meet, rank=rank,
                        world_size=ranks)
found = []
for nbytes in json.loads(sizes):
    x = torch.ones(max(1, nbytes // 4))
    times = []
    for turn in range(3 + (20 if nbytes < 1 << 22 else 5)):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        times.append((time.perf_counter() - start) * 1e6)
        x.fill_(1)
    worst = torch.tensor(times[3:])
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    found.append(statistics.median(worst.tolist()))
if rank == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


def is_there() -> bool:
    """Return whether PyTorch is installed; it is not imported."""
    return importlib.util.find_spec("torch") is not None


def gloo_times_us(
    sizes: Sequence[int], num_ranks: int, *, limit_s: float = 40.0
) -> list[float] | str:
    """Return Gloo's median times by size, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        meet = str(Path(folder) / "meet")
        started = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _SCRIPT,
                    str(rank),
                    str(num_ranks),
                    meet,
                    json.dumps(list(sizes)),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_ranks)
        ]
        try:
            said = [each.communicate(timeout=limit_s) for each in started]
        except subprocess.TimeoutExpired:
            return f"not done within {limit_s:g} s"
        finally:
            for each in started:
                each.kill()
                each.communicate()
    if any(each.returncode for each in started):
        lines = [err.strip().splitlines()[-1] for _, err in said if err.strip()]
        return lines[0] if lines else "it failed without a word"
    found: list[float] = json.loads(said[0][0].strip().splitlines()[-1])
    return found
