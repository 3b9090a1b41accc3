"""Triton kernels of the device tests; a module of their own, as Triton wants."""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.executors.cuda import triton as st


@triton.jit(do_not_specialize=["rounds"])
def ping(table: tl.tensor, out: tl.tensor, rounds: tl.tensor) -> None:
    """Play rank 0 of examples/gpu/ping_pong.py with 64 words."""
    to = st.channel(table, 1, 2)
    near = st.local(to).to(tl.pointer_type(tl.int64))
    far = st.remote(to).to(tl.pointer_type(tl.int64))
    lane = tl.arange(0, 64)
    for i in range(rounds):
        if i % 2 == 0:
            tl.store(far + 64 + lane, 1000 * i + lane.to(tl.int64))
            st.signal(to)
        else:
            st.wait(to, i)
            tl.store(out + lane, tl.load(near + 64 + lane, volatile=True))


@triton.jit(do_not_specialize=["peer", "act"])
def wait_for(
    table: tl.tensor, out: tl.tensor, peer: tl.tensor, ranks: tl.tensor, act: tl.tensor
) -> None:
    """Wait for a peer that does not signal; say 1 when it came, 2 when not."""
    if act == 1:
        came = st.wait(st.channel(table, peer, ranks), 5)
        tl.store(out, tl.where(came, 1, 2))
