"""What can be tried: an algorithm, then how it runs, each choice opening others.

The tree: algorithm; memory and direction; protocol; and only then numbers, those that
the protocol and the executor have. A number that would change nothing is not a choice:
tiles larger than a part, more blocks than there are vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stretto import topology
from stretto.compiler.plan import ProvedPlan, Schedule
from stretto.errors import StrettoError
from stretto.executors import sim
from stretto.program import algorithms, collectives
from stretto.program.lang import Algorithm
from stretto.runtime.choice import Choice, Question, proved_plan

K, M = 1 << 10, 1 << 20
_TILES = (64 * K, 256 * K, M, 4 * M)
_PACKETS_UP_TO, _ENGINE_FROM = 4 * M, 4 * M
_WHOLE = 1 << 30
"""A tile that holds any part: without staging, slicing only adds signals."""
_COPIES_PUSHED = {"copy": {"direction": "push"}}
"""What is combined is pulled, and handed on by whoever combined it."""
_COPIES_BY_ENGINE = {"copy": {"direction": "push", "protocol": "engine"}}
_VECTOR = 16
_MOST_BLOCKS = 132
_THREADS = (64, 128, 256, 512, 768)
_VECTORS_EACH = (4.0, 2.0, 1.0, 2 / 3, 0.5, 1 / 3)
"""How many vectors of a part a thread has, in the best of what was measured by hand."""
_DEPTHS = (1, 2, 4, 8)
_FAR = 6.0
"""What the simulator finds so many times slower than its best is not measured."""


def candidates(asked: Question) -> Iterator[Choice]:
    """Yield everything that may serve a call, without duplicates."""
    for algorithm in algorithms.of(asked.collective, asked.num_ranks):
        if algorithm.knows_hosts and not asked.hosts:
            continue  # others do that better
        ways = _ways(asked) if algorithm.kernel is None else _by_hand(algorithm, asked)
        for schedule in ways:
            for numbered in _numbers(asked, schedule):
                yield Choice(algorithm, numbered)


def _by_hand(algorithm: Algorithm, asked: Question) -> Iterator[Schedule]:
    """Yield the way that a kernel written by hand has; its numbers are tried."""
    if asked.executor != "cpu":
        how = Schedule.parse(algorithm.schedule)
        if how.memory == "staged" or asked.memory == "zero_copy":
            yield how


def simulated_us(choice: Choice, asked: Question) -> float | None:
    """Return the simulated time; None where the choice does not serve the call."""
    plan = _plan(str(choice), asked)
    if plan is None:
        return None
    try:
        machine = topology.load(topology.assumed(asked.executor, asked.num_ranks))
        found = sim.simulate(plan, machine, nbytes=asked.nbytes)
    except StrettoError:
        return None
    return float(found.time_us)


def leaders(asked: Question, keep: int) -> list[Choice]:
    """Return the most promising families, each by its best numbers; the best first.

    Algorithms that are the same for so many ranks (a hierarchy of one box) take the
    same time to the last digit, and are tried once, under the shortest of their names.
    The simulator is trusted to find a family hopeless, no more: of threads it knows
    nothing, so among equals that come first whose shape is like what is fast elsewhere.
    """
    timed = [
        (
            *(round(found, 9), _oddness(choice.schedule, asked)),
            *(len(choice.algorithm.name), str(choice), choice),
        )
        for choice in candidates(asked)
        if (found := simulated_us(choice, asked)) is not None
    ]
    timed.sort(key=lambda t: t[:4])
    best: dict[tuple[str, ...], Choice] = {}
    seen: set[tuple[float, str, bool]] = set()
    for us, _, _, _, choice in timed:
        by_hand = choice.algorithm.kernel is not None
        same = (us, str(choice.schedule), by_hand)
        if us > _FAR * timed[0][0] or len(best) == keep:
            break
        if same not in seen:
            seen.add(same)
            best.setdefault(_family(choice), choice)
    return list(best.values())


def expanded(pin: str, asked: Question) -> list[str]:
    """Return a pin's family: the same algorithm and way, with all its numbers."""
    name, _, words = pin.partition(" ")
    mine = Choice(algorithms.get(name), Schedule.parse(words))
    return [
        str(choice)
        for choice in candidates(asked)
        if _family(choice) == _family(mine) and simulated_us(choice, asked) is not None
    ]


def refined(pins: Sequence[str], asked: Question) -> list[str]:
    """Return the neighbours of pins: one number changed by a step."""
    found: list[str] = []
    for pin in pins:
        name, _, words = pin.partition(" ")
        mine = Choice(algorithms.get(name), Schedule.parse(words))
        near = [Choice(mine.algorithm, how) for how in _near(mine.schedule, asked)]
        found += [str(one) for one in near if simulated_us(one, asked) is not None]
    return [pin for pin in dict.fromkeys(found) if pin not in pins]


def _oddness(how: Schedule, asked: Question) -> float:
    """Return how far a shape is from one that is fast almost everywhere.

    That is a thread and a half for each vector, in blocks as small as fill the GPU.
    """
    if asked.executor == "cpu" or how.protocol != "packets":
        return 0.0
    wanted = 1.5 * math.ceil(_part(asked) / _VECTOR)
    threads = next((t for t in _THREADS if t * _MOST_BLOCKS >= wanted), _THREADS[-1])
    blocks = min(_MOST_BLOCKS, max(1.0, wanted / threads))
    far = abs(math.log2(how.blocks / blocks)) + abs(math.log2(how.threads / threads))
    return round(far, 3)


def _plan(pin: str, asked: Question) -> ProvedPlan | None:
    """Return the plan of a pin; None where it does not serve the call."""
    name, _, words = pin.partition(" ")
    how = Schedule.parse(words)
    try:
        return proved_plan(
            algorithms.get(name), asked.num_ranks, asked.params, how, asked.in_place
        )
    except StrettoError:
        return None


def _near(how: Schedule, asked: Question) -> Iterator[Schedule]:
    if asked.executor == "cpu":
        for tile in _TILES:
            if how.protocol == "bulk" and tile < 2 * _part(asked):
                yield replace(how, tile_bytes=tile)
        return
    most = asked.num_ranks if how.protocol == "engine" else _MOST_BLOCKS
    for factor in (0.5, 0.75, 1.5, 2.0):
        blocks = round(how.blocks * factor)
        if 1 <= blocks <= most and blocks != how.blocks:
            yield replace(how, blocks=blocks)
    if how.protocol == "engine":
        return
    at = min(range(5), key=lambda i: abs(_THREADS[i] - how.threads))
    for threads in _THREADS[max(0, at - 1) : at + 2]:
        yield replace(how, threads=threads)
        if threads > how.threads and how.blocks > 1:
            yield replace(how, threads=threads, blocks=math.ceil(how.blocks / 2))
    if _part(asked) >= 256 * K:
        for depth in _DEPTHS:
            yield replace(how, depth=depth)


def _family(choice: Choice) -> tuple[str, ...]:
    how = choice.schedule
    plain = replace(how, blocks=1, threads=512, tile_bytes=1 << 18, depth=4)
    return (choice.algorithm.name, str(plain))


def _ways(asked: Question) -> Iterator[Schedule]:
    """Yield direction, protocol and memory, without numbers."""
    on_gpu, part = asked.executor != "cpu", _part(asked)
    if part <= _PACKETS_UP_TO:
        yield Schedule(protocol="packets")
    yield Schedule(protocol="bulk")
    yield Schedule(protocol="bulk", direction="pull")
    if asked.across and not collectives.get(asked.collective).reduces:
        yield Schedule(direction="pull", memory="across")
    if asked.memory != "zero_copy":
        return
    for direction in ("pull", "push"):
        yield Schedule(direction=direction, memory="zero_copy")
    yield Schedule(memory="zero_copy", direction="pull", phases=_COPIES_PUSHED)
    if on_gpu and part >= _ENGINE_FROM:
        if not collectives.get(asked.collective).reduces:  # engines cannot add
            yield Schedule(protocol="engine", memory="zero_copy")
            return
        yield Schedule(memory="zero_copy", direction="pull", phases=_COPIES_BY_ENGINE)


def _numbers(asked: Question, schedule: Schedule) -> Iterator[Schedule]:
    if asked.executor == "cpu":
        yield schedule
        if schedule.memory != "staged" and schedule.tile_bytes < _part(asked):
            yield replace(schedule, tile_bytes=_WHOLE)
        if schedule.protocol == "bulk" and schedule.memory == "staged":
            for tile in _TILES:
                default = tile == schedule.tile_bytes
                if not default and tile < 2 * _part(asked):
                    yield replace(schedule, tile_bytes=tile)
        return
    yield from _on_gpu(asked, schedule)


def _on_gpu(asked: Question, schedule: Schedule) -> Iterator[Schedule]:
    """Yield numbers: enough threads for about a vector each, more, and fewer."""
    vectors = max(1, math.ceil(_part(asked) / _VECTOR))
    if schedule.protocol == "engine":
        for blocks in sorted({1, 2, asked.num_ranks - 1}):
            yield replace(schedule, blocks=blocks)
        return
    if schedule.protocol == "bulk":
        tile = _WHOLE if schedule.memory == "zero_copy" else 256 * K
        for blocks in (8, 16, 32, 64, 96, 128):
            if blocks * 64 <= max(512, vectors):
                yield replace(schedule, blocks=blocks, threads=512, tile_bytes=tile)
        return
    seen: set[tuple[int, int]] = set()
    for threads in _THREADS:
        # Where a rank reads what all have, that is a thread a vector, and two.
        for each in (*_VECTORS_EACH, 1 / asked.num_ranks, 0.5 / asked.num_ranks):
            blocks = math.ceil(vectors / threads / each)
            one = (min(_MOST_BLOCKS, max(1, blocks)), threads)
            if vectors > 8 * one[0] * threads and one[0] < _MOST_BLOCKS:
                continue
            if one not in seen:
                seen.add(one)
                yield replace(schedule, blocks=one[0], threads=threads, tile_bytes=M)


def _part(asked: Question) -> int:
    """Return about what one rank has for one other."""
    return math.ceil(asked.nbytes / asked.num_ranks)
