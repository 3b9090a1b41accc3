"""What transfer.py times: small blocks at memory's speed, and the share of the link."""

# ruff: noqa: T201  (part of a program: it prints its report)

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transfer_side import WAIT

from stretto.transfer import Layout


def timed(enqueue: Callable[[], None], rounds: int) -> float:
    """Return the median of milliseconds on the stream, after some to warm up."""
    for _ in range(3):
        enqueue()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        enqueue()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def stage_times(bench: Any, s: Any) -> None:
    """Small blocks at memory's speed, and the share of the link that blocks get."""
    rng = np.random.default_rng(2)
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    for count, nbytes, goal in ((40_000, 8192, 0.3), (82_000, 4096, 0.35)):
        layout = Layout(f"B={count} X={nbytes} uint8")
        source = torch.zeros(count * nbytes, dtype=torch.uint8, device="cuda")
        region = bench.engine.share(source, bench.name(), layout)
        dense = Layout(f"B={count} X={nbytes} uint8")
        _, there = bench.there(dense)
        order = rng.permutation(count)
        whole = np.arange(count)
        copy = torch.empty_like(source)
        plain = timed(lambda c=copy, x=source: c.copy_(x), 20)
        for what, from_, to in (
            ("gather", order, whole), ("scatter", whole, order), ("both", order, order)
        ):  # fmt: skip
            put = there[to].prepare_put(region[from_], by="kernel")
            ms = timed(lambda put=put: put(stream), 20)
            rate = 2 * count * nbytes / ms / 1e6
            key = f"{what} {count} x {nbytes}"
            s.figures[key] = {"ms": ms, "GB_per_s_read_and_written": rate,
                              "plain_copy_ms": plain, "goal_ms": goal}  # fmt: skip
            said = "yes" if ms <= goal else "NO"
            print(f"  {key}: {ms:.3f} ms ({rate:.0f} GB/s read and written); plain "
                  f"copy {plain:.3f} ms; want {goal}: {said}", flush=True)  # fmt: skip
        begun = time.perf_counter()
        there[order].put(region[whole], deadline=WAIT).wait(WAIT)
        took = 1e3 * (time.perf_counter() - begun)
        s.figures[f"whole call {count} x {nbytes}"] = {"ms": took}
        print(f"  the whole call, planned anew: {took:.2f} ms", flush=True)
        del copy, region, source
    _link_times(bench, s, stream)


def _link_times(bench: Any, s: Any, stream: Any) -> None:
    nbytes = 256 << 20
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    best = {
        "h2d": timed(lambda: device.copy_(pinned, non_blocking=True), 10),
        "d2h": timed(lambda: pinned.copy_(device, non_blocking=True), 10),
    }
    for each in (16 << 10, 128 << 10, 2 << 20):
        layout = Layout(f"B={nbytes // each} X={each} uint8")
        gpu = bench.engine.share(device, bench.name(), layout)
        _, host = bench.there(layout, where="host")
        order = np.random.default_rng(4).permutation(nbytes // each)
        for way, move in (
            ("h2d", host[order].prepare_get(gpu.view)),
            ("d2h", host[order].prepare_put(gpu.view)),
        ):
            ms = timed(lambda move=move: move(stream), 10)
            share = best[way] / ms
            s.figures[f"{way} in blocks of {each}"] = {
                "ms": ms, "pinned_copy_ms": best[way], "share": share, "by": move.by,
            }  # fmt: skip
            said = "yes" if share >= 0.9 else "NO"
            print(
                f"  {way}, blocks of {each >> 10} KB by {move.by}: {ms:.2f} ms, "
                f"{share:.2f} of a pinned copy's rate; want 0.9: {said}",
                flush=True,
            )
