"""Servers over time: where a task fits, as early as can be, or as late."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.network.dags.dag import Dag, DagTask

_ROOM = 1 + 1e-9


class Servers:
    """What tasks have been placed on which server, and when: time has no beginning."""

    def __init__(self, servers: int) -> None:
        self._on: list[list[tuple[float, float, tuple[float, ...]]]] = [
            [] for _ in range(servers)
        ]
        self.spans: dict[int, tuple[float, float]] = {}
        """By task, when it begins and ends."""

    def place(self, index: int, task: DagTask, limit: float, *, forwards: bool) -> None:
        """Place a task not before the limit, as early as can be; or not after, late."""
        best: tuple[float, int] | None = None
        for server, on in enumerate(self._on):
            at = self._fits(on, task, limit, forwards)
            if best is None or (at < best[0] if forwards else at > best[0]):
                best = at, server
        assert best is not None  # there is a server
        begin = best[0] if forwards else best[0] - task.ms
        self._on[best[1]].append((begin, begin + task.ms, task.needs))
        self.spans[index] = begin, begin + task.ms

    def _fits(
        self,
        on: list[tuple[float, float, tuple[float, ...]]],
        task: DagTask,
        limit: float,
        forwards: bool,
    ) -> float:
        """Return the first begin that fits, or the last end."""
        if forwards:
            times = [limit, *sorted(end for _, end, _ in on if end > limit)]
            return next(t for t in times if self._has_room(on, task, t, t + task.ms))
        ends = [limit, *sorted((b for b, _, _ in on if b < limit), reverse=True)]
        return next(t for t in ends if self._has_room(on, task, t - task.ms, t))

    @staticmethod
    def _has_room(
        on: list[tuple[float, float, tuple[float, ...]]],
        task: DagTask,
        begin: float,
        end: float,
    ) -> bool:
        inside = [one for one in on if one[0] < end - 1e-9 and one[1] > begin + 1e-9]
        for moment in [begin, *(b for b, _, _ in inside if b > begin)]:
            for r, need in enumerate(task.needs):
                used = sum(n[r] for b, e, n in inside if b <= moment + 1e-9 < e)
                if used + need > _ROOM:
                    return False
        return True

    @property
    def length_ms(self) -> float:
        """Return the time from the first begin to the last end."""
        begins, ends = zip(*self.spans.values(), strict=True)
        return float(max(ends) - min(begins))


def listed(dag: Dag, order: Iterable[int], servers: int) -> Servers:
    """Return the schedule in which tasks, in such an order, go where they fit first."""
    space = Servers(servers)
    for i in order:
        task = dag.tasks[i]
        ready = max((space.spans[j][1] for j in task.after), default=0.0)
        space.place(i, task, ready, forwards=True)
    return space
