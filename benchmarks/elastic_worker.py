"""A rank of `benchmarks/elastic.py`: calls, or a DDP model of ten million parameters.

Each rank says when a step was committed, or a call has ended, by the clock that all
processes of a host share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

WIDTH = int(os.environ.get("WIDTH", "1817"))
"""Three layers of so many squared are ten million parameters."""
DONE = "done"


def say(**said: Any) -> None:
    """Write a line for the driver."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def calls() -> None:
    """Call all_reduce of 1 MB until a rank is lost; go on as was asked."""
    import numpy as np

    import stretto

    how = os.environ["HOW"]
    comm = stretto.connect()
    x = np.ones(1 << 18, np.float32)
    out = np.empty_like(x)
    if comm.generation == 0:
        for _ in range(3):
            comm.all_reduce(x, out=out)
        while how == "replace" and not comm.standbys:
            time.sleep(0.01)
        while not all(comm.ready_for().values()):
            time.sleep(0.01)
        comm.barrier()
        time.sleep(1.0)  # who stands by proves what it has heard of
        say(rank=comm.rank, pid=os.getpid(), at=time.monotonic())
        told = None
        try:
            while True:
                comm.all_reduce(x, out=out)
                time.sleep(0.001)
        except stretto.PeerLost:
            told = time.monotonic()
        comm = comm.replace() if how == "replace" else comm.shrink()
        switched = time.monotonic()
    else:
        told = switched = time.monotonic()
    comm.all_reduce(x, out=out)
    assert out[0] == comm.num_ranks
    say(rank=comm.rank, told=told, switched=switched, first=time.monotonic())
    comm.barrier()
    comm.close()


def model_and_data() -> tuple[Any, Any, Any]:
    """Return the model, its optimizer, and what makes a batch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device(os.environ.get("DEVICE", "cpu"))
    if device.type == "cuda":
        # Who stands by is on the last rank's GPU where there is none for it: that rank
        # is the one that is killed.
        last = torch.cuda.device_count() - 1
        torch.cuda.set_device(min(int(os.environ["LOCAL_RANK"]), last))
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).to(device)
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-4)
    return (
        ddp,
        opt,
        lambda step: torch.full((8, WIDTH), 0.01 * (step % 7), device=device),
    )


def gpu_mb() -> int:
    """Return how much of this process's GPU is in use, by anybody; 0: it has none."""
    import torch

    if os.environ.get("DEVICE", "cpu") != "cuda":
        return 0
    free, whole = torch.cuda.mem_get_info()
    return (whole - free) >> 20


def train() -> None:
    """Train until so many steps are done, elastic."""
    import torch.distributed as dist

    import stretto.torch  # noqa: F401
    from stretto.torch import elastic

    dist.init_process_group("stretto")
    ddp, opt, batch = model_and_data()
    state = elastic.State(model=ddp, optimizer=opt, seed=1)
    for step in elastic.steps(state, number=int(os.environ["STEPS"])):
        opt.zero_grad()
        ddp(batch(step)).square().mean().backward()
        opt.step()
        if state.committed:
            say(
                rank=dist.get_rank(),
                pid=os.getpid(),
                step=state.step,
                at=time.monotonic(),
                gpu_mb=gpu_mb(),
            )
    dist.destroy_process_group()


def storm() -> None:
    """Train a small model with dropout; say every loss, as its bits."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import stretto.torch  # noqa: F401
    from stretto.torch import elastic

    torch.set_num_threads(1)
    dist.init_process_group("stretto")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 4)
    )
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    state = elastic.State(model=ddp, optimizer=opt, seed=1)
    for step in elastic.steps(state, number=int(os.environ["STEPS"])):
        drawn = torch.Generator().manual_seed(step * 64 + dist.get_rank())
        opt.zero_grad()
        loss = ddp(torch.randn(8, 8, generator=drawn)).square().mean()
        loss.backward()
        opt.step()
        if state.committed:
            say(rank=dist.get_rank(), step=state.step, loss=loss.item().hex())
        time.sleep(float(os.environ["PAUSE"]))
    dist.destroy_process_group()


def restart() -> None:
    """Train under torchrun, which starts everybody anew; a checkpoint is in a file."""
    import torch
    import torch.distributed as dist

    import stretto.torch  # noqa: F401

    dist.init_process_group("stretto")
    ddp, opt, batch = model_and_data()
    path, first = Path(os.environ["CHECKPOINT"]), 0
    if path.exists():
        found = torch.load(path, weights_only=True)
        ddp.load_state_dict(found["model"])
        opt.load_state_dict(found["optimizer"])
        first = found["step"]
    for step in range(first, int(os.environ["STEPS"])):
        opt.zero_grad()
        ddp(batch(step)).square().mean().backward()
        opt.step()
        say(rank=dist.get_rank(), pid=os.getpid(), step=step + 1, at=time.monotonic())
        if step % 20 == 10 and dist.get_rank() == 0:
            part = path.with_suffix(".part")
            said = {"model": ddp.state_dict(), "optimizer": opt.state_dict()}
            torch.save({**said, "step": step + 1}, part)
            part.replace(path)
    dist.destroy_process_group()


def healthy() -> None:
    """Time what a healthy step costs more: the loop of ours around nothing.

    By the clock, and by what this thread computed: others may be at work.
    """
    import torch
    import torch.distributed as dist

    import stretto.torch  # noqa: F401
    from stretto.torch import elastic

    dist.init_process_group("stretto")
    net = torch.nn.Linear(1, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    step = opt.step
    state = elastic.State(model=net, optimizer=opt, seed=1)
    each, rounds = 1000, 40
    plain, whole = [], []

    def clocks() -> list[float]:
        return [time.monotonic(), time.thread_time()]

    def since(begun: list[float]) -> list[float]:
        return [1e6 * (b - a) / each for a, b in zip(begun, clocks(), strict=True)]

    for _ in range(each):
        step()
    begun = clocks()
    for nth in elastic.steps(state, number=each * rounds):
        opt.step()
        if nth % each == 0:
            whole.append(since(begun))
            begun = clocks()
            for _ in range(each):
                step()
            plain.append(since(begun))
            begun = clocks()
    del whole[0]
    (plain_us, plain_cpu_us), (elastic_us, elastic_cpu_us) = (
        map(min, zip(*found, strict=True)) for found in (plain, whole)
    )
    say(
        rank=dist.get_rank(), plain_us=plain_us, elastic_us=elastic_us,
        plain_cpu_us=plain_cpu_us, elastic_cpu_us=elastic_cpu_us,
    )  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    parts = (calls, train, storm, restart, healthy)
    {one.__name__: one for one in parts}[sys.argv[1]]()
