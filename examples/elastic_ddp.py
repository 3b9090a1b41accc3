"""Train with DDP while a rank is killed: the job goes on, with the same losses.

stretto launch --ranks 4 --standby 1 --min 2 -- python examples/elastic_ddp.py

What is elastic are the three lines that say so. Without a launcher it starts two ranks
and a standby here, and kills rank 1 on the way.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import stretto.torch
from stretto.torch import elastic  # (1)

KILLED_AT = 20


def work() -> None:
    """Be a rank, or stand by until one is needed."""
    torch.set_num_threads(1)
    dist.init_process_group("stretto")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(1024, 16, generator=drawn)
    data = TensorDataset(x, x[:, :4].argmax(1))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    state = elastic.State(model=model, optimizer=optimizer, loader=loader)  # (2)
    for x, y in elastic.steps(state, epochs=3):  # (3)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        if os.environ.get("DEMO") and is_to_die(state.step):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()  # commits, where everybody's gradients are whole
        if state.committed and state.step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {state.step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def is_to_die(step: int) -> bool:
    """Return whether this is the rank that the demo kills, and the step."""
    if elastic.stands_by() or dist.get_rank() != 1 or step != KILLED_AT:
        return False
    return stretto.torch.communicator().generation == 0


def main() -> None:
    """Run under a launcher, or launch two ranks and a standby here."""
    if "RANK" in os.environ:
        work()
        return
    from stretto.elastic import JobOptions, LaunchedJob, Starter

    os.environ["DEMO"] = "1"
    starter = Starter(words=[sys.executable, __file__])
    options = JobOptions.here(2, standby=1, starter=starter)
    status = LaunchedJob(options).run()
    print(f"the job ended with status {status}")
    sys.exit(status)


if __name__ == "__main__":
    main()
