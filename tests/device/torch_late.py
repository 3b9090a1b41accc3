"""Checks of torch_group.py of started calls: whose peers come late, or wait for them.

A started call beside compute leaves the GPU to others while it waits for a rank; ranks
that disagree whether a call was started are told so.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from stretto.errors import CollectiveMismatch

LATE_S = 2.0
"""How long after the others the last rank comes."""
SOON_S = 1.0
"""By when matmuls beside the waiting call must have ended."""
SIDE = 2048


def check_matmuls_end_while_a_started_call_waits_for_a_late_rank(
    rank: int, n: int
) -> None:
    """Those queued before the call and after it, on any stream: nobody holds them."""
    a = torch.randn(SIDE, SIDE, dtype=torch.bfloat16)
    want = a @ a
    side = torch.cuda.Stream()
    for turn, count in enumerate((1 << 18, 1 << 22, 1 << 18, 1 << 22)):
        x = torch.full((count,), float(rank + turn))
        dist.all_reduce(x.clone(), async_op=True).wait()  # met, compiled, loaded
        torch.cuda.synchronize()
        dist.barrier()
        if rank == n - 1:
            time.sleep(LATE_S)
        began = time.monotonic()
        side.wait_stream(torch.cuda.current_stream())
        made = _multiply(side, a)
        work = dist.all_reduce(x, async_op=True)
        made += _multiply(side, a) + _multiply(torch.cuda.current_stream(), a)
        issued = time.monotonic() - began
        side.synchronize()
        torch.cuda.current_stream().synchronize()
        ended = time.monotonic() - began
        work.wait()
        torch.cuda.synchronize()
        assert bool((x == sum(r + turn for r in range(n))).all()), (turn, x)
        assert all(torch.equal(one, want) for one in made), turn
        if rank == 0:
            assert issued < SOON_S, f"the host was held for {issued:.2f} s"
            assert ended < SOON_S, f"matmuls ended after {ended:.2f} s"


def _multiply(stream: Any, a: Any) -> list[Any]:
    with torch.cuda.stream(stream):
        return [a @ a for _ in range(4)]


def check_what_is_loaded_beside_a_waiting_call_holds_the_host_no_longer_than_it(
    rank: int, n: int
) -> None:
    """Kernels that are new are loaded when the GPU is idle: when the rank has come."""
    x = torch.full((1 << 20,), float(rank))
    dist.all_reduce(x.clone(), async_op=True).wait()
    y = torch.rand(777, 333, dtype=torch.float64)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == n - 1:
        time.sleep(LATE_S)
    began = time.monotonic()
    work = dist.all_reduce(x, async_op=True)
    z = torch.special.i1e(y)
    torch.cuda.empty_cache()
    held = time.monotonic() - began
    work.wait()
    torch.cuda.synchronize()
    assert bool((x == sum(range(n))).all())
    assert bool(z.isfinite().all())
    assert held < LATE_S + SOON_S, f"the host was held for {held:.2f} s"


def check_ranks_that_disagree_whether_a_call_was_started_are_told_so(
    rank: int, n: int
) -> None:
    """Beyond what is short a started call has another shape than one that blocks."""
    for starter in (0, n - 1):
        group = dist.new_group(list(range(n)), timeout=timedelta(seconds=4))
        x = torch.full((1 << 20,), 1.0)
        dist.all_reduce(torch.ones(1), group=group)
        try:
            work = dist.all_reduce(x, group=group, async_op=rank == starter)
            torch.cuda.synchronize()
            time.sleep(0.3)
            if work is not None:
                work.wait()
            dist.all_reduce(torch.ones(1), group=group)
            torch.cuda.synchronize()
        except CollectiveMismatch as e:
            said = str(e)
            assert f"ranks [{starter}] started it" in said, said
        else:
            raise AssertionError("nothing was raised")
        dist.destroy_process_group(group)
