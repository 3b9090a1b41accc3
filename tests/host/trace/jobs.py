"""What ranks do that are recorded: a program, given its name and where it may write."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import stretto


def steady(comm, folder):
    """Make calls of several kinds, beside one another too."""
    x, y = np.ones(1 << 12, np.float32), np.ones(1 << 18, np.float32)
    for _ in range(20):
        comm.all_reduce(x)
        x.fill(1)
    comm.all_gather(y)
    comm.all_reduce_async(x).wait()
    part = comm.split(0)
    part.barrier()
    part.close()
    if comm.rank == 0:
        comm.send(x, to=1)
    elif comm.rank == 1:
        comm.recv(x, source=0)


def killed(comm, folder):
    """Make some calls; then rank 1 is gone, without a word."""
    x = np.ones(64, np.float32)
    for _ in range(50):
        comm.all_reduce(x)
        x.fill(1)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(x)


def stuck(comm, folder):
    """Wait for a rank that does not come before it is told to."""
    x = np.ones(64, np.float32)
    comm.all_reduce(x)
    Path(folder, f"pid-{comm.rank}").write_text(str(os.getpid()))
    until = time.monotonic() + 200
    while comm.rank == 1 and not Path(folder, "go").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    comm.all_reduce(x)


if __name__ == "__main__":
    stretto.spawn(globals()[sys.argv[1]], sys.argv[2], num_ranks=2, deadline_s=240)
