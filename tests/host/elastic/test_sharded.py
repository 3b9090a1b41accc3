"""Sharded models with replicas: whoever comes takes the part of the place it has."""

import json

import pytest

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
TRAIN = """
import json, torch
import torch.distributed as dist
import stretto
import stretto.torch
import stretto.torch.elastic as elastic
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
def train(rank, kills, store):
    standby = rank is None
    os.environ["STRETTO_ADDRESS"] = "job"
    os.environ["STRETTO_STANDBY"] = "1" if standby else "0"
    elastic.enable(stretto.Elastic(standby=1))
    dist.init_process_group(
        "stretto", rank=3 if standby else rank, world_size=4,
        store=dist.FileStore(store if not standby else f"{store}.{os.getpid()}", 4)
        if not standby else dist.HashStore(),
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    state = elastic.State(model=net, optimizer=opt, seed=5)
    losses = {}
    for step in elastic.steps(state, number=8):
        real = not elastic.stands_by()
        generation = stretto.torch.communicator().generation if real else -1
        x = torch.rand(4, 16)
        loss = net(x).square().mean()
        if kills.get(generation) == (state.step, dist.get_rank()):
            os.kill(os.getpid(), 9)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if state.committed:
            losses[state.step] = loss.item()
    whole = sum(float(p.full_tensor().double().sum()) for p in net.parameters())
    say(json.dumps([dist.get_rank(), losses, whole]))
    dist.destroy_process_group()
"""


def run(start, tmp_path, kills=None, standbys=0):
    """Train; return losses by rank, and what the weights add up to."""
    where = str(tmp_path / f"store{standbys}")
    every = [*range(4), *[None] * standbys]
    calls = [f"train({rank}, {kills or {}}, {where!r})\n" for rank in every]
    members = [start(TRAIN + call) for call in calls]
    found, sums = {}, set()
    for one in members:
        out, said = one.process.communicate(timeout=250)
        if one.process.returncode == -9 or not out:
            continue
        assert 0 == one.process.returncode, said
        rank, losses, whole = json.loads(out.splitlines()[-1])
        found[rank] = losses
        sums.add(whole)
    return found, sums


def test_a_replica_of_the_part_gives_its_state(start, tmp_path):
    """Rank 0 has another part than the standby had played."""
    expected, sums = run(start, tmp_path)
    found, again = run(start, tmp_path, {0: (3, 0)}, standbys=1)

    assert {0, 1, 2, 3} == set(found)
    assert sums == again
    assert 1 == len(sums)
    for rank, losses in found.items():
        assert losses == {step: expected[rank][step] for step in losses}
