"""Measure dispatches and combines of experts on CPUs, beside what does without them.

Tokens choose uniformly, by Zipf's law (exponent 1), or all the same experts ("one
hot"). What each contender returns is checked in the run: with experts that return what
they get, a combine is each token times the sum of its weights. Contenders take turns; a
time is that of the slowest rank, after a barrier, and the median of several.

    all_to_all_v       the bytes that a dispatch moves, and nothing else: each token to
                       each rank that has one of its experts; and back
    stretto expert     rows by expert, as experts multiply them; weighed sums
    stretto token      rows as they come; sums
    Gloo sorted        rows sorted by expert, one for each choice: all_to_all_single
    Gloo gathered      all_gather of all tokens, reduce_scatter of all sums
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.runtime.calls import Communicator, spawn

__all__ = ["SHAPE", "SPREADS", "TOKENS", "ids_of", "measure"]

SPREADS = ("uniform", "zipf", "one hot")
SHAPE = (256, 8, 2048)
"""Experts, choices, hidden."""
TOKENS = (128, 4096)
_TIMES, _WARM, _DEADLINE_S = 9, 2, 120.0
_CLOSE = 1e-3

Steps = dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]]
"""By contender: a dispatch, a combine, and what that is to give."""


def ids_of(
    spread: str, tokens: int, experts: int, k: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return different experts of each token, spread in some way."""
    if spread == "one hot":
        return np.tile(np.arange(k), (tokens, 1))
    worth = rng.gumbel(size=(tokens, experts))
    if spread == "zipf":
        worth -= np.log(np.arange(1, experts + 1))
    return np.argsort(-worth, 1)[:, :k].astype(np.int64)


def measure(
    tokens: tuple[int, ...] = TOKENS, shape: tuple[int, int, int] = SHAPE, *,
    num_ranks: int = 2, gloo: bool = True, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row for each number of tokens, spread and contender."""
    experts, k, hidden = shape
    if experts % num_ranks or not 1 <= k <= experts or hidden < 1:
        raise CallError(
            f"experts, choices, hidden={shape}; want experts that {num_ranks} ranks "
            "divide, and no more choices than experts"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gloo") if gloo else ""
        return spawn(  # type: ignore[no-any-return]
            _rank, tokens, shape, path, seed, num_ranks=num_ranks,
            deadline_s=_DEADLINE_S,
        )[0]  # fmt: skip


def _rank(
    comm: Communicator, tokens: tuple[int, ...], shape: tuple[int, int, int],
    path: str, seed: int,
) -> list[dict[str, Any]]:  # fmt: skip
    peer = None
    if path:
        from stretto.bench.peers._gloo_experts import GlooExperts

        peer = GlooExperts(path, comm.rank, comm.num_ranks)
    found = []
    for many in tokens:
        for at, spread in enumerate(SPREADS):
            rng = np.random.default_rng([seed, at, many, comm.rank])
            x = rng.standard_normal((many, shape[2])).astype(np.float32)
            ids = ids_of(spread, many, *shape[:2], rng)
            weights = rng.random((many, shape[1])).astype(np.float32)
            steps = _ours(comm, shape, x, ids, weights)
            if peer is not None:
                steps |= peer.steps(x, ids, weights, shape[0])
            rows = _timed(comm, steps)
            found += [{"tokens": many, "spread": spread, **row} for row in rows]
    if peer is not None:
        peer.close()
    return found


def _ours(
    comm: Communicator, shape: tuple[int, int, int], x: Any, ids: Any, weights: Any
) -> Steps:
    """Return what is ours, by name."""
    experts, k, hidden = shape
    n, local = comm.num_ranks, experts // comm.num_ranks
    goes = [np.flatnonzero((ids // local == q).any(1)) for q in range(n)]
    packed = np.concatenate([x[one] for one in goes]).reshape(-1)
    counts = [len(one) * hidden for one in goes]
    every = np.array(comm.all_gather_object(counts)).reshape(n, n)
    there = np.empty(int(every[:, comm.rank].sum()), np.float32)
    back = np.empty_like(packed)
    whose, returns = every.reshape(-1), every.T.reshape(-1).copy()
    reached = np.sort(ids // local, 1)[:, 1:] != np.sort(ids // local, 1)[:, :-1]
    sums = {
        "expert": x * weights.sum(1, keepdims=True),
        "token": x * (1 + reached.sum(1, keepdims=True)),
    }
    steps: Steps = {
        "all_to_all_v": (
            lambda: comm.all_to_all_v(packed, whose, out=there),
            lambda sent: comm.all_to_all_v(there, returns, out=back),
            packed,
        )
    }
    for layout in ("expert", "token"):
        ep = comm.experts(experts, k, hidden, len(x), layout=layout, dtype="float32")

        def dispatch(ep: Any = ep) -> Any:
            return ep.dispatch(x, ids, weights)

        def combine(sent: Any, ep: Any = ep) -> Any:
            return ep.combine(sent.rows, sent)

        steps[f"stretto {layout}"] = dispatch, combine, sums[layout]
    return steps


def _timed(comm: Communicator, steps: Steps) -> list[dict[str, Any]]:
    """Return times of both steps of each contender, which take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    right = dict.fromkeys(steps, True)
    for turn in range(_WARM + _TIMES):
        for name, (dispatch, combine, want) in steps.items():
            comm.barrier()
            begun = time.perf_counter()
            sent = dispatch()
            half = time.perf_counter()
            comm.barrier()
            again = time.perf_counter()
            out = combine(sent)
            took = half - begun, time.perf_counter() - again
            if turn == _WARM:
                right[name] = bool(np.abs(out - want).max(initial=0) < _CLOSE)
            if turn >= _WARM:
                every = comm.all_gather_object(list(took))
                times[name].append((max(a for a, _ in every), max(b for _, b in every)))
    agreed = comm.all_gather_object(right)
    medians = {
        name: [statistics.median(one) for one in zip(*each, strict=True)]
        for name, each in times.items()
    }
    bare = next(iter(medians.values()))[0]
    gloo = medians.get("Gloo sorted")
    rows: list[dict[str, Any]] = []
    for name, (there, back) in medians.items():
        row = {
            "contender": name, "dispatch_ms": round(there * 1e3, 3),
            "combine_ms": round(back * 1e3, 3),
            "right": all(one[name] for one in agreed),
            "of_all_to_all_v": round(there / bare, 2),
        }  # fmt: skip
        if gloo is not None:
            row["times_gloo"] = round(gloo[0] / there, 1)
        rows.append(row)
    return rows
