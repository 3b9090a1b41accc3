"""Checks of what goes wrong in one's own kernels: who is absent, what is refused."""

from __future__ import annotations

from typing import Any

from channel_rank import SHORT_S, Rank, check, raised

WAIT = """
#include "channel.cuh"
using namespace stretto;
extern "C" __global__ void wait_for(const MemoryChannel* channels, int peer) {
  if (threadIdx.x == 0) channels[peer].wait(42);
}
"""


@check
def absent(r: Rank) -> Any:
    """Who never signals is named, with the author's step, and everybody hears it."""
    comm = r.open(SHORT_S)
    made = comm.channels(64)
    kernel = made.kernel(WAIT, "wait_for", threads=32)
    r.together()

    def act() -> None:
        if r.rank == 0:
            kernel(made.pointer, r.n - 1)

    text = raised(r, act)
    if r.rank == 0:
        assert "channel to rank" in text, text
        assert "step 42" in text, text
    return text[:300]


@check
def triton_absent(r: Rank) -> Any:
    """A wait in Triton ends at the deadline, and the record names the step."""
    comm = r.open(SHORT_S)
    made, out = comm.channels(64), r.zeros(64)
    from triton_kernels import wait_for

    wait_for[(1,)](made.pointer, out, r.rank, r.n, 0, num_warps=2)
    r.together()

    def act() -> None:
        if r.rank == 0:
            wait_for[(1,)](made.pointer, out, r.n - 1, r.n, 1, num_warps=2)

    text = raised(r, act)
    if r.rank == 0:
        assert "step 5" in text, text
        assert out[0].item() == 2, f"the kernel said {out[0].item()}"
    return text[:300]
