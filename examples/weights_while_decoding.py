"""A trainer makes new weights; two ranks decode, and no step sees two versions.

    python examples/weights_while_decoding.py

This process trains: it adds to its weights, and pushes versions of them. Two others
are the ranks of a replica, each with half of the rows. Every step they multiply by what
they hold, and check that all of it is of the version that the step names.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from stretto import weights
from stretto.transfer import Engine
from stretto.weights import Part

LAYERS, WIDTH, RANKS, VERSIONS = 4, 256, 2, 5


def decode(rank: int, trainer: str) -> None:
    """Be a rank of the replica: step until the last version was seen."""
    with Engine(f"{trainer}-decode{rank}") as engine:
        for other in [trainer, *(f"{trainer}-decode{r}" for r in range(rank))]:
            engine.connect(other).wait(30)
        rows = WIDTH // RANKS
        into = {f"w{i}": np.zeros((rows, WIDTH), np.float32) for i in range(LAYERS)}
        policy = weights.subscribe(
            engine, "policy", into=into, replica="decode", rank=rank, num_ranks=RANKS,
            names=lambda name: Part(name, axis=0, rank=rank, of=RANKS),
        )  # fmt: skip
        if rank == 0:
            policy.wait(timeout=60)
        steps, version = 0, None
        x = np.ones(WIDTH, np.float32)
        while version is None or version.counter < VERSIONS - 1:
            with policy.step(timeout=60) as version:
                for layer in policy.tensors.values():
                    y = layer @ x  # decode, with weights that are all alike here
                    assert (y == WIDTH * (version.counter + 1)).all()
            steps += 1
        print(f"rank {rank}: {steps} steps, none torn, the last with {version}")


def main() -> None:
    """Train, and start those who decode."""
    if len(sys.argv) > 1:
        decode(int(sys.argv[1]), sys.argv[2])
        return
    import os

    name = f"trainer-{os.getpid()}"
    with Engine(name) as engine:
        model = {f"w{i}": np.zeros((WIDTH, WIDTH), np.float32) for i in range(LAYERS)}
        with weights.publish(engine, "policy", model, epoch="example") as source:
            ranks = []
            for rank in range(RANKS):
                words = [sys.executable, __file__, str(rank), name]
                ranks.append(subprocess.Popen(words))
                engine.peer(f"{name}-decode{rank}").wait(60)
            for _ in range(VERSIONS):
                for layer in model.values():
                    layer += 1
                source.push(wait=True, timeout=60)
            assert [one.wait(60) for one in ranks] == [0] * RANKS


if __name__ == "__main__":
    main()
