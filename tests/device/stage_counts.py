"""Stages of unequal parts, whose counts the host knows, or only the GPUs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from stage import Stage, stage

from stretto.errors import CallError


@stage
def unequal(s: Stage) -> None:
    """Parts that differ, some of them empty."""
    n, me = s.n, s.rank
    rng = np.random.default_rng(3)
    for most in (3, 5000):
        parts = rng.integers(0, most, n)
        parts[0] = 0
        matrix = rng.integers(0, most, (n, n))
        whole = [rng.integers(-99, 99, parts.sum()).astype(np.int32) for _ in range(n)]
        rows = [rng.integers(-99, 99, r.sum()).astype(np.int32) for r in matrix]
        at = np.concatenate([[0], parts.cumsum()])
        ends = np.concatenate([np.zeros((n, 1), int), matrix.cumsum(1)], axis=1)
        mine = whole[0][at[me] : at[me + 1]]
        counts, root = [int(p) for p in parts], n - 1
        x, full = s.torch.from_numpy(mine.copy()), s.torch.from_numpy(whole[me])
        row = s.torch.from_numpy(rows[me])
        out = s.full(counts[me], 0, "int32")
        first = s.torch.from_numpy(whole[0]).to(s.device) if me == root else None
        x, full, row = (t.to(s.device) for t in (x, full, row))
        due = np.concatenate([rows[q][ends[q, me] : ends[q, me + 1]] for q in range(n)])
        told = [[int(v) for v in r] for r in matrix]
        for name, got, want in (
            ("all_gather_v", s.comm.all_gather_v(x), whole[0]),
            ("gather_v", s.comm.gather_v(x, counts, root=root), whole[0]),
            (
                "reduce_scatter_v",
                s.comm.reduce_scatter_v(full, counts),
                sum(whole)[at[me] : at[me + 1]],
            ),
            ("scatter_v", s.comm.scatter_v(first, counts, root=root, out=out), mine),
            ("all_to_all_v", s.comm.all_to_all_v(row, told[me]), due),
            ("all_to_all_v, told", s.comm.all_to_all_v(row, told), due),
        ):
            s.sync()
            if got is None:
                s.expect(name == "gather_v" and me != root, f"{name} gave nothing")
            else:
                same = np.array_equal(got.cpu().numpy(), want)
                s.expect(same, f"{name} most={most}")


def own_counts(s: Stage, most: int, seed: int) -> tuple[Any, Any, Any]:
    """Return counts of all ranks, this rank's data, and what it should receive."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, most + 1, (s.n, s.n))
    matrix[:, 0] = np.minimum(matrix[:, 0], 3)
    ends = np.concatenate([np.zeros((s.n, 1), int), matrix.cumsum(1)], axis=1)
    rows = [rng.integers(-99, 99, s.n * most).astype(np.float32) for _ in range(s.n)]
    me = s.rank
    due = [rows[q][ends[q, me] : ends[q, me + 1]] for q in range(s.n)]
    return matrix, rows[me], np.concatenate(due)


@stage
def device_counts(s: Stage) -> None:
    """all_to_all_v with counts on the GPU, another set in every replay of a graph."""
    torch, most = s.torch, 5000
    if s.device == "cpu":
        return
    x, out = s.full(s.n * most, 0), s.full(s.n * most, 0)
    counts = torch.zeros(s.n, dtype=torch.int64, device=s.device)
    received = torch.zeros(s.n, dtype=torch.int64, device=s.device)

    def fill(seed: int) -> tuple[Any, Any]:
        matrix, row, due = own_counts(s, most, seed)
        x.copy_(torch.from_numpy(row))
        counts.copy_(torch.from_numpy(matrix[s.rank]))
        out.fill_(-12345.0)
        received.fill_(-1)
        return matrix, due

    def call() -> None:
        s.comm.all_to_all_v(x, counts, max_count=most, out=out, received=received)

    graph = torch.cuda.CUDAGraph()
    for seed in range(20):
        matrix, due = fill(seed)
        if seed == 10:
            with torch.cuda.graph(graph):
                call()
        call() if seed < 10 else graph.replay()
        s.sync()
        told = received.tolist() == matrix[:, s.rank].tolist()
        s.expect(told, f"received {received.tolist()}, want {matrix[:, s.rank]}")
        got = out.cpu().numpy()
        s.expect(np.array_equal(got[: due.size], due), f"counts on the GPU, {seed=}")
        s.expect(bool((got[due.size :] == -12345).all()), f"wrote past it, {seed=}")


@stage
def own_counts_on_gpu(s: Stage) -> None:
    """all_gather_v whose parts only their owners' GPUs know."""
    if s.device == "cpu":
        return
    torch, most = s.torch, 5000
    x, out = s.full(most, 0), s.full(s.n * most, 0)
    count = torch.zeros(1, dtype=torch.int64, device=s.device)
    received = torch.zeros(s.n, dtype=torch.int64, device=s.device)
    for seed in range(5):
        rng = np.random.default_rng(40 + seed)
        counts = rng.integers(0, most + 1, s.n)
        rows = [rng.integers(-99, 99, most).astype(np.float32) for _ in range(s.n)]
        x.copy_(torch.from_numpy(rows[s.rank]))
        count.fill_(int(counts[s.rank]))
        out.fill_(-12345.0)
        s.comm.all_gather_v(x, count, max_count=most, out=out, received=received)
        s.sync()
        due = np.concatenate([r[:c] for r, c in zip(rows, counts, strict=True)])
        got = out.cpu().numpy()
        s.expect(np.array_equal(got[: due.size], due), f"all_gather_v, {seed=}")
        s.expect(bool((got[due.size :] == -12345).all()), f"wrote past it, {seed=}")
        s.expect(received.tolist() == counts.tolist(), f"received {received.tolist()}")


@stage
def own_sums_on_gpu(s: Stage) -> None:
    """reduce_scatter_v whose counts only the GPUs know."""
    if s.device == "cpu":
        return
    torch, most = s.torch, 5000
    x, out = s.full(s.n * most, 0), s.full(most, 0)
    counts = torch.zeros(s.n, dtype=torch.int64, device=s.device)
    for seed in range(5):
        rng = np.random.default_rng(60 + seed)
        sizes = rng.integers(0, most + 1, s.n)
        rows = [rng.integers(-9, 9, s.n * most).astype(np.float32) for _ in range(s.n)]
        x.copy_(torch.from_numpy(rows[s.rank]))
        counts.copy_(torch.from_numpy(sizes))
        out.fill_(-12345.0)
        s.comm.reduce_scatter_v(x, counts, max_count=most, out=out)
        s.sync()
        start, size = int(sizes[: s.rank].sum()), int(sizes[s.rank])
        got, due = out.cpu().numpy(), sum(rows)[start : start + size]
        s.expect(np.array_equal(got[:size], due), f"reduce_scatter_v, {seed=}")
        s.expect(bool((got[size:] == -12345).all()), f"wrote past it, {seed=}")


@stage
def too_many(s: Stage) -> None:
    """A count above the most is an error on every rank, and nothing is written."""
    torch = s.torch
    if s.device == "cpu":
        return
    x, out = s.full(s.n * 100, 1), s.full(s.n * 100, 7)
    counts = torch.full((s.n,), 60, dtype=torch.int64, device=s.device)
    if s.rank == 0:
        counts[s.n - 1] = 65
    s.comm.all_to_all_v(x, counts, max_count=64, out=out)
    torch.cuda.synchronize()
    time.sleep(0.3)
    try:
        s.comm.check()
        s.expect(False, "nothing was raised")
    except CallError as e:
        s.said["error"] = f"{type(e).__name__}: {e}"
        want = f"rank 0 has 65 elements for rank {s.n - 1}"
        s.expect(want in str(e) and "want 0 to 64" in str(e), str(e))
    s.expect(bool((out == 7).all()), "something was written")


@stage
def unequal_in_place(s: Stage) -> None:
    """all_to_all_v into its own input, whose parts begin elsewhere; graphs, too."""
    n, me, torch = s.n, s.rank, s.torch
    pins = [None, "all_to_all/one_shot push bulk staged blocks=4 tile_bytes=65536"]
    for seed, most in enumerate((3, 5_000, 4_096, 200_000, 200_000)):
        rng = np.random.default_rng(seed)
        few = np.array([2, 5, 1, 3, 4, 7, 6, 8][:n]) * most // 5
        matrix = np.array([np.roll(few, q) for q in range(n)])
        if seed % 2:
            matrix = rng.integers(0, most, (n, n))
        ends = np.concatenate([np.zeros((n, 1), int), matrix.cumsum(1)], axis=1)
        room = s.full(int(max(matrix.sum(1)[me], matrix.sum(0)[me])), 0, "int32")
        x, out = room[: ends[me, -1]], room[: matrix[:, me].sum()]
        told = [[int(v) for v in r] for r in matrix]

        def fill(turn: int, rng: Any = rng, ends: Any = ends, x: Any = x) -> Any:
            rows = [
                (rng.integers(0, 99, e[-1]) + 1000 * turn).astype(np.int32)
                for e in ends
            ]
            x.copy_(torch.from_numpy(rows[me]).to(s.device))
            parts = [rows[q][ends[q, me] : ends[q, me + 1]] for q in range(n)]
            return np.concatenate(parts)

        for turn, pin in enumerate(pins):
            due = fill(turn)
            s.comm.all_to_all_v(x, told, out=out, algorithm=pin)
            s.sync()
            s.expect(np.array_equal(out.cpu().numpy(), due), f"{most=} {pin}")
        if s.device == "cpu":
            continue
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            s.comm.all_to_all_v(x, told, out=out)
        for turn in range(3):
            due = fill(10 + turn)
            torch.cuda.synchronize()
            graph.replay()
            s.sync()
            same = np.array_equal(out.cpu().numpy(), due)
            s.expect(same, f"{most=} replayed, {turn=}")
