"""What calls of PyTorch cost the host, in microseconds: enqueued, not waited for.

Without a default device: with one every method of every tensor goes through Python.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import stretto.torch as st

__all__ = ["host_times"]

TURNS, CALLS = 30, 25
EPS = 1e-6


def host_times(group: Any) -> dict[str, Any]:
    """Return the median and the lower decile of each call, NCCL's where there is one.

    `group` is one of stretto; it is collective, and so are the groups made here.
    """
    before = torch.get_default_device()
    torch.set_default_device(None)
    try:
        with torch.no_grad():
            return _host_times(group)
    finally:
        torch.set_default_device(before)


class Nothing(dist.ProcessGroup):
    """A group in Python that does nothing: what torch.distributed costs by itself."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def allreduce(self, tensors: Any, opts: Any = None) -> None:
        """Be done."""


def _host_times(group: Any) -> dict[str, Any]:
    n = dist.get_world_size(group)
    calls = {f"stretto {k}": call for k, call in _of_torch(group).items()}
    nccl = None
    if n <= torch.cuda.device_count() and dist.is_nccl_available():
        nccl = dist.new_group(backend="nccl")
        calls |= {f"nccl {k}": call for k, call in _of_torch(nccl).items()}
    calls |= _of_ours(group)
    x, nothing = torch.zeros(256, device="cuda"), Nothing()
    calls["a group that does nothing"] = lambda: dist.all_reduce(x, group=nothing)
    comm = st.communicator(group)
    found: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    for name, call in calls.items():
        found[name] = _timed(call, comm)
    if nccl is not None:
        dist.destroy_process_group(nccl)
    return found


def _of_torch(group: Any) -> dict[str, Callable[[], Any]]:
    """Return calls of torch.distributed: of 1 KB, on one tensor or on many."""
    x = torch.zeros(256, device="cuda")
    out = torch.zeros(256 * dist.get_world_size(group), device="cuda")
    several = [torch.zeros(256, device="cuda") for _ in range(2 * CALLS)]
    turn = iter(range(1 << 60))

    def new() -> None:
        dist.all_reduce(several[next(turn) % len(several)], group=group)

    def started() -> None:
        dist.all_reduce(x, group=group, async_op=True).wait()

    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_reduce of many tensors": new,
        "all_reduce started, waited for": started,
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
            out, x, group=group
        ),
    }


def _of_ours(group: Any) -> dict[str, Callable[[], Any]]:
    """Return our own calls, and PyTorch's norm beside ours."""
    comm = st.communicator(group)
    x = torch.ones(4, 4096, dtype=torch.bfloat16, device="cuda")
    y, residual, weight = x.clone(), x.clone(), x[0].clone()
    op = torch.ops.stretto.all_reduce_
    kept = st.empty(256, device="cuda", group=group).zero_()

    def two() -> Any:
        total = x + residual
        return torch.nn.functional.rms_norm(total, weight.shape, weight, EPS)

    return {
        "stretto all_reduce, registered": lambda: dist.all_reduce(kept, group=group),
        "communicator": lambda: comm.all_reduce(x, "sum"),
        "all_reduce_": lambda: st.all_reduce_(x, group=group),
        "all_reduce": lambda: st.all_reduce(x, group=group),
        "operator": lambda: op(x, "sum", group.group_name),
        "norm": lambda: st.all_reduce_rmsnorm(x, residual, weight, EPS, group),
        "norm in place": lambda: st.all_reduce_rmsnorm_(
            y, residual, weight, EPS, group
        ),
        "torch's add and norm": two,
    }


def _timed(call: Callable[[], Any], comm: Any) -> dict[str, float]:
    times: list[float] = []
    for turn in range(TURNS + 1):
        torch.cuda.synchronize()
        comm.barrier()
        one = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call()
            one.append((time.perf_counter() - start) * 1e6)
        if turn:
            times += one
    torch.cuda.synchronize()
    tenth = statistics.quantiles(times, n=10)[0]
    return {"median": round(statistics.median(times), 2), "tenth": round(tenth, 2)}
