"""Look at sizes that were not tuned, half-way between those that were.

Where the neighbour's choice is worse there than what would have been used untuned, the
size gets the latter: tuning must not make anything worse beyond noise.
"""

from __future__ import annotations

from typing import Any, Protocol

from stretto.bench.measuring.control import Control
from stretto.bench.stats import ratio_interval
from stretto.bench.tune.search import Ask, Decision
from stretto.bench.workload.task import Task

__all__ = ["held_back"]

_BATCHES = 25


class Tuning(Protocol):
    """What is needed of one rank's part of tuning."""

    task: Task
    control: Control

    def between(self) -> list[int]:
        """Return the sizes that are held back."""

    def left_s(self) -> float:
        """Return the seconds that are left."""

    def plain(self, key: tuple[str, int]) -> str:
        """Return what would serve a size untuned."""

    def compile_plain(self, test: str) -> None:
        """Begin to compile what would serve the sizes between untuned."""

    def measure(self, key: tuple[str, int], ask: Ask) -> dict[str, list[float]]:
        """Return the times of the pins that gave what the oracle says."""


def held_back(
    tuner: Tuning, decided: dict[str, dict[int, Decision]]
) -> list[dict[str, Any]]:
    """Measure them, undo what is worse, and return what was seen (collective)."""
    found: list[dict[str, Any]] = []
    for test, sizes in decided.items():
        tuner.compile_plain(test)
        for nbytes in tuner.between():
            below = [n for n in sizes if n <= nbytes]
            above = [n for n in sizes if n > nbytes]
            over = tuner.control.agree(tuner.left_s() <= 0)
            if over or not below or not above:
                continue
            middle = (max(below) * min(above)) ** 0.5
            pin = sizes[max(below) if nbytes <= middle else min(above)].pin
            plain = tuner.plain((test, nbytes))
            if pin == plain:
                continue
            times = tuner.measure(
                (test, nbytes), Ask(pins=(pin, plain), batches=_BATCHES)
            )
            if len(times) < 2:
                continue
            ratio = ratio_interval(times[plain], times[pin], seed=tuner.task.seed)
            row = {"test": test, "nbytes": nbytes, "pin": pin, "untuned": plain}
            found.append(row | {"ratio": ratio.ratio, "high": ratio.high})
            if ratio.low > 1:
                us = sorted(times[plain])[len(times[plain]) // 2]
                sizes[nbytes] = Decision(
                    pin=plain, us=us, untuned=plain, untuned_us=us,
                    interval=None, tried=2,
                )  # fmt: skip
    return found
