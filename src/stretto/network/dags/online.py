"""Graphs that come one after another onto servers: whose task starts next.

`fair` offers room to the graph that has least of its share, `critical` to the longest
way of all, `tetris` to the task that fits best, of short jobs first. `graphene` weighs
how well a task fits, how early its graph's own order has it, and how little its graph
has left; but no graph may fall behind its fair share by more than `MOST_BEHIND`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stretto.errors import UnknownNameError
from stretto.network.dags.dag import Dag
from stretto.network.dags.graphene import critical_first, offline

MOST_BEHIND = 0.8
"""Of its fair share over its time that a graph may lack."""
_ROOM, _LEFT = 1 + 1e-9, 0.03


class _Here:
    """A graph that has come."""

    __slots__ = (
        "dag",
        "due",
        "ended",
        "has",
        "left_ms",
        "place",
        "ready",
        "served",
        "since",
        "whole_ms",
    )

    def __init__(self, dag: Dag, order: Sequence[int], now: float) -> None:
        self.dag, self.since = dag, now
        self.place = {task: at for at, task in enumerate(order)}
        self.ended: set[int] = set()
        self.ready = {i for i, task in enumerate(dag.tasks) if not task.after}
        self.left_ms = sum(task.ms * max(task.needs) for task in dag.tasks)
        self.whole_ms = self.left_ms
        self.has = self.served = self.due = 0.0
        """Its dominant share now, over time, and what that should be."""


_Key: TypeAlias = Callable[[_Here, int, Sequence[float]], tuple[float, ...]]


def _fits(here: _Here, task: int, free: Sequence[float]) -> float:
    needs = here.dag.tasks[task].needs
    return sum(n * f for n, f in zip(needs, free, strict=True)) / len(free)


def _fair(here: _Here, task: int, free: Sequence[float]) -> tuple[float, ...]:
    return here.has, here.since, task


def _critical(here: _Here, task: int, free: Sequence[float]) -> tuple[float, ...]:
    return -here.dag.tails_ms[task], here.since, task


def _tetris(here: _Here, task: int, free: Sequence[float]) -> tuple[float, ...]:
    return -_fits(here, task, free) / (1 + here.left_ms / 1e3), here.since, task


def _graphene(here: _Here, task: int, free: Sequence[float]) -> tuple[float, ...]:
    early = 1 - here.place[task] / len(here.place)
    fits = (1 + early) * _fits(here, task, free)
    return -fits / (_LEFT * here.whole_ms + here.left_ms), here.since, task


KEYS: dict[str, _Key] = {
    "fair": _fair,
    "critical": _critical,
    "tetris": _tetris,
    "graphene": _graphene,
}


def online(dags: Sequence[Dag], *, servers: int, by: str) -> dict[str, float]:
    """Return by graph how long it took, from its coming to its last task's end."""
    if by not in KEYS:
        raise UnknownNameError.among("order of graphs", by, KEYS)
    alone = {
        dag.name: offline(dag, servers)[0] if by == "graphene" else critical_first(dag)
        for dag in dags
    }
    waits = sorted(dags, key=lambda dag: (dag.arrives_ms, dag.name), reverse=True)
    resources = len(dags[0].tasks[0].needs)
    free = [[1.0] * resources for _ in range(servers)]
    here: list[_Here] = []
    runs: list[tuple[float, int, int, _Here, int]] = []
    found: dict[str, float] = {}
    now, age = 0.0, 0
    while waits or here:
        while waits and waits[-1].arrives_ms <= now:
            dag = waits.pop()
            here.append(_Here(dag, alone[dag.name], now))
        while (chosen := _next(here, free, by)) is not None:
            one, task, server = chosen
            age += 1
            _take(free[server], one, task, -1.0)
            one.ready.discard(task)
            ends = now + one.dag.tasks[task].ms
            heapq.heappush(runs, (ends, age, server, one, task))
        comes = waits[-1].arrives_ms if waits else math.inf
        until = min(runs[0][0] if runs else math.inf, comes)
        for one in here:
            one.served += one.has * (until - now)
            one.due += servers / len(here) * (until - now)
        now = until
        while runs and runs[0][0] <= now:
            _, _, server, one, task = heapq.heappop(runs)
            _take(free[server], one, task, 1.0)
            if _end(one, task):
                found[one.dag.name] = now - one.dag.arrives_ms
                here.remove(one)
    return found


def _next(
    here: Sequence[_Here], free: Sequence[Sequence[float]], by: str
) -> tuple[_Here, int, int] | None:
    """Return who begins which task where; None when nothing fits."""
    key, best = KEYS[by], None
    behind = _furthest_behind(here) if by == "graphene" else None
    for one in here:
        for task in one.ready:
            for server, room in enumerate(free):
                needs = one.dag.tasks[task].needs
                if any(n > f * _ROOM for n, f in zip(needs, room, strict=True)):
                    continue
                rank = (one is not behind, *key(one, task, room), server)
                if best is None or rank < best[0]:
                    best = rank, (one, task, server)
    return best[1] if best else None


def _furthest_behind(here: Sequence[_Here]) -> _Here | None:
    """Return the graph that lacks most of its fair share, if that is too much."""
    late = [one for one in here if one.served < (1 - MOST_BEHIND) * one.due]
    return max(late, key=lambda one: one.due - one.served, default=None)


def _take(room: list[float], one: _Here, task: int, sign: float) -> None:
    for r, need in enumerate(one.dag.tasks[task].needs):
        room[r] += sign * need
    one.has -= sign * max(one.dag.tasks[task].needs)


def _end(one: _Here, task: int) -> bool:
    """Note that a task has ended; return whether it was the last."""
    one.ended.add(task)
    one.left_ms -= one.dag.tasks[task].ms * max(one.dag.tasks[task].needs)
    one.ready |= {
        i for i in one.dag.then[task] if set(one.dag.tasks[i].after) <= one.ended
    }
    return len(one.ended) == len(one.dag.tasks)
