"""Turn many knobs while a system runs, when few of them matter at a time.

A few random directions are tried at once; as the slope has few entries that are not
nothing, they say which those are (compressive sensing, by CoSaMP). So the number of
tries grows with how many knobs matter, not with how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError

__all__ = ["OnlineTuner", "samples_for"]

Vector = NDArray[np.float64]


def samples_for(knobs: int, matter: int) -> int:
    """Return how many directions are tried in a round."""
    return math.ceil(2 * matter * math.log(knobs / matter)) if matter < knobs else knobs


class OnlineTuner:
    """Asks for the cost of some points a round, and then takes a step downhill."""

    def __init__(
        self,
        start: Sequence[float],
        *,
        matter: int,
        step: float = 0.1,
        reach: float = 0.01,
        samples: int | None = None,
        seed: int = 0,
    ) -> None:
        """Begin at `start`, where `matter` of the knobs matter at a time.

        `reach`: how far the points of a round lie from where it is; above what noise
        hides. `samples`: how many there are, beside the one where it is.
        """
        self.at: Vector = np.array(start, float)
        count = self.at.size
        if self.at.ndim != 1 or not count or not np.isfinite(self.at).all():
            raise CallError("start: want finite numbers, one for each knob")
        if not 1 <= matter <= count:
            raise CallError(f"matter={matter}: want 1 to {count}, the number of knobs")
        if not (step > 0 and reach > 0):
            raise CallError(f"step={step}, reach={reach}: want both above 0")
        self._matter, self._step, self._reach = matter, step, reach
        self._samples = samples_for(count, matter) if samples is None else samples
        self._rng = np.random.default_rng(seed)
        self._ways: Vector = np.empty((0, count))

    def ask(self) -> Vector:
        """Return the points of a round, a row each; the first is where it is."""
        shape = (self._samples, self.at.size)
        self._ways = self._rng.standard_normal(shape) / math.sqrt(self._samples)
        return np.vstack((self.at, self.at + self._reach * self._ways))

    def tell(self, costs: Sequence[float]) -> Vector:
        """Take the costs of the points asked for; return where it goes next."""
        heard = np.asarray(costs, float)
        if heard.shape != (len(self._ways) + 1,) or not len(self._ways):
            raise CallError(
                f"{heard.size} costs: want {len(self._ways) + 1}, after ask()"
            )
        if not np.isfinite(heard).all():
            raise CallError(
                "costs: want finite numbers; what failed may be told as dear"
            )
        slopes = (heard[1:] - heard[0]) / self._reach
        slope = sparse_solution(self._ways, slopes, self._matter)
        self.at = self.at - self._step * slope
        self._ways = np.empty((0, self.at.size))
        return self.at


def sparse_solution(ways: Vector, heard: Vector, matter: int) -> Vector:
    """Return x with few entries for which `ways @ x` is nearly `heard` (CoSaMP)."""
    found = np.zeros(ways.shape[1])
    left, best = heard, math.inf
    for _ in range(20):
        loud = np.argsort(-np.abs(ways.T @ left), kind="stable")[: 2 * matter]
        chosen = np.union1d(loud, np.flatnonzero(found))
        values = np.linalg.lstsq(ways[:, chosen], heard, rcond=None)[0]
        kept = np.argsort(-np.abs(values), kind="stable")[:matter]
        made = np.zeros_like(found)
        made[chosen[kept]] = np.linalg.lstsq(ways[:, chosen[kept]], heard, rcond=None)[
            0
        ]
        left = heard - ways @ made
        norm = float(np.linalg.norm(left))
        if norm >= best * (1 - 1e-9):
            break
        found, best = made, norm
        if norm <= 1e-9 * float(np.linalg.norm(heard)):
            break
    return found
