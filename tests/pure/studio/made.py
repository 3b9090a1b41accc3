"""Recordings made up for tests and pictures: deterministic, of any size."""

from dataclasses import replace

import numpy as np

from stretto.trace import (
    CALL,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    LaneWait,
    RankInfo,
    Recording,
    Run,
)

KINDS = (
    CallKind(
        collective="all_reduce",
        nbytes=1 << 20,
        dtype="bfloat16",
        op="sum",
        algorithm="all_reduce/ring",
        schedule="push bulk staged",
        executor="cuda",
    ),
    CallKind(
        collective="all_gather",
        nbytes=4 << 20,
        dtype="bfloat16",
        algorithm="all_gather/ring",
        schedule="push bulk staged",
        executor="cuda",
    ),
    CallKind(
        collective="reduce_scatter",
        nbytes=16 << 10,
        dtype="float32",
        op="sum",
        algorithm="reduce_scatter/ring",
        schedule="push packets staged",
        executor="cuda",
    ),
)
TAKES_NS = (70_000, 160_000, 12_000)
PUT, WAIT, REDUCE = (STEP_KINDS.index(name) for name in ("put", "wait", "reduce"))


def recording(
    num_ranks=8,
    num_calls=60,
    *,
    machine="",
    box=8,
    late=3,
    late_ns=40_000,
    steps_a_call=14,
    slow=(),
    stretch=1.0,
    seed=7,
    title="an example",
):
    """Return a run whose rank `late` is late, and whose links `slow` are slow.

    Every rank puts to the next one, as a ring does; a link from a rank in `slow` takes
    four times as long. Times are `stretch` times as long as usual.
    """
    rng = np.random.default_rng(seed)
    n, m = num_ranks, num_calls
    kind = np.arange(m) % len(KINDS)
    takes = np.array(TAKES_NS)[kind] * stretch * rng.uniform(0.95, 1.25, m)
    delay = rng.exponential(3_000, (n, m))
    if late is not None and late < n:
        delay[late] += late_ns * (0.5 + rng.random(m))
    hosts = np.arange(n) // box
    delay += 4_000 * ((hosts % 5 == 2)[:, None]) * rng.random((n, m))
    pause = np.where(kind == 0, 30_000, 250_000)
    asked, ends = np.zeros((n, m)), np.zeros((n, m))
    now = 1e6
    for c in range(m):
        asked[:, c] = now + delay[:, c]
        last = asked[:, c].max()
        ends[:, c] = last + takes[c] * rng.uniform(0.98, 1.02, n)
        now = ends[:, c].max() + pause[c]
    calls = np.zeros((n, m), CALL)
    calls["rank"] = np.arange(n)[:, None]
    calls["seq"] = np.arange(1, m + 1)
    calls["kind"], calls["state"] = kind, 1
    calls["nbytes"] = np.array([k.nbytes for k in KINDS])[kind]
    calls["enqueue"] = calls["start"] = asked
    calls["end"] = ends
    return Recording(
        calls=calls.ravel(),
        steps=_steps(calls, steps_a_call, slow),
        ranks=tuple(
            RankInfo(rank=r, num_ranks=n, host=f"node{r // box}", pid=1000 + r)
            for r in range(n)
        ),
        comms=(Comm(name="world", members=tuple(range(n))),),
        kinds=KINDS,
        run=Run(title=title, machine=machine, version="0.1.0"),
    )


def hanging(num_ranks=4, num_calls=9, absent=2):
    """Return a run whose last collective one rank has not come to."""
    made = recording(num_ranks, num_calls)
    calls = made.calls.copy()
    last = calls["seq"] == num_calls
    calls["state"][last], calls["end"][last] = 0, 0
    waits = tuple(
        LaneWait(
            rank=rank,
            comm=0,
            seq=num_calls,
            step=3,
            peers=(absent,),
            text=f"wait r{absent}.0 n=1",
            since_ns=int(calls["enqueue"].max()),
        )
        for rank in range(num_ranks)
        if rank != absent
    )
    there = calls[~(last & (calls["rank"] == absent))]
    return replace(made, calls=there, waits=waits)


def _steps(calls, many, slow):
    n, m = calls.shape
    if not many:
        return np.zeros(0, STEP)
    steps = np.zeros((n, m, many), STEP)
    begin = np.maximum.reduce(calls["start"], axis=0)[None, :].astype(float)
    each = (calls["end"] - begin) / many
    at = np.arange(many)
    steps["rank"] = np.arange(n)[:, None, None]
    steps["seq"] = calls["seq"][:, :, None]
    steps["kind"] = np.where(at % 2 == 0, PUT, REDUCE)
    steps["step"] = at
    steps["peer"] = np.where(at % 2 == 0, (np.arange(n)[:, None, None] + 1) % n, -1)
    steps["begin"] = begin[:, :, None] + each[:, :, None] * at
    steps["begin"][:, :, 0] = calls["start"]
    steps["wait"][:, :, 0] = begin - calls["start"]
    share = np.ones(n)
    share[[r for r in slow if r < n]] = 4.0
    last = np.minimum(each[:, :, None] * 0.23 * share[:, None, None], each[:, :, None])
    steps["end"] = steps["begin"] + steps["wait"] + last
    moved = (calls["nbytes"] // max(1, many // 2))[:, :, None]
    steps["nbytes"] = np.where(at % 2 == 0, moved, 0)
    return steps.reshape(-1)


def tuning(seed=3):
    """Return a report such as `stretto tune --report` writes."""
    rng = np.random.default_rng(seed)
    trials = []
    names = ("ring", "two_shot", "one_shot", "recursive_doubling", "rabenseifner")
    for nbytes in (64 << 10, 1 << 20):
        for i in range(44):
            name = names[int(rng.integers(len(names)))]
            base = 8 + nbytes / 40e3 * (1 + names.index(name) / 4)
            us = base * float(rng.uniform(0.85, 1.6)) * (1.4 - 0.012 * i)
            trials.append(
                {
                    "test": "all_reduce",
                    "nbytes": nbytes,
                    "pin": f"all_reduce/{name} bulk blocks={1 << rng.integers(6)}",
                    "us": us,
                    "simulated_us": us * float(rng.uniform(0.8, 1.25)),
                }
            )
    return [{"memory": "staged", "ranks": 8, "trials": trials, "decided": {}}]
