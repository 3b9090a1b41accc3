"""Configurations in few measurements: a tree for choices, steps for numbers, a guess.

Structure (which choices) is searched as a tree, by how good the leaves below a choice
were; the order in which it is asked is one of several, of which the better ones stay.
Numbers are moved one at a time from the best that is known, further where it helped. A
bandit shares the measurements out. A guess, fitted to what has been measured, and a
cheap judge where the problem has one, pick among what these propose, as long as they
have been right so far.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import numpy as np

from stretto.search.evolve.loop import Asked, Settings, Trial
from stretto.search.evolve.problem import Problem, Verdict
from stretto.search.spaces import Configuration, Space

__all__ = ["scout"]

_Steps: TypeAlias = Generator[Asked, Sequence[Verdict], "int | None"]
_FIRST = 6
"""Drawn before anything is guessed."""
_PROPOSED = 40
_ORDERS = 6
_MOST_FITTED = 250


class _Tree:
    """What was found below each choice, for one order of the choices."""

    def __init__(self, space: Space, order: Sequence[int]) -> None:
        self._knobs = [space.knobs[i] for i in order]
        self._seen: dict[tuple[Any, ...], list[float]] = {}
        self.gain, self.used = 0.0, 0

    def descend(self, rng: random.Random, best: float) -> dict[str, Any]:
        """Return choices: often those below which the best was found."""
        chosen: dict[str, Any] = {}
        path: tuple[Any, ...] = ()
        for knob in self._knobs:
            found = [self._seen.get((*path, (knob.name, v)), []) for v in knob.values]
            total = sum(map(len, found)) + 1
            scores = []
            for costs in found:
                if not costs:
                    scores.append(1.2 + 0.2 * rng.random())
                    continue
                low = best / min(costs) if min(costs) > 0 else 1.0
                scores.append(low + 0.35 * math.sqrt(math.log(total) / len(costs)))
            value = knob.values[scores.index(max(scores))]
            chosen[knob.name] = value
            path = (*path, (knob.name, value))
        return chosen

    def tell(self, chosen: dict[str, Any], cost: float) -> None:
        """Remember a cost at every choice on the way."""
        path: tuple[Any, ...] = ()
        for knob in self._knobs:
            path = (*path, (knob.name, chosen.get(knob.name)))
            self._seen.setdefault(path, []).append(cost)


class _Guess:
    """A guess of the logarithm of the cost, and of how wrong it may be.

    Two configurations are as alike as their knobs are, on average; a power of that lets
    more or fewer knobs act together. The power is the one that fits best.
    """

    def __init__(self, dense: Sequence[bool]) -> None:
        self._dense = np.array(dense)
        self._points: list[Any] = []
        self._costs: list[float] = []
        self._how: tuple[int, float] = (4, 0.01)
        self._fitted = 0

    def tell(self, point: Any, cost: float) -> None:
        """Learn what a configuration costs."""
        self._points.append(point)
        self._costs.append(math.log(cost) if cost > 0 else -700.0)
        del self._points[:-_MOST_FITTED], self._costs[:-_MOST_FITTED]

    def _alike(self, left: Any, right: Any) -> Any:
        apart = np.abs(left[:, None, :] - right[None, :, :])
        near = np.where(self._dense, np.exp(-((apart / 0.4) ** 2)), apart == 0)
        return np.where(apart > 2, 0.0, near).mean(-1)  # one counts, the other does not

    def best_of(self, points: Sequence[Any]) -> int:
        """Return which point promises most: low, or unknown."""
        known, costs = np.array(self._points), np.array(self._costs)
        mean, spread = float(np.median(costs)), float(costs.std()) + 1e-9
        costs = np.minimum((costs - mean) / spread, 2.0)
        alike = self._alike(known, known)
        if len(costs) >= 1.2 * self._fitted:
            self._how, self._fitted = self._fit(alike, costs), len(costs)
        power, noise = self._how
        low = np.linalg.cholesky(alike**power + noise * np.eye(len(costs)))
        half = np.linalg.solve(low, costs)
        side = np.linalg.solve(low, self._alike(known, np.array(points)) ** power)
        wide = np.sqrt(np.maximum(1e-9, 1 - (side**2).sum(0)))
        gain = costs.min() - side.T @ half - 0.01
        ratio = gain / wide
        normal = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * math.erfc(-r / math.sqrt(2)) for r in ratio])
        if len(self._costs) % 2:  # every other time the lowest, whatever is unknown
            return int(gain.argmax())
        return int((gain * below + wide * normal).argmax())

    def _fit(self, alike: Any, costs: Any) -> tuple[int, float]:
        """Return the power, and the noise, with which the costs are likeliest."""
        best, how = -math.inf, self._how
        for power in (1, 2, 4, 8, 16):
            for noise in (1e-4, 1e-2, 0.1):
                low = np.linalg.cholesky(alike**power + noise * np.eye(len(costs)))
                half = np.linalg.solve(low, costs)
                # the scale that fits best, too
                scale = float(half @ half) / len(costs)
                fit = -0.5 * len(costs) * math.log(scale) - np.log(np.diag(low)).sum()
                if fit > best:
                    best, how = fit, (power, noise)
        return how


class _Scout:
    """What a search of configurations knows."""

    def __init__(
        self, problem: Problem[Configuration], space: Space, s: Settings
    ) -> None:
        self.problem, self.space, self.settings = problem, space, s
        self.rng = random.Random(s.seed)
        self.known: dict[str, tuple[float, Configuration, int]] = {}
        self.seen: set[str] = set()
        self.choices = [i for i, k in enumerate(space.knobs) if not k.is_dense]
        self.numbers = [k for k in space.knobs if k.is_dense]
        orders = [
            self.rng.sample(self.choices, len(self.choices)) for _ in range(_ORDERS)
        ]
        self.trees = [_Tree(space, order) for order in orders]
        self.step = {k.name: 0.3 for k in self.numbers}
        self.guess = _Guess([k.is_dense for k in space.knobs])
        self.arms = {"tree": [1.0, 1.0], "numbers": [1.0, 1.0], "turn": [1.0, 1.0],
                     "any": [1.0, 1.0]}  # fmt: skip
        self.pairs: list[tuple[float, float]] = []
        """Costs by the cheap judge and by the dear one."""
        self.count = 0

    def run(self) -> _Steps:
        """Ask for one after the other until all evaluations are spent."""
        cheap, dear = len(self.problem.rungs) > 1, len(self.problem.rungs) - 1
        while self.count < self.settings.evals:
            proposed = self._proposed()
            if not proposed:
                break
            at = 0
            cheaply = math.nan
            if cheap and self._trusts():
                few = proposed[:12]
                verdicts = yield tuple(
                    self._trial(c, way, 0, i) for i, (c, way) in enumerate(few)
                )
                costs = [v.cost if v.passed else math.inf for v in verdicts]
                at = costs.index(min(costs))
                cheaply = costs[at]
                self.count += len(few) - 1
            elif self.count >= _FIRST and self.known:
                at = self.guess.best_of([self.space.places(c) for c, _ in proposed])
            chosen, way = proposed[at]
            (verdict,) = yield (self._trial(chosen, way, dear, 0),)
            self._tell(chosen, way, verdict, cheaply)
        if not self.known:
            return None
        return min(self.known.values(), key=lambda one: one[0])[2]

    def _trial(self, chosen: Configuration, way: str, rung: int, more: int) -> Trial:
        number = self.count + 1 + more
        return Trial(number, self.space.spell(chosen), rung, way, (), 0, number)

    def _trusts(self) -> bool:
        """Whether the cheap judge has ordered what was measured as the dear one did."""
        if len(self.pairs) < 5:
            return True
        last = self.pairs[-20:]
        right = total = 0
        for i, (cheap, dear) in enumerate(last):
            for other_cheap, other_dear in last[:i]:
                total += 1
                right += (cheap < other_cheap) == (dear < other_dear)
        return right >= 0.65 * total

    def _proposed(self) -> list[tuple[Configuration, str]]:
        """Return new configurations, each with the arm that proposed it."""
        found: dict[str, tuple[Configuration, str]] = {}
        if not self.count:
            for candidate in self.problem.seeds():
                return [(candidate, "seed")]
        for i in range(4 * _PROPOSED):
            drawn = self.count < _FIRST or not self.known or i % 8 == 7
            way = "any" if drawn else self._arm()
            made = self._made(way)
            if made is not None:
                text = self.space.spell(made)
                if text not in self.seen and text not in found:
                    found[text] = made, way
            enough = (
                1 if self.count < _FIRST and len(self.problem.rungs) == 1 else _PROPOSED
            )
            if len(found) >= enough:
                break
        return list(found.values())

    def _arm(self) -> str:
        weights = [won / tried for won, tried in self.arms.values()]
        return self.rng.choices(list(self.arms), weights)[0]

    def _best(self) -> Configuration:
        """Return the best, now and then one of the next ones."""
        order = sorted(self.known.values(), key=lambda one: one[0])
        return order[min(len(order) - 1, int(self.rng.expovariate(1.2)))][1]

    def _made(self, way: str) -> Configuration | None:
        rng = self.rng
        if way == "any":
            return self.space.draw(rng)
        wanted = dict(self._best())
        if way == "tree" and self.choices:
            best = min(one[0] for one in self.known.values())
            tree = max(
                self.trees,
                key=lambda t: (t.gain + 1) / (t.used + 2) + 0.3 * rng.random(),
            )
            wanted |= tree.descend(rng, best)
        else:
            for _ in range(min(3, 1 + int(rng.expovariate(1.0)))):
                self._move(wanted, way)
        return self.space.complete(wanted, rng)

    def _move(self, wanted: dict[str, Any], way: str) -> None:
        """Turn one knob: to any value, or a number a step further."""
        rng = self.rng
        if self.choices and (way == "turn" or not self.numbers):
            knob = self.space.knobs[rng.choice(self.choices)]
            wanted[knob.name] = rng.choice(knob.values)
            return
        knob = rng.choice(self.numbers)
        place = knob.place(wanted[knob.name]) if knob.name in wanted else 0.5
        wanted[knob.name] = knob.value(place + rng.gauss(0, self.step[knob.name]))

    def _tell(
        self, chosen: Configuration, way: str, verdict: Verdict, cheaply: float
    ) -> None:
        self.count += 1
        text = self.space.spell(chosen)
        self.seen.add(text)
        best = min((one[0] for one in self.known.values()), default=math.inf)
        cost = verdict.cost if verdict.passed else math.inf
        better = cost < best
        if way in self.arms:
            arm = self.arms[way]
            arm[0], arm[1] = 0.9 * arm[0] + 0.5 * better + 0.05, 0.9 * arm[1] + 0.1
        if verdict.passed:
            self.known[text] = cost, chosen, self.count
            self.guess.tell(self.space.places(chosen), cost)
            if math.isfinite(cheaply):
                self.pairs.append((cheaply, cost))
        for tree in self.trees:
            tree.tell(dict(chosen), cost if math.isfinite(cost) else 1e300)
            if way == "tree":
                tree.used += 1
                tree.gain += better
        for name in self.step:  # narrower as more is known
            self.step[name] = max(0.15, self.step[name] * 0.99)


def scout(problem: Any, settings: Settings) -> _Steps:
    """Return a search of a problem that has a space of configurations."""
    return _Scout(problem, problem.space, settings).run()
