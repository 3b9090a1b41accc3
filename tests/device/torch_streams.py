"""Checks of torch_group.py of many streams, and of memory that is given out again."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def check_fifty_streams(rank: int, n: int) -> None:
    streams = [torch.cuda.Stream() for _ in range(50)]
    found = []
    for turn in range(150):
        with torch.cuda.stream(streams[turn * 7 % 50]):
            x = torch.full((1000 + turn,), float(rank + turn))
            work = dist.all_reduce(x, async_op=turn % 3 == 0)
            if work is not None:
                work.wait()
            found.append(x)
    torch.cuda.synchronize()
    for turn, x in enumerate(found):
        assert bool((x == sum(r + turn for r in range(n))).all()), turn


def check_fifty_streams_in_a_model_with_several_groups(rank: int, n: int) -> None:
    """Layers that go by four groups, on any of fifty streams, as on a single one."""
    every = list(range(n))
    pairs = [dist.new_group(every[at : at + 2]) for at in range(0, n, 2)]
    groups = [dist.group.WORLD, dist.new_group(every), dist.new_group(every)]
    groups.append(pairs[rank // 2])
    torch.manual_seed(3)
    weights = [torch.randn(96, 96) / 10 for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in range(50)]
    want = _layers(rank, groups, weights, [torch.cuda.current_stream()])
    for _ in range(3):
        for x, due in zip(_layers(rank, groups, weights, streams), want, strict=True):
            torch.testing.assert_close(x, due)


def _layers(rank: int, groups: Any, weights: Any, streams: Any) -> list[Any]:
    """Return what eight chains of layers make, each layer on a stream that is drawn."""
    drawn, whose = random.Random(11), random.Random(5)  # the same on every rank
    first = torch.cuda.current_stream()
    chains = [torch.full((24, 96), 0.1 * (rank + c)) for c in range(8)]
    last = [first] * len(chains)
    for _ in range(120):
        c, stream = drawn.randrange(len(chains)), whose.choice(streams)
        nth, started = drawn.randrange(len(groups)), drawn.random() < 0.4
        stream.wait_stream(last[c])
        with torch.cuda.stream(stream):
            chains[c].record_stream(stream)
            x = torch.tanh(chains[c] @ weights[nth])
            work = dist.all_reduce(x, group=groups[nth], async_op=started)
            if work is not None:
                work.wait()
            chains[c] = x / dist.get_world_size(groups[nth])
        last[c] = stream
    for stream in streams:
        first.wait_stream(stream)
    torch.cuda.synchronize()
    return chains


def check_sums_at_places_that_come_again(rank: int, n: int) -> None:
    """Memory is given out again, as another type or shape, and summed otherwise."""
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    made = [
        lambda: memory[:4096].view(torch.float32),
        lambda: memory[:4096].view(torch.float32).view(32, 32),
        lambda: memory[:4096].view(torch.float32).view(32, 32).t(),
        lambda: memory[:8192].view(torch.float32).view(32, 64)[:, :32],
        lambda: memory[:4096].view(torch.int32),
        lambda: memory[:4096].view(torch.bfloat16),
        lambda: memory[:2048].view(torch.float32),
        lambda: nn.Parameter(memory[:4096].view(torch.float32), requires_grad=False),
    ]
    ops = {dist.ReduceOp.SUM: sum, dist.ReduceOp.MAX: max}
    for turn in range(200):
        x, (op, by) = made[turn * 5 % len(made)](), list(ops.items())[turn // 3 % 2]
        x.fill_(rank + turn % 7)
        work = dist.all_reduce(x, op, async_op=turn % 2 == 0)
        if work is not None:
            work.wait()
        want = by(r + turn % 7 for r in range(n))
        assert bool((x == want).all()), (turn, op, x, want)
