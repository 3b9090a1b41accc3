"""What an order of the ranks gains on grids with an empty place, in the simulator.

    python benchmarks/renumbered.py

By grid, empty place, collective and size: what is chosen where nobody knows how ranks
sit, the best with ranks as they are, and the best in orders that suit the grid, in us.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from stretto import topology
from stretto.bench.machine import commit
from stretto.executors import sim
from stretto.runtime.choice import Question, Selector
from stretto.runtime.choice.plans import plan_of, works
from stretto.runtime.choice.question import NO_SEATS, Choice
from stretto.runtime.choice.seats import machine_at
from stretto.runtime.choice.select import possible

GRID = """
about = "Ranks in a rectangle, each joined to its neighbours"
kind = "cpu"
[torus]
dims = [{}]
wrap = false
bandwidth_gbytes_per_s = 10
latency_us = 1.0
"""
CASES = [((3, 3), 4), ((3, 3), 0), ((3, 3), 1), ((4, 3), 5), ((3, 3), -1), ((4, 4), -1)]
ROOTED = ("broadcast", "reduce")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", *ROOTED, "all_to_all")


def time_us(option: Choice, asked: Question) -> float:
    """Return what a choice takes where the ranks sit."""
    plan, machine = plan_of(option, asked), machine_at(asked.seats)
    ranks = asked.seats[1]
    return float(sim.simulate(plan, machine, nbytes=asked.nbytes, ranks=ranks).time_us)


def row(grid: str, gone: int, asked: Question) -> str:
    """Return a row of the table."""
    began = time.process_time()
    found = Selector(asked.executor).choose(asked)
    cpu_s = time.process_time() - began
    blind = Selector(asked.executor).choose(replace(asked, seats=NO_SEATS))
    as_they_are = [
        one for one in possible(asked)
        if ":" not in one.algorithm.name and works(one, asked)
    ]  # fmt: skip
    best = min((*as_they_are, blind), key=lambda one: time_us(one, asked))
    empty = "none" if gone < 0 else str(gone)
    times = " | ".join(f"{time_us(one, asked):.1f}" for one in (blind, best, found))
    names = f"{best.algorithm.name} | {found.algorithm.name}"
    return (
        f"| {grid} | {empty} | {asked.collective} | {asked.nbytes >> 10} KiB | {times} "
        f"| {names} | {cpu_s:.2f} |"
    )


def main() -> None:
    """Print the table."""
    print(f"{commit()}\n")
    print("| grid | empty | | size | blind | as they are | in an order | | | CPU s |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | --- | --- | ---: |")
    for dims, gone in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "grid.toml"
            path.write_text(GRID.format(", ".join(map(str, dims))))
            n = topology.load(str(path)).num_ranks
            places = tuple(r for r in range(n) if r != gone)
            for collective in COLLECTIVES:
                for nbytes in (4 << 10, 1 << 20):
                    asked = Question(
                        executor="cpu", collective=collective, num_ranks=len(places),
                        nbytes=nbytes, seats=(str(path), places),
                        params=(("root", 0),) if collective in ROOTED else (),
                    )  # fmt: skip
                    print(row("x".join(map(str, dims)), gone, asked), flush=True)


if __name__ == "__main__":
    main()
