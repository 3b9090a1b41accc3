"""`torch.distributed.shrink_group`: those who are left go on, also after a loss."""

import json

import pytest

torch = pytest.importorskip("torch")
from tests.host.meeting.conftest import environment, nothing_left, start  # noqa: E402

__all__ = ["environment", "nothing_left", "start"]
pytestmark = [
    pytest.mark.host,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not hasattr(torch.distributed, "shrink_group"), reason="torch has none"
    ),
]
WORK = """
import json, torch
import torch.distributed as dist
import stretto.torch
torch.set_num_threads(1)
def begin(rank, store):
    dist.init_process_group(
        "stretto", rank=rank, world_size=3, store=dist.FileStore(store, 3)
    )
def total():
    x = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    return x[7].item()
def refused(*given):
    try:
        dist.shrink_group(*given)
    except (TypeError, ValueError, RuntimeError) as e:
        return f"{type(e).__name__}: {e}"
def work(rank, store):
    begin(rank, store)
    pair = dist.new_group([0, 1])
    found = [total(), refused([0, 0]), refused([rank]), refused([7])]
    say("met")
    try:
        while True:
            total()
    except Exception as e:
        found.append(type(e).__name__)
    left = dist.shrink_group([1], shrink_flags=1)
    same = left is dist.group.WORLD
    found += [dist.get_rank(), dist.get_world_size(), same, total()]
    part = dist.new_group([0])
    found.append(dist.get_process_group_ranks(dist.group.WORLD))
    found.append(type(left).__name__)
    say(json.dumps(found))
    dist.destroy_process_group()
def parts(rank, store):
    begin(rank, store)
    part = dist.new_group([0, 1, 2])
    if rank != 2:
        part = dist.shrink_group([2], part)
        x = torch.full((10,), rank + 1.0)
        dist.all_reduce(x, group=part)
        found = [x[3].item(), dist.get_rank(part), part.size(), total()]
    else:
        found = [0.0, 0, 0, total()]
    say(json.dumps(found))
    dist.destroy_process_group()
"""


def test_who_is_left_after_a_loss_goes_on_as_fewer(start, tmp_path):
    """As the default group, numbered anew; odd wishes are torch's own errors."""
    store = str(tmp_path / "store")
    ranks = [start(f"{WORK}work({r}, {store!r})\n") for r in range(3)]
    for one in ranks:
        assert "met" == one.hear()
    ranks[1].kill()
    for new, old in enumerate((0, 2)):
        before, twice, mine, odd, fault, *after = json.loads(ranks[old].hear())
        assert 6.0 == before
        assert "Duplicate rank 0" in twice
        assert f"Current rank {old} is in the exclusion list" in mine
        assert "Rank 7 at index 0 is out of bounds" in odd
        assert "PeerLost" == fault
        assert [new, 2, True, 3.0, [0, 2], "StrettoGroup"] == after
        assert 0 == ranks[old].process.wait(20)


def test_a_part_shrinks_and_the_others_stay(start, tmp_path):
    """Nobody was lost; who is left out does not call."""
    store = str(tmp_path / "store")
    ranks = [start(f"{WORK}parts({r}, {store!r})\n") for r in range(3)]
    said = [json.loads(one.hear()) for one in ranks]

    assert [[3.0, 0, 2, 6.0], [3.0, 1, 2, 6.0], [0.0, 0, 0, 6.0]] == said
