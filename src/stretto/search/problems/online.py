"""How a step size and the number of samples fare on costs that change every round.

Each round has a cost x'Dx + b'x + c of which few knobs matter, with b drawn anew. The
candidate says how to turn the knobs; the judge adds up what a hundred rounds cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.search.evolve.problem import Verdict
from stretto.search.online import OnlineTuner, samples_for
from stretto.search.problems.config import ConfigProblem
from stretto.search.spaces import Configuration, Knob, Space

__all__ = ["OFFER", "OnlineProblem", "accumulated"]

_ROUNDS, _SEEDS = 100, 4
_METHODS = ("sparse", "spsa", "exact")


class OnlineProblem(ConfigProblem):
    """Choose how to turn knobs online."""

    name: ClassVar[str] = "online"

    def __init__(self, knobs: int = 50, matter: int = 5, noise: float = 0.001) -> None:
        """Give how many knobs there are, how many matter, and how noisy costs are."""
        if not 1 <= matter <= knobs <= 10_000:
            raise CallError(
                f"knobs={knobs}, matter={matter}: want matter <= knobs <= 10000"
            )
        self._knobs, self._matter, self._noise = knobs, matter, noise
        most = samples_for(knobs, matter)
        space = Space(
            (
                Knob("step", low=0.01, high=0.5, log=True),
                Knob("reach", low=1e-3, high=1.0, log=True),
                Knob("samples", low=2, high=2 * most, whole=True),
            ),
            name="online",
        )
        super().__init__(space, objective=self._cost)

    @property
    def said(self) -> Mapping[str, str]:
        """Return what was given."""
        return {"knobs": str(self._knobs), "matter": str(self._matter),
                "noise": repr(self._noise)}  # fmt: skip

    def _cost(self, step: float, reach: float, samples: int) -> float:
        return float(
            np.mean(
                [
                    accumulated(
                        self._knobs, self._matter, "sparse", seed, noise=self._noise,
                        step=step, reach=reach, samples=samples,
                    )
                    for seed in range(_SEEDS)
                ]
            )
        )  # fmt: skip

    def judge(self, candidate: Configuration, rung: int, *, fresh: int) -> Verdict:
        """Return the accumulated cost; what runs away is refused."""
        found = super().judge(candidate, rung, fresh=fresh)
        return Verdict(refused="the cost runs away") if found.cost > 1e6 else found


def accumulated(
    knobs: int,
    matter: int,
    method: str,
    seed: int,
    *,
    noise: float = 0.0,
    step: float = 0.1,
    reach: float = 0.01,
    samples: int | None = None,
    moving: bool = False,
) -> float:
    """Return what a hundred rounds cost by a method: sparse, spsa or exact.

    `spsa` spends its samples on pairs of points on both sides, and takes their mean.
    `moving`: other knobs matter in every round.
    """
    if method not in _METHODS:
        raise CallError(f"method={method!r}: want {', '.join(_METHODS)}")
    rng = np.random.default_rng((seed, knobs))
    hills, chosen = _hills(rng, knobs, matter)
    count = samples_for(knobs, matter) if samples is None else samples
    tuner = OnlineTuner(
        [1.0] * knobs, matter=matter, step=step, reach=reach, samples=count, seed=seed
    )
    at, total = tuner.at, 0.0
    for turn in range(_ROUNDS):
        if moving and turn:
            hills, chosen = _hills(rng, knobs, matter)
        tilt = np.zeros(knobs)
        tilt[chosen] = rng.normal(0, 0.1, matter)
        cost = _Cost(hills, tilt, noise, rng)
        total += cost.true(at)
        if method == "sparse":
            at = tuner.tell([cost(point) for point in tuner.ask()])
        else:
            slope = (
                cost.slope(at)
                if method == "exact"
                else _spsa(cost, at, count, reach, rng)
            )
            at = at - step * slope
        if not math.isfinite(total) or abs(total) > 1e9:
            return 1e9
    return total


def _hills(rng: Any, knobs: int, matter: int) -> tuple[Any, Any]:
    """Return how steep the cost is along each knob, and along which it is at all."""
    hills, chosen = np.zeros(knobs), rng.choice(knobs, matter, replace=False)
    hills[chosen] = rng.uniform(0.5, 1.5, matter)
    return hills, chosen


class _Cost:
    """The cost of a round."""

    def __init__(self, hills: Any, tilt: Any, noise: float, rng: Any) -> None:
        self._hills, self._tilt, self._noise, self._rng = hills, tilt, noise, rng

    def true(self, at: NDArray[np.float64]) -> float:
        return float(self._hills @ at**2 + self._tilt @ at + 0.5)

    def slope(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = 2 * self._hills * at + self._tilt
        return found

    def __call__(self, at: NDArray[np.float64]) -> float:
        return self.true(at) + self._noise * float(self._rng.standard_normal())


def _spsa(
    cost: Callable[[Any], float], at: Any, samples: int, reach: float, rng: Any
) -> NDArray[np.float64]:
    slopes = []
    for _ in range(max(1, samples // 2)):
        way = rng.choice((-1.0, 1.0), at.size)
        slopes.append(
            (cost(at + reach * way) - cost(at - reach * way)) / (2 * reach) * way
        )
    found: NDArray[np.float64] = np.mean(slopes, axis=0)
    return found


OFFER = OnlineProblem
