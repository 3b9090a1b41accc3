"""Configurations in few evaluations: ours beside random and Optuna's TPE, known optima.

    python benchmarks/search_config.py [--seeds 20] [--evals 300]

Two recorded grids, so that the optimum is known: schedules of all_reduce on four GPUs
by the simulator, and how a training job is cut, by a model of its step. A figure is
how many evaluations it took until the best was within 2 % of the optimum, the median
over seeds; a run that did not get there counts as all of its evaluations. Then the same
with a cheap rung that is wrong by 40 %: how far off the best is in the end.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable

from stretto import topology
from stretto.compiler.plan import Schedule
from stretto.errors import StrettoError
from stretto.executors import sim
from stretto.program import algorithms
from stretto.runtime.choice import proved_plan
from stretto.search import evolve
from stretto.search.problems.config import ConfigProblem
from stretto.search.spaces import Knob, Space

WITHIN = 1.02
Cost = Callable[..., float]


def schedules() -> tuple[Space, Cost, str]:
    """Return every way to run all_reduce of 4 MB on four H200, as simulated."""
    names = [a.name for a in algorithms.of("all_reduce", 4) if a.kernel is None]
    knobs = (
        Knob("algorithm", tuple(n.partition("/")[2] for n in names)),
        Knob("way", ("push_packets", "push_bulk", "pull_bulk", "pull_zero_copy")),
        Knob("blocks", (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)),
        Knob("tile_kb", (16, 64, 256, 1024, 4096)),
    )
    machine, known = topology.load("h200x4"), {}

    def cost(algorithm: str, way: str, blocks: int, tile_kb: int) -> float:
        key = algorithm, way, blocks, tile_kb
        if key not in known:
            direction, word = way.split("_", 1)
            kind = word if word != "zero_copy" else "bulk zero_copy"
            text = f"{direction} {kind} blocks={blocks} tile_bytes={tile_kb << 10}"
            name = algorithms.get(f"all_reduce/{algorithm}")
            try:
                plan = proved_plan(name, 4, (), Schedule.parse(text), True)
                us = sim.simulate(plan, machine, nbytes=4 << 20).time_us
            except StrettoError:
                us = math.inf
            known[key] = us
        return known[key]

    return Space(knobs, name="schedules"), cost, "all_reduce of 4 MB on h200x4"


def training() -> tuple[Space, Cost, str]:
    """Return how a model of 30 GB is cut over 64 GPUs, by a model of its step."""
    knobs = (
        Knob("tensor", (1, 2, 4, 8)),
        Knob("stages", (1, 2, 4, 8)),
        Knob("micro", (1, 2, 4, 8, 16, 32)),
        Knob("recompute", ("none", "selective", "full")),
        Knob("shard", (0, 1, 2, 3)),
        Knob("overlap", (False, True)),
        Knob("bucket_mb", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        Knob("sms", (4, 8, 16, 32)),
    )

    def cost(
        tensor: int, stages: int, micro: int, recompute: str, shard: int,
        overlap: bool, bucket_mb: int, sms: int,
    ) -> float:  # fmt: skip
        data = 64 / tensor / stages
        again = {"none": 1.0, "selective": 1.08, "full": 1.3}[recompute]
        kept = {"none": 34, "selective": 12, "full": 2}[recompute]
        weights = 30 / tensor / stages * (1 + 7 / (data if shard else 1))
        memory = weights + kept * 8 / micro * min(micro, stages) / tensor / stages
        compute = 900 / 8 * again * (1 + 0.03 * math.log2(tensor) ** 2)
        compute *= 132 / (132 - sms * overlap)
        bubble = compute * (stages - 1) / micro + 0.4 * micro * stages
        inside = 40 * (tensor - 1) / tensor * (8 / min(8, sms + 2))
        grads = 30 / tensor / stages * 2 * (data - 1) / data
        grads *= (1 + (shard == 3) * 0.5) / (0.4 * min(1, sms / 16)) * 2
        grads += 0.15 * 3e4 / tensor / stages / bucket_mb * 0.02
        hidden = 0.85 * min(grads, compute * 0.6) * (1 - bucket_mb / 600) * overlap
        over = max(0.0, memory - 70)
        return compute + bubble + inside + grads - hidden + 30 * over

    return Space(knobs, name="training"), cost, "a step of 64 GPUs, modelled"


def points(space: Space) -> list[dict]:
    """Return every configuration of a space."""
    names = [k.name for k in space.knobs]
    every = itertools.product(*(k.values for k in space.knobs))
    return [dict(zip(names, values, strict=True)) for values in every]


def counted(costs: list[float], best: float, evals: int) -> int:
    """Return at which evaluation the best came within 2 %; all if at none."""
    lows = itertools.accumulate(costs, min)
    return next((i for i, c in enumerate(lows, 1) if c <= WITHIN * best), evals)


def ours(
    space: Space, cost: Cost, evals: int, seed: int, cheap: Cost | str = ""
) -> list:
    """Return costs in the order in which they were asked for."""
    found = evolve(
        ConfigProblem(space, objective=cost, cheap=cheap), evals=evals, seed=seed
    )
    dear = 1 if cheap else 0
    return [
        one.verdict.cost if one.verdict.passed else math.inf
        for one in found.run.rows()
        if one.trial.rung == dear
    ]


def drawn(space: Space, cost: Cost, evals: int, seed: int) -> list[float]:
    """Return costs of configurations drawn at random."""
    rng = random.Random(seed)
    return [cost(**dict(space.draw(rng))) for _ in range(evals)]


def tpe(space: Space, cost: Cost, evals: int, seed: int) -> list[float]:
    """Return the costs that Optuna's TPE asks for."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    costs = []

    def asked(trial: optuna.Trial) -> float:
        given = {k.name: trial.suggest_categorical(k.name, k.values)
                 for k in space.knobs}  # fmt: skip
        costs.append(cost(**given))
        return min(costs[-1], 1e9)

    sampler = optuna.samplers.TPESampler(seed=seed)
    optuna.create_study(sampler=sampler).optimize(asked, n_trials=evals)
    return costs


def main() -> None:
    """Print a table for each grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--evals", type=int, default=300)
    given = parser.parse_args()
    for space, cost, about in (training(), schedules()):
        costs = [cost(**point) for point in points(space)]
        best = min(costs)
        near = sum(c <= WITHIN * best for c in costs)
        print(f"{about}: {len(costs)} configurations, {near} within 2 % of the best")
        ways = {"ours": (ours, 1), "random": (drawn, 10), "Optuna TPE": (tpe, 1)}
        for name, (way, more) in ways.items():
            evals = given.evals * more
            try:
                took = [
                    counted(way(space, cost, evals, seed), best, evals)
                    for seed in range(given.seeds)
                ]
            except ImportError:
                print(f"  {name}: not installed")
                continue
            missed = sum(t == evals for t in took)
            print(
                f"  {name:11} {statistics.median(took):6.0f} evaluations (median; "
                f"{min(took)} to {max(took)}; {missed} of {given.seeds} never)",
                flush=True,
            )

        def cheap(cost: Cost = cost, **knobs: object) -> float:
            noise = random.Random(repr(sorted(knobs.items()))).gauss(0, 0.4)
            return cost(**knobs) * math.exp(noise)

        off = [min(ours(space, cost, 400, s, cheap)) / best for s in range(given.seeds)]
        print(f"  cheap rung wrong by 40 %: {statistics.median(off):.3f} of the best")


if __name__ == "__main__":
    main()
