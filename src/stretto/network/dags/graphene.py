"""Graphene: the hard tasks of a graph first, wherever they fit; the rest around them.

Long tasks, and those that are hard to pack, are placed into empty time. What must come
before them is then placed backwards, what comes after forwards, and the rest in either
direction, in the orders that cannot run into a dead end. Which tasks count as hard is
searched; the best schedule's order is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.network.dags.dag import Dag
from stretto.network.dags.servers import Servers, listed

_LONG = (0.2, 0.4, 0.6, 0.8)
_LARGE = (0.3, 0.5, 0.7, 2.0)
_ROUNDS = 3


def offline(dag: Dag, servers: int) -> tuple[tuple[int, ...], float]:
    """Return the best order of a graph's tasks, and how long that takes alone.

    A schedule is judged by its order, listed again: that is what will be run.
    """
    order = tuple(critical_first(dag))
    least = listed(dag, order, servers).length_ms
    for space in _schedules(dag, servers):
        for tried in _compacted(dag, space, servers):
            if tried.length_ms < least - 1e-9:
                found = _order(tried)
                took = listed(dag, found, servers).length_ms
                if took < least:
                    order, least = found, took
    return order, least


def critical_first(dag: Dag) -> list[int]:
    """Return tasks by the longest way to the end: what list scheduling does."""
    return sorted(range(len(dag.tasks)), key=lambda i: (-dag.tails_ms[i], i))


def _compacted(dag: Dag, space: Servers, servers: int) -> Iterator[Servers]:
    """Yield the schedules in which tasks go early in that one's order, and so on."""
    for _ in range(_ROUNDS):
        before = space.length_ms
        late = Servers(servers)
        for i in sorted(space.spans, key=lambda i: (-space.spans[i][1], -i)):
            starts = [late.spans[j][0] for j in dag.then[i]]
            late.place(i, dag.tasks[i], min(starts, default=0.0), forwards=False)
        space = listed(dag, _order(late), servers)
        yield space
        if space.length_ms >= before - 1e-9:
            return


def _order(space: Servers) -> tuple[int, ...]:
    return tuple(sorted(space.spans, key=lambda i: (space.spans[i][0], i)))


def _schedules(dag: Dag, servers: int) -> Iterator[Servers]:
    seen: set[frozenset[int]] = set()
    longest = max(task.ms for task in dag.tasks)
    for long in _LONG:
        for large in _LARGE:
            hard = _closed(
                dag,
                {
                    i
                    for i, task in enumerate(dag.tasks)
                    if task.ms >= long * longest or max(task.needs) >= large
                },
            )
            if hard in seen:
                continue
            seen.add(hard)
            before = set().union(*(dag.before[i] for i in hard)) - hard
            after = {
                i
                for i in range(len(dag.tasks))
                if dag.before[i] & hard and i not in hard
            }
            rest = set(range(len(dag.tasks))) - hard - before - after
            for hard_first in (True, False):
                yield from _around(dag, servers, hard, before, after, rest, hard_first)


def _closed(dag: Dag, tasks: set[int]) -> frozenset[int]:
    """Add the tasks that lie between two of these."""
    return frozenset(
        tasks
        | {
            i
            for i in range(len(dag.tasks))
            if dag.before[i] & tasks and any(i in dag.before[j] for j in tasks)
        }
    )


def _around(
    dag: Dag,
    servers: int,
    hard: frozenset[int],
    before: set[int],
    after: set[int],
    rest: set[int],
    forwards: bool,
) -> Iterator[Servers]:
    """Yield schedules: the hard ones, then the others in four orders."""
    orders = (
        ((rest, True), (before, False), (after, True)),
        ((rest, False), (after, True), (before, False)),
        ((before, False), (rest, True), (after, True)),
        ((after, True), (rest, False), (before, False)),
    )
    for order in orders:
        space = Servers(servers)
        _put(dag, space, hard, forwards)
        for some, onwards in order:
            _put(dag, space, some, onwards)
        yield space


def _put(dag: Dag, space: Servers, some: Iterable[int], forwards: bool) -> None:
    """Place tasks after the placed ones that they need, or before who needs them."""
    tasks = set(some)
    heads = _heads_ms(dag)
    key = dag.tails_ms if forwards else heads
    for i in sorted(tasks, key=lambda i: (-key[i], i if forwards else -i)):
        if forwards:
            ends = [space.spans[j][1] for j in dag.before[i] if j in space.spans]
            space.place(i, dag.tasks[i], max(ends, default=0.0), forwards=True)
        else:
            begins = [span[0] for j, span in space.spans.items() if i in dag.before[j]]
            space.place(i, dag.tasks[i], min(begins, default=0.0), forwards=False)


def _heads_ms(dag: Dag) -> list[float]:
    """Return by task the longest way from a beginning, itself included."""
    found: list[float] = []
    for task in dag.tasks:
        found.append(task.ms + max((found[j] for j in task.after), default=0.0))
    return found
