"""Several models, compiled or not, with what programs do beside: nobody sees a loss."""

import pytest
from tests.host.elastic.conftest import trained

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(300)]
TRAIN = """
import json, torch
import torch.distributed as dist
import stretto
import stretto.torch
import stretto.torch.elastic as elastic
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
torch.set_num_threads(1)
DDP = torch.nn.parallel.DistributedDataParallel
def make(kind):
    body = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 8)
    )
    head = torch.nn.Linear(8, 4)
    if kind == "two":
        models = [DDP(body), DDP(head)]
    elif kind == "compiled":
        models = [torch.compile(DDP(body), backend="aot_eager"), DDP(head)]
    return models
def train(rank, kills, kind, options, size=2):
    standby = rank is None
    os.environ["STRETTO_ADDRESS"] = "job"
    os.environ["STRETTO_STANDBY"] = "1" if standby else "0"
    elastic.enable(stretto.Elastic(standby=1))
    dist.init_process_group(
        "stretto", rank=size - 1 if standby else rank, world_size=size,
        store=dist.HashStore(),
    )
    torch.manual_seed(0)
    body, head = make(kind)
    params = [*body.parameters(), *head.parameters()]
    opt = torch.optim.AdamW(params, lr=1e-2, **options)
    state = elastic.State(model=[body, head], optimizer=opt, seed=5)
    losses = {}
    for step in elastic.steps(state, number=8):
        real = not elastic.stands_by()
        generation = stretto.torch.communicator().generation if real else -1
        dies = kills.get(generation, (0, -1, ""))
        at = dies[2] if dies[:2] == (state.step, dist.get_rank()) else ""
        def die(where, *given):
            if at == where:
                os.kill(os.getpid(), 9)
        said = [{"step": state.step}]
        dist.broadcast_object_list(said, 0)
        hook = head.register_full_backward_hook(lambda *_: die("backward"))
        opt.zero_grad()
        total = 0.0
        for nth in range(2):  # gradients are added up
            x = torch.rand(4, 8)
            with body.no_sync() if nth == 0 and kind == "two" else torch.enable_grad():
                between = body(x)
                die("forward")
                again = checkpoint(head, between, use_reentrant=False)
                loss = again.square().mean()
                loss.backward()
            total += loss.item()
        hook.remove()
        die("between")
        torch.nn.utils.clip_grad_norm_(params, 0.5)
        mean = torch.tensor([total])
        dist.all_reduce(mean)
        die("flag")
        opt.step()
        die("committed")
        if state.committed:
            losses[state.step] = [total, mean.item()]
    whole = sum(float(p.double().sum()) for p in params)
    say(json.dumps([dist.get_rank(), losses, whole]))
    dist.destroy_process_group()
"""


def run(start, kind, options, kills=None, standbys=0):
    """Train; return losses by rank, and what the weights add up to."""
    every = [0, 1, *[None] * standbys]
    calls = [f"train({r}, {kills or {}}, {kind!r}, {options})\n" for r in every]
    return trained([start(TRAIN + call) for call in calls])


KILLS = {
    0: (2, 0, "forward"),  # between two models
    1: (4, 1, "backward"),  # amid the second gradients of a step
    2: (6, 0, "flag"),  # before it says that its own are whole
    3: (7, 1, "committed"),
}


@pytest.mark.parametrize(
    ("kind", "options"), [("two", {"foreach": True}), ("compiled", {"fused": True})]
)
def test_losses_are_those_of_a_run_that_nobody_disturbed(start, kind, options):
    """Killed in each phase, with gradients that are added up, and objects that go."""
    expected, sums = run(start, kind, options)
    found, again = run(start, kind, options, KILLS, standbys=4)

    assert {0, 1} == set(found)
    assert sums == again
    assert 1 == len(sums)
    for rank, losses in found.items():
        assert losses == {step: expected[rank][step] for step in losses}
