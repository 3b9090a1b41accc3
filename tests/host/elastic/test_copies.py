"""Parts of a model that only one rank has: whoever comes takes them from a copy."""

import json

import pytest
from tests.waiting import until

from stretto import elastic
from stretto.fabric.meeting.watching import watching

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
def train(rank, size, kills, store, steps, pause, **more):
    standby = rank is None
    os.environ["STRETTO_ADDRESS"] = "job"
    os.environ["STRETTO_STANDBY"] = "1" if standby else "0"
    elastic.enable(stretto.Elastic(standby=1))
    dist.init_process_group(
        "stretto", rank=size - 1 if standby else rank, world_size=size,
        store=dist.HashStore() if standby else dist.FileStore(store, size),
    )
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    state = elastic.State(model=net, optimizer=opt, seed=5, **more)
    losses, back = {}, []
    for step in elastic.steps(state, number=steps):
        real = not elastic.stands_by()
        generation = stretto.torch.communicator().generation if real else -1
        if real and state.step in losses and state.step + 1 in losses:
            back.append(state.step)
        x = torch.rand(4, 16)
        loss = net(x).square().mean()
        if kills.get(generation) == (state.step, dist.get_rank()):
            os.kill(os.getpid(), 9)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if state.committed:
            assert losses.setdefault(state.step, loss.item()) == loss.item()
        time.sleep(pause)
    whole = sum(float(p.full_tensor().double().sum()) for p in net.parameters())
    say(json.dumps([dist.get_rank(), losses, whole, back]))
    dist.destroy_process_group()
"""


def begin(start, store, size, kills=None, standbys=0, *, steps=12, pause=0.0, **more):
    """Start ranks and who stands by."""
    every = [*range(size), *[None] * standbys]
    said = "".join(f", {name}={value!r}" for name, value in more.items())
    given = f"{size}, {kills or {}}, {str(store)!r}, {steps}, {pause}{said}"
    return [start(f"{TRAIN}train({rank}, {given})\n") for rank in every]


def ended(members):
    """Losses by rank, what the weights add up to, and where ranks went back to."""
    found, sums, back = {}, set(), {}
    for one in members:
        out, said = one.process.communicate(timeout=250)
        if one.process.returncode == -9 or not out:
            continue
        assert 0 == one.process.returncode, said
        rank, losses, whole, went = json.loads(out.splitlines()[-1])
        found[rank] = losses
        back[rank] = went
        sums.add(whole)
    return found, sums, back


def check_alike(found, expected, size):
    """Whoever the ranks were, each has the losses of the undisturbed run."""
    assert {*range(size)} == {*found}
    for rank, losses in found.items():
        assert losses == {step: expected[rank][step] for step in losses}


@pytest.mark.parametrize("source", ["copies", "files"])
def test_a_part_that_is_lost_comes_from_a_copy(start, tmp_path, source):
    """Of a neighbour, or else of a file: all go back to its step, with their own."""
    expected, sums, _ = ended(begin(start, tmp_path / "a", 2))
    more = {"copies": 1, "every": 4}
    if source == "files":
        path = str(tmp_path / "at-{rank}")
        more = {"checkpoint": path, "checkpoint_every": 4}
    kills = {0: (7, 1), 1: (10, 0)}
    store = tmp_path / "b"
    found, again, back = ended(begin(start, store, 2, kills, standbys=2, **more))

    check_alike(found, expected, 2)
    assert sums == again
    assert 1 == len(sums)
    assert [] != back[0] + back[1]


def test_who_is_drained_hands_its_own_part_over(start, tmp_path, monkeypatch):
    """Without any copy: from its memory, before it ends."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    members = begin(start, tmp_path / "a", 2, standbys=1, steps=150, pause=0.02)
    until(lambda: [*tmp_path.glob("stretto/*.sock")], 60)

    def is_ready(meeting):
        seen = elastic.look(meeting)
        ready = [one for one in seen.members if one.rank < 0 and one.said.get("ready")]
        return ready and all(one.said.get("step", 0) > 2 for one in seen.ranks)

    with watching() as meeting:
        until(lambda: is_ready(meeting), 120)
        first = elastic.look(meeting)
        then = elastic.drain(meeting, 1)
        assert first.rank(1).pid != then.rank(1).pid
    found, sums, back = ended(members)
    expected, again, _ = ended(begin(start, tmp_path / "b", 2, steps=150))

    check_alike(found, expected, 2)
    assert sums == again
    assert [] == back[0] + back[1]
