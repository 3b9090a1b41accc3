"""How long the parts of a call between hosts take; hosts.py runs it."""

from __future__ import annotations

import statistics
import time
from typing import Any

from hosted import Hosted, check

GOAL_US = 3.0


@check(15)
def requests(s: Hosted) -> None:
    """The thread's part of a far put, for 8 bytes to 64 KB; the goal is 3 us."""
    if s.device == "cpu":
        return
    rows: dict[str, Any] = {}
    for nbytes in (8, 1 << 10, 8 << 10, 64 << 10):
        x = s.put([1.0] * (nbytes // 4))
        for _ in range(100):
            s.comm.all_reduce(x, op="max")
        s.sync()
        times = s.comm._session("cuda").far.server.times_ns
        rows[f"{nbytes} B"] = {
            "least_us": round(min(times) / 1e3, 2),
            "median_us": round(statistics.median(times) / 1e3, 2),
        }
    s.said["thread_us"] = rows
    s.said["reached"] = {k: v["median_us"] <= GOAL_US for k, v in rows.items()}


@check(20)
def speed(s: Hosted) -> None:
    """Microseconds of all_reduce, back to back, by size."""
    rows: dict[str, float] = {}
    for nbytes, calls in (
        (1 << 10, 200),
        (64 << 10, 100),
        (1 << 20, 30),
        (16 << 20, 5),
    ):
        x = s.put([0.0] * (nbytes // 4))
        best = 1e9
        for _ in range(3):
            s.comm.all_reduce(x)
            s.sync()
            began = time.perf_counter()
            for _ in range(calls):
                s.comm.all_reduce(x)
            s.sync()
            best = min(best, (time.perf_counter() - began) / calls * 1e6)
        rows[f"{nbytes} B"] = round(best, 1)
    s.said["all_reduce_us"] = rows
