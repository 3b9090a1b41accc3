"""Sharded models with replicas: whoever comes takes the part of the place it has."""

import pytest
from tests.host.elastic.conftest import trained

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
def train(rank, kills, head):
    standby = rank is None
    os.environ["STRETTO_ADDRESS"] = "job"
    os.environ["STRETTO_STANDBY"] = "1" if standby else "0"
    elastic.enable(stretto.Elastic(standby=1))
    dist.init_process_group(
        "stretto", rank=3 if standby else rank, world_size=4,
        store=dist.HashStore(),
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.Dropout(0.1),
        torch.nn.Linear(16, 16), torch.nn.Linear(16, head),
    )
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    state = elastic.State(model=net, optimizer=opt, seed=5)
    losses = {}
    for step in elastic.steps(state, number=8):
        real = not elastic.stands_by()
        generation = stretto.torch.communicator().generation if real else -1
        dies = kills.get(generation, (0, -1, ""))
        when, who, where = dies
        who = who if isinstance(who, tuple) else (who,)
        mine = not standby and dist.get_rank() in who  # once a place
        at = where if when == state.step and mine else ""
        def die(where, *given):
            if at == where:
                os.kill(os.getpid(), 9)
        hooks = [
            net[2].register_forward_pre_hook(lambda *_: die("forward")),
            net[2].register_full_backward_hook(lambda *_: die("backward")),
        ]
        x = torch.rand(4, 16)
        loss = net(x).square().mean()
        die("between")
        opt.zero_grad()
        loss.backward()
        for hook in hooks:
            hook.remove()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        die("flag")
        opt.step()
        die("committed")
        if state.committed:
            losses[state.step] = loss.item()
    whole = sum(float(p.full_tensor().double().sum()) for p in net.parameters())
    say(json.dumps([dist.get_rank(), losses, whole]))
    dist.destroy_process_group()
"""


def run(start, kills=None, standbys=0, head=4):
    """Train; return losses by rank, and what the weights add up to."""
    every = [*range(4), *[None] * standbys]
    calls = [f"train({rank}, {kills or {}}, {head})\n" for rank in every]
    return trained([start(TRAIN + call) for call in calls])


KILLS = {
    0: (2, 0, "forward"),  # amid the gathering of weights
    1: (3, 3, "backward"),  # amid the sums of gradients
    2: (5, 1, "flag"),  # before it says that its own are whole
}


@pytest.mark.parametrize("head", [4, 3, 1], ids=["even", "uneven", "empty"])
def test_replicas_give_their_state_wherever_a_rank_of_theirs_is_killed(start, head):
    """Four ranks are two replicas of two parts, of other sizes if uneven."""
    expected, sums = run(start, head=head)
    found, again = run(start, KILLS, standbys=3, head=head)

    assert {0, 1, 2, 3} == set(found)
    assert set(range(1, 9)) == set(map(int, found[2]))
    assert sums == again
    assert 1 == len(sums)
    for rank, losses in found.items():
        assert losses == {step: expected[rank][step] for step in losses}


@pytest.mark.parametrize("where", ["forward", "backward", "committed"])
def test_a_replica_that_is_lost_whole_comes_back(start, where):
    """Two ranks are all of a group: who comes hears from others which it was."""
    expected, sums = run(start)
    again = (5, (0, 1), where)  # one change or two after the first losses
    kills = {0: (3, (2, 3), where), 1: again, 2: again}
    found, sums_again = run(start, kills, standbys=4)

    assert {0, 1, 2, 3} == set(found)
    assert sums == sums_again
    assert 1 == len(sums)
    for rank, losses in found.items():
        assert losses == {step: expected[rank][step] for step in losses}
