"""Torchrun starts all ranks anew when one has died: they meet again."""

import pytest
from tests.host import warm

pytest.importorskip("torch")
pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]

WORK = """
import os, signal, time
import torch, torch.distributed as dist
import stretto.torch

dist.init_process_group("stretto")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
pair = dist.new_group([0, 1])
x = torch.ones(4)
dist.all_reduce(x)
dist.all_reduce(x, group=pair)
if attempt < 2 and rank == attempt:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(f"attempt {attempt} rank {rank} {x[0].item():g}", flush=True)
dist.destroy_process_group()
"""


def test_ranks_meet_again_in_each_attempt(tmp_path):
    """Whatever the ones before have left in torchrun's store: here, of two of them."""
    path = tmp_path / "work.py"
    path.write_text(WORK)
    words = ["-m", "torch.distributed.run", "--standalone"]
    words += ["--nproc-per-node", "2", "--max-restarts", "2", str(path)]

    done = warm.run(words, capture_output=True, text=True, timeout=200)

    assert 0 == done.returncode, done.stderr[-3000:]
    assert "attempt 2 rank 0 4" in done.stdout
    assert "attempt 2 rank 1 4" in done.stdout
    assert "connectFullMesh failed" not in done.stderr


AGAIN = """
import sys
import torch, torch.distributed as dist
import stretto.torch

for turn in range(8):
    dist.init_process_group("stretto")
    rank = dist.get_rank()
    pair = dist.new_group([turn % 2, 2])  # of one name, with other ranks
    x = torch.full((4,), float(turn))
    dist.all_reduce(x)
    if rank in (turn % 2, 2):
        dist.all_reduce(x, group=pair)
        dist.gather(x, [x.clone(), x.clone()] if rank == 2 else None, 2, group=pair)
    dist.destroy_process_group()
print(f"rank {rank} {x[0].item():g}", flush=True)
"""


def test_groups_that_are_destroyed_are_made_again_in_the_same_store(tmp_path):
    """Nobody believes what an earlier group of the same name has left there."""
    path = tmp_path / "work.py"
    path.write_text(AGAIN)
    words = ["-m", "torch.distributed.run", "--standalone"]

    done = warm.run(
        [*words, "--nproc-per-node", "3", str(path)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr[-3000:]
    assert {"rank 0 21", "rank 1 42", "rank 2 42"} == set(done.stdout.splitlines())
