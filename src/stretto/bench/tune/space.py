"""What can be tried: an algorithm, then how it runs, each choice opening others.

The tree: algorithm; memory and direction; protocol; and only then numbers, those that
the protocol and the executor have. A number that would change nothing is not a choice:
tiles larger than a part, more blocks than there are vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from stretto import algorithms, executors, topology
from stretto.errors import StrettoError
from stretto.plan import Schedule
from stretto.runtime import Choice, Question, proved_plan

__all__ = ["candidates", "ranked", "simulated_us"]

K, M = 1 << 10, 1 << 20
_TILES = (64 * K, 256 * K, M, 4 * M)
_PACKETS_UP_TO, _LINES_FROM, _ENGINE_FROM = 4 * M, 16 * K, 4 * M
_VECTOR = 16
_MOST_BLOCKS = 128
_FAR = 6.0
"""What the simulator finds so many times slower than its best is not measured."""


def candidates(asked: Question) -> Iterator[Choice]:
    """Yield everything that may serve a call, without duplicates."""
    for algorithm in algorithms.of(asked.collective, asked.num_ranks):
        for schedule in _ways(asked):
            for numbered in _numbers(asked, schedule):
                yield Choice(algorithm, numbered)


def simulated_us(choice: Choice, asked: Question) -> float | None:
    """Return the simulated time; None where the choice does not serve the call."""
    in_place = asked.in_place or "zero_copy" not in str(choice.schedule)
    kind = "cpux" if asked.executor == "cpu" else "h200x"
    try:
        plan = proved_plan(
            choice.algorithm,
            asked.num_ranks,
            asked.params,
            replace(choice.schedule, threads=512, depth=4),
            in_place,
        )
        machine = topology.load(f"{kind}{asked.num_ranks}")
        found = executors.get("sim").simulate(plan, machine, nbytes=asked.nbytes)
    except StrettoError:
        return None
    return float(found.time_us)


def ranked(asked: Question, keep: int) -> list[tuple[Choice, float]]:
    """Return the most promising choices and their simulated times, the best first.

    The best of every algorithm and protocol comes first, if it is not far behind; then
    whatever else is good: the simulator is trusted with families less than with the
    numbers inside one.
    """
    timed = [
        (us, str(choice), choice)
        for choice in candidates(asked)
        if (us := simulated_us(choice, asked)) is not None
    ]
    timed.sort(key=lambda t: t[:2])
    if not timed:
        return []
    near = [t for t in timed if t[0] <= _FAR * timed[0][0]]
    leaders: dict[tuple[str, str, str, str], tuple[float, str, Choice]] = {}
    for one in near:
        how = one[2].schedule
        family = (one[2].algorithm.name, how.protocol, how.direction, how.memory)
        leaders.setdefault(family, one)
    first = list(leaders.values())[:keep]
    rest = [t for t in near if t not in first]
    chosen = first + rest[: max(0, keep - len(first))]
    return [(choice, us) for us, _, choice in chosen]


def _ways(asked: Question) -> Iterator[Schedule]:
    """Yield direction, protocol and memory, without numbers."""
    on_gpu, part = asked.executor != "cpu", _part(asked)
    if part <= _PACKETS_UP_TO:
        yield Schedule(protocol="packets")
    if on_gpu and _LINES_FROM <= part <= _PACKETS_UP_TO:
        yield Schedule(protocol="lines")
    yield Schedule(protocol="bulk")
    yield Schedule(protocol="bulk", direction="pull")
    if asked.memory != "zero_copy":
        return
    for direction in ("pull", "push"):
        yield Schedule(direction=direction, memory="zero_copy")
    if on_gpu and part >= _ENGINE_FROM:
        yield Schedule(protocol="engine", memory="zero_copy")


def _numbers(asked: Question, schedule: Schedule) -> Iterator[Schedule]:
    if asked.executor == "cpu":
        yield schedule
        if schedule.protocol == "bulk" and schedule.memory == "staged":
            for tile in _TILES:
                default = tile == schedule.tile_bytes
                if not default and tile < 2 * _part(asked):
                    yield replace(schedule, tile_bytes=tile)
        return
    yield from _on_gpu(asked, schedule)


def _on_gpu(asked: Question, schedule: Schedule) -> Iterator[Schedule]:
    vectors = max(1, math.ceil(_part(asked) / _VECTOR))
    if schedule.protocol == "engine":
        for blocks in sorted({1, asked.num_ranks - 1}):
            yield replace(schedule, blocks=blocks)
        return
    if schedule.protocol == "bulk":
        tile = 1 << 30 if schedule.memory == "zero_copy" else 256 * K
        for blocks in (8, 16, 32, 64, 128):
            if blocks * 64 <= max(512, vectors):
                yield replace(schedule, blocks=blocks, threads=512, tile_bytes=tile)
        return
    seen: set[tuple[int, int]] = set()
    for threads in (128, 256, 512):
        for vectors_each in (1, 2, 4):
            blocks = math.ceil(vectors / threads / vectors_each)
            one = (min(_MOST_BLOCKS, max(1, blocks)), threads)
            if one not in seen:
                seen.add(one)
                yield replace(schedule, blocks=one[0], threads=threads, tile_bytes=M)


def _part(asked: Question) -> int:
    """Return about what one rank has for one other."""
    return math.ceil(asked.nbytes / asked.num_ranks)
