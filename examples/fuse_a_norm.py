"""All-reduce, residual add and RMS norm in one call: on GPUs, in one kernel.

`stretto show --epilogue examples/fuse_a_norm.py` prints the kernel (see
docs/guides/epilogues.md).
"""

import numpy as np

import stretto
from stretto.epilogues import Expr, row_mean, rsqrt

TOKENS, HIDDEN = 4, 256


@stretto.epilogue
def add_rms_norm(y: Expr, residual: Expr, weight: Expr, eps: Expr) -> dict[str, Expr]:
    """Add what was, and scale every row to a mean square of one."""
    s = y + residual
    return {"out": s * rsqrt(row_mean(s * s) + eps) * weight, "residual": s}


def work(comm: stretto.Communicator) -> float:
    """Do what follows a layer whose weights are divided among ranks."""
    part = np.full((TOKENS, HIDDEN), comm.rank + 1, np.float32)
    residual = np.ones((TOKENS, HIDDEN), np.float32)
    weight = np.ones(HIDDEN, np.float32)
    fused = add_rms_norm(residual=residual, weight=weight, eps=1e-6)
    made = comm.all_reduce(part, epilogue=fused.into(residual=residual))
    assert made["residual"] is residual  # the sum replaced it
    return float(np.square(made["out"]).mean())


def main() -> None:
    """Run it on two processes of this machine."""
    for rank, square in enumerate(stretto.spawn(work, num_ranks=2)):
        print(f"rank {rank}: mean square {square:.6f}")


if __name__ == "__main__":
    main()
