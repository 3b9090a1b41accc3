"""Training that goes on: the same losses, bit for bit, whoever is killed and when."""

import json

import pytest

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
TRAIN = """
import json, torch
import torch.distributed as dist
import stretto
import stretto.torch
import stretto.torch.elastic as elastic
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
torch.set_num_threads(1)
def train(rank, size, kills, epochs=2, pause=0.0, **more):
    standby = rank is None
    os.environ["STRETTO_ADDRESS"] = "job"
    os.environ["STRETTO_STANDBY"] = "1" if standby else "0"
    elastic.enable(stretto.Elastic(standby=1, **more))
    dist.init_process_group(
        "stretto", rank=size - 1 if standby else rank, world_size=size,
        store=dist.HashStore(),
    )
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2),
        torch.nn.Linear(64, 4),
    )
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 5, 0.9)
    data = TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(1)))
    sampler = DistributedSampler(data, num_replicas=size, rank=dist.get_rank(), seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    state = elastic.State(
        model=ddp, optimizer=opt, loader=loader, scheduler=schedule, seed=5
    )
    losses = {}
    for (x,) in elastic.steps(state, epochs=epochs):
        real = not elastic.stands_by()
        generation = stretto.torch.communicator().generation if real else -1
        loss = ddp(x).square().mean()
        if kills.get(generation) == (state.step, dist.get_rank(), "forward"):
            os.kill(os.getpid(), 9)
        opt.zero_grad()
        loss.backward()
        if kills.get(generation) == (state.step, dist.get_rank(), "backward"):
            os.kill(os.getpid(), 9)
        opt.step()
        schedule.step()
        if state.committed:
            losses[state.step] = loss.item()
        time.sleep(pause)
    say(json.dumps([dist.get_rank(), state.step, losses, opt.param_groups[0]["lr"]]))
    dist.destroy_process_group()
"""


def run(start, size, kills=None, standbys=0, steps=12):
    """Train; return the losses of each rank by step, and what was the last rate."""
    every = [*range(size), *[None] * standbys]
    calls = [f"train({rank}, {size}, {kills or {}})\n" for rank in every]
    members = [start(TRAIN + call) for call in calls]
    found, rates = {}, set()
    for one in members:
        out = one.process.communicate(timeout=250)
        if one.process.returncode in (-9, 0) and not out[0]:
            continue
        assert 0 == one.process.returncode, out[1]
        rank, step, losses, rate = json.loads(out[0].splitlines()[-1])
        assert steps == step
        rates.add(rate)
        known = found.setdefault(rank, {})
        known |= {int(k): v for k, v in losses.items()}
    return found, rates


def test_losses_are_those_of_a_run_that_nobody_disturbed(start):
    """Killed before and after gradients were reduced; rank 0, too; state and rate."""
    expected, rates = run(start, 2)
    assert {1, 12} == {len(rates), *map(len, expected.values())}
    kills = {0: (3, 1, "backward"), 1: (8, 0, "forward")}
    found, again = run(start, 2, kills, standbys=2)

    assert rates == again
    for rank, losses in found.items():
        assert losses == {s: expected[rank][s] for s in losses}
    assert set(range(9, 13)) <= set(found[0])
    assert set(range(4, 13)) <= set(found[1])


def test_replicas_differ_in_statistics_of_their_own_batches_and_go_on(start):
    """Where two that had them are left, and one comes."""
    expected, _ = run(start, 3, steps=8)
    found, _ = run(start, 3, {0: (3, 1, "backward")}, standbys=1, steps=8)

    assert {0, 1, 2} == set(found)
    for rank, losses in found.items():
        assert losses == {s: expected[rank][s] for s in losses}
