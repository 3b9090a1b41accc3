"""An all_reduce of float32 in Triton, written by hand on channels.

Everybody sends its numbers to everybody as packets, two in each, and adds what comes in
rank order: the same bits on every rank. Needs a GPU a rank, and Triton.

    python examples/gpu/triton_all_reduce.py
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

import stretto
from stretto.executors.cuda import triton as st

BLOCK = 512
WARPS = 8


@triton.jit
def all_reduce(
    x: tl.tensor,
    out: tl.tensor,
    table: tl.tensor,
    count: tl.tensor,
    room: tl.tensor,
    RANK: tl.constexpr,  # noqa: N803
    RANKS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    """Add `count` numbers of `x`; `room` is the bytes of a sender's packets."""
    me = st.channel(table, RANK, RANKS)
    epoch = st.epoch(me)
    at = (epoch & 1) * RANKS * room
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, both = 2 * index < count, 2 * index + 1 < count
    one = tl.load(x + 2 * index, mask, 0.0).to(tl.uint32, bitcast=True)
    two = tl.load(x + 2 * index + 1, both, 0.0).to(tl.uint32, bitcast=True)
    mine = one.to(tl.int64) | two.to(tl.int64) << 32

    for i in tl.static_range(1, RANKS):
        to = st.channel(table, (RANK + i) % RANKS, RANKS)
        st.put_packets(to, at + RANK * room, index, mine, epoch, mask)
    first = tl.zeros([BLOCK], tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for q in tl.static_range(RANKS):
        part = mine
        if q != RANK:
            peer = st.channel(table, q, RANKS)
            part, _ = st.read_packets(peer, at + q * room, index, epoch, mask, step=q)
        first += (part & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)
        second += (part >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    tl.store(out + 2 * index, first, mask)
    tl.store(out + 2 * index + 1, second, both)
    st.end_call(me)


def grid(count: int) -> int:
    """Return how many programs there are, all of which must be resident."""
    return -(-count // (2 * BLOCK))


def run(channels: Any, x: Any, out: Any) -> None:
    """Enqueue it on the current stream, on channels made by `make`."""
    n, blocks = channels.num_ranks, channels.blocks
    all_reduce[(blocks,)](
        x,
        out,
        channels.pointer,
        x.numel(),
        16 * BLOCK * blocks,
        RANK=channels.rank,
        RANKS=n,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


def make(comm: Any, count: int) -> Any:
    """Return channels for vectors of so many numbers: two sets of packets."""
    blocks = grid(count)
    return comm.channels(2 * comm.num_ranks * 16 * BLOCK * blocks, blocks=blocks)


def work(comm: stretto.Communicator) -> bool:
    """Add ones on every rank, ten times."""
    import torch

    torch.cuda.set_device(comm.rank)
    x = torch.ones(10_000, device="cuda")
    out = torch.zeros_like(x)
    channels = make(comm, x.numel())
    for _ in range(10):
        run(channels, x, out)
    torch.cuda.synchronize()
    comm.check()
    return bool((out == comm.num_ranks).all())


def main() -> None:
    """Run on all GPUs of this machine."""
    import torch

    print(stretto.spawn(work, num_ranks=torch.cuda.device_count()))


if __name__ == "__main__":
    main()
