"""A rank dies in the middle of a job: the others learn who, at once."""

import os
import signal
import time

import numpy as np

import stretto


def work(comm: stretto.Communicator) -> None:
    """Add up for ever; rank 1 is killed on the way."""
    x = np.ones(1024, np.float32)
    for step in range(1000):
        if comm.rank == 1 and step == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.perf_counter()
        try:
            comm.all_reduce(x, op="avg")
        except stretto.PeerLost as lost:
            waited = time.perf_counter() - start
            print(f"rank {comm.rank} knew after {waited:.3f} s: {lost}", flush=True)
            return


def main() -> None:
    """Start three ranks and print what their launcher says."""
    try:
        stretto.spawn(work, num_ranks=3)
    except stretto.RankFailed as failed:
        print(f"spawn says: {failed}")


if __name__ == "__main__":
    main()
