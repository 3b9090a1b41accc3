"""Run collectives on four processes of this machine."""

import numpy as np

import stretto


def work(comm: stretto.Communicator) -> tuple[float, float]:
    """Do on every rank what everybody does: compute, combine, exchange."""
    gradient = np.full(1_000_003, comm.rank, np.float32)
    comm.all_reduce(gradient, op="avg")

    tokens = np.arange(comm.num_ranks, dtype=np.int64) + 10 * comm.rank
    received = comm.all_to_all(tokens)
    return float(gradient[0]), float(received.sum())


def main() -> None:
    """Start the processes and print what came back."""
    for rank, (mean, total) in enumerate(stretto.spawn(work, num_ranks=4)):
        print(f"rank {rank}: mean {mean}, received {total}")


if __name__ == "__main__":
    main()
