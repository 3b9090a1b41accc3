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
from stretto.plan import Plan, Schedule
from stretto.runtime import Choice, Question, proved_plan

__all__ = ["candidates", "expanded", "leaders", "simulated_us"]

K, M = 1 << 10, 1 << 20
_TILES = (64 * K, 256 * K, M, 4 * M)
_PACKETS_UP_TO, _LINES_FROM, _ENGINE_FROM = 4 * M, 16 * K, 4 * M
_WHOLE = 1 << 30
"""A tile that holds any part: without staging, slicing only adds signals."""
_COPIES_PUSHED = {"copy": {"direction": "push"}}
"""What is combined is pulled, and handed on by whoever combined it."""
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
    found = _simulated(choice, asked)
    return None if found is None else found[0]


def leaders(asked: Question, keep: int) -> list[Choice]:
    """Return the most promising families, each by its best numbers; the best first.

    Algorithms that become the same plan for so many ranks are tried once, under the
    shortest of their names. The simulator is trusted to rank numbers inside a family,
    and to find a family hopeless, no more.
    """
    timed = [
        (found[0], len(choice.algorithm.name), str(choice), choice, found[1])
        for choice in candidates(asked)
        if (found := _simulated(choice, asked)) is not None
    ]
    timed.sort(key=lambda t: t[:3])
    best: dict[tuple[str, ...], Choice] = {}
    plans: set[tuple[int, str]] = set()
    for us, _, _, choice, plan in timed:
        same = (hash(plan.ranks), str(choice.schedule))
        if us > _FAR * timed[0][0] or len(best) == keep:
            break
        if same not in plans:
            plans.add(same)
            best.setdefault(_family(choice), choice)
    return list(best.values())


def expanded(pin: str, asked: Question) -> list[str]:
    """Return a pin's family: the same algorithm and way, with all its numbers."""
    name, _, words = pin.partition(" ")
    mine = Choice(algorithms.get(name), Schedule.parse(words))
    return [
        str(choice)
        for choice in candidates(asked)
        if _family(choice) == _family(mine) and _simulated(choice, asked) is not None
    ]


def _family(choice: Choice) -> tuple[str, ...]:
    how = choice.schedule
    plain = replace(how, blocks=1, threads=512, tile_bytes=1 << 18, depth=4)
    return (choice.algorithm.name, str(plain))


def _simulated(choice: Choice, asked: Question) -> tuple[float, Plan] | None:
    in_place = asked.in_place or "zero_copy" not in str(choice.schedule)
    kind = "cpux" if asked.executor == "cpu" else "h200x"
    try:
        plan = proved_plan(
            choice.algorithm, asked.num_ranks, asked.params, choice.schedule, in_place
        )
        machine = topology.load(f"{kind}{asked.num_ranks}")
        found = executors.get("sim").simulate(plan, machine, nbytes=asked.nbytes)
    except StrettoError:
        return None
    return float(found.time_us), plan.value


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
    yield Schedule(memory="zero_copy", direction="pull", phases=_COPIES_PUSHED)
    if on_gpu and part >= _ENGINE_FROM:
        yield Schedule(protocol="engine", memory="zero_copy")


def _numbers(asked: Question, schedule: Schedule) -> Iterator[Schedule]:
    if asked.executor == "cpu":
        yield schedule
        if schedule.memory == "zero_copy" and schedule.tile_bytes < _part(asked):
            yield replace(schedule, tile_bytes=_WHOLE)
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
        tile = _WHOLE if schedule.memory == "zero_copy" else 256 * K
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
