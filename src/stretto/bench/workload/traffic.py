"""Who sends how much to whom: patterns, routed tokens, and matrices from a file.

A matrix has a row for each sender and a column for each receiver. `weights` gives
shares; `spread` turns them into elements, of which the busiest rank sends or receives
`count`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError

_TOKENS, _TOP, _EXPERTS = 4096, 2, 8
"""Tokens of a rank, experts that each goes to, and experts that live on a rank."""


def weights(
    pattern: str,
    num_ranks: int,
    *,
    skew: float = 1.0,
    seed: int = 0,
    given: Sequence[Sequence[float]] | None = None,
) -> NDArray[np.float64]:
    """Return the shares of a pattern's matrix.

    `skew` makes experts unequal: expert e is asked for in proportion to
    (e + 1) ** -skew, in an order drawn once; 0 is uniform.
    """
    n = num_ranks
    match pattern:
        case "matrix":
            return _checked(given, n)
        case "pairwise":  # r with its partner half-way round, both ways
            return np.roll(np.eye(n), n // 2 if n > 1 else 0, axis=1)
        case "incast":
            found = np.zeros((n, n))
            found[1:, 0] = 1
            return found
        case "one_to_many":
            found = np.zeros((n, n))
            found[0, 1:] = 1
            return found
        case "moe_dispatch" | "moe_combine":
            routed = _route(n, skew, seed)
            return routed if pattern == "moe_dispatch" else routed.T
    raise CallError(f"pattern {pattern!r}; want pairwise, incast, one_to_many, moe_...")


def spread(shares: NDArray[np.float64], count: int) -> tuple[int, ...]:
    """Return elements by sender and receiver, row after row."""
    busiest = max(shares.sum(axis=0).max(), shares.sum(axis=1).max(), 0.0)
    if not busiest > 0:
        return (0,) * shares.size
    return tuple(int(c) for c in np.floor(shares * (count / busiest)).ravel())


def read_matrix(path: str, num_ranks: int) -> list[list[float]]:
    """Return the matrix in a file: a line a sender; spaces or commas between."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [
            [float(word) for word in line.replace(",", " ").split()]
            for line in lines
            if line.strip() and not line.lstrip().startswith("#")
        ]
    except (UnicodeDecodeError, ValueError) as e:
        raise CallError(f"{path}: {e}; want a line of numbers for each rank") from None
    _checked(rows, num_ranks)
    return rows


def _checked(
    given: Sequence[Sequence[float]] | None, num_ranks: int
) -> NDArray[np.float64]:
    if given is None:
        raise CallError("test 'matrix' needs --traffic FILE")
    rows = [list(row) for row in given]
    if len(rows) != num_ranks or any(len(row) != num_ranks for row in rows):
        sizes = sorted({len(row) for row in rows})
        raise CallError(
            f"traffic matrix: {len(rows)} rows of {sizes} numbers; want {num_ranks} of "
            f"{num_ranks}, one row a sender"
        )
    found = np.asarray(rows, float)
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise CallError("traffic matrix: a number below 0; want bytes, or shares")
    return found


def _route(num_ranks: int, skew: float, seed: int) -> NDArray[np.float64]:
    """Return tokens by rank and by the rank of the expert they go to."""
    if skew < 0:
        raise CallError(f"--skew {skew}; want 0 (uniform) or more")
    rng = np.random.default_rng(seed)
    experts = num_ranks * _EXPERTS
    popular = rng.permutation((np.arange(experts) + 1.0) ** -skew)
    popular /= popular.sum()
    found = np.zeros((num_ranks, num_ranks))
    for rank in range(num_ranks):
        noise = np.log(popular) + rng.gumbel(size=(_TOKENS, experts))
        chosen = np.argpartition(-noise, _TOP - 1, axis=1)[:, :_TOP] // _EXPERTS
        found[rank] = np.bincount(chosen.ravel(), minlength=num_ranks)
    return found
