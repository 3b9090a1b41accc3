"""Programs that were written for others: torchft's Manager, Horovod's TorchState."""

import json

import pytest

pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(200)]
BEGIN = """
import json, torch
import torch.distributed as dist
import stretto
import stretto.torch
import stretto.torch.elastic as elastic
torch.set_num_threads(1)
def begin(rank, size):
    os.environ["STRETTO_ADDRESS"] = "job"
    os.environ["STRETTO_STANDBY"] = "1" if rank is None else "0"
    elastic.enable(stretto.Elastic(standby=1))
    dist.init_process_group(
        "stretto", rank=size - 1 if rank is None else rank, world_size=size,
        store=dist.HashStore(),
    )
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
def loss_of(net, step):
    x = torch.full((2, 8), 0.1 * (step + 1) * (dist.get_rank() + 1))
    return net(x).square().mean()
def die(rank, step):
    if not elastic.stands_by() and (dist.get_rank(), step) == (rank, 3):
        if stretto.torch.communicator().generation == 0:
            os.kill(os.getpid(), 9)
def end(net):
    say(json.dumps([dist.get_rank(), net.weight.sum().item()]))
    dist.destroy_process_group()
"""
TORCHFT = """
from stretto.torch.elastic.torchft import Manager
def train(rank, kills):
    net, opt = begin(rank, 2)
    manager = Manager(elastic.State(model=net, optimizer=opt))
    while manager.current_step() < 6:
        manager.start_quorum()
        opt.zero_grad()
        loss_of(net, manager.current_step()).backward()
        if kills:
            die(1, manager.current_step())
        for one in [manager.allreduce(p.grad) for p in net.parameters()]:
            one.wait()
        if manager.should_commit():
            opt.step()
    assert manager.num_participants() == 2 and manager.is_participating()
    end(net)
"""
HOROVOD = """
from stretto.torch.elastic.horovod import TorchState, run
def train(rank, kills):
    net, opt = begin(rank, 2)
    @run
    def loop(state):
        while state.batch < 6:
            opt.zero_grad()
            loss_of(net, state.batch).backward()
            if kills:
                die(1, state.batch)
            for p in net.parameters():
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            opt.step()
            state.batch += 1
            state.commit()
    loop(TorchState(model=net, optimizer=opt, batch=0))
    end(net)
"""


@pytest.mark.parametrize("program", [TORCHFT, HOROVOD], ids=["torchft", "horovod"])
def test_a_lost_rank_changes_no_weight(start, program):
    """A standby takes its place; weights are those of a run without a loss."""
    found = []
    for kills, ranks in ((False, (0, 1)), (True, (0, 1, None))):
        calls = [f"train({rank}, {kills})\n" for rank in ranks]
        members = [start(BEGIN + program + call) for call in calls]
        said = [one.process.communicate(timeout=90) for one in members]
        ended = [one.process.returncode for one in members]
        assert [-9 if kills and r == 1 else 0 for r in range(len(ranks))] == ended, said
        found.append(sorted(json.loads(out) for out, _ in said if out))

    assert [0, 1] == [rank for rank, _ in found[0]]
    assert found[0] == found[1]
