"""Checks of faults: ranks that do not come, and ranks that call something else."""

from __future__ import annotations

import time
from typing import Any

from ranked import DEADLINE_S, Bound, Rank, check

from stretto.errors import CollectiveMismatch, CollectiveTimeout, StrettoError


@check(6)
def mismatch(r: Rank) -> Any:
    """Different calls are told apart."""
    r.open(DEADLINE_S)
    schedule = "push packets staged blocks=2 threads=256"
    same = Bound(r, "all_reduce/one_shot", schedule, 1000)
    odd = Bound(r, "all_reduce/one_shot", schedule, 1008)
    r.together()
    (odd if r.rank == 0 else same)()
    r.torch.cuda.synchronize()
    time.sleep(0.2)
    try:
        r.session.check()
    except (CollectiveMismatch, CollectiveTimeout) as e:
        return {"kind": type(e).__name__, "text": str(e)}
    raise AssertionError("nothing was raised")


def _absent(r: Rank, schedule: str, graph: bool) -> Any:
    r.open(DEADLINE_S)
    torch = r.torch
    bound = Bound(r, "all_gather/one_shot", schedule, 5001)
    bound.fill(0)
    r.together()
    bound()
    r.together()
    captured = torch.cuda.CUDAGraph()
    if graph:
        with torch.cuda.graph(captured):
            bound()
        r.together()
        captured.replay()
        r.together()
    missing = r.n - 1
    answer: dict[str, Any] = {}
    if r.rank != missing:
        began = time.monotonic()
        captured.replay() if graph else bound()
        torch.cuda.synchronize()
        took = time.monotonic() - began
        time.sleep(0.2)
        try:
            r.session.check()
            raise AssertionError("nothing was raised")
        except (CollectiveTimeout, CollectiveMismatch) as e:
            text = str(e)
        assert f"[{missing}]" in text, text
        assert took < DEADLINE_S * 2 + 2, f"it took {took:.1f} s"
        try:
            bound()
            raise AssertionError("a broken session was usable")
        except StrettoError:
            pass
        answer = {"seconds": round(took, 2), "text": text}
    else:
        time.sleep(DEADLINE_S + 1.5)
    left = torch.ones(1000, device="cuda").sum().item()
    assert left == 1000, "the device is unusable"
    return answer


@check(9)
def absent(r: Rank) -> Any:
    """Who does not call is named at the deadline, and the device stays usable."""
    return _absent(r, "push packets staged blocks=2 threads=256", False)


@check(9)
def absent_bulk_graph(r: Rank) -> Any:
    """The same when only a graph is replayed, found by the watcher."""
    return _absent(r, "push bulk zero_copy blocks=2 threads=256", True)


@check(9)
def absent_engine(r: Rank) -> Any:
    """The same for copy engines, whose waits have no deadline of their own."""
    return _absent(r, "push engine zero_copy blocks=1", False)


@check(9)
def absent_engine_graph(r: Rank) -> Any:
    """And for copy engines in a graph."""
    return _absent(r, "push engine zero_copy blocks=3", True)
