"""The affinity graph: jobs and the links that several of them share.

Every link asks for shifts of its jobs against one another. Where the graph has no loop
one shift a job meets all of them; where it has one, they may contradict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

__all__ = ["components", "has_loop", "one_shift_each"]


def components(jobs: Mapping[int, Sequence[int]]) -> list[dict[int, list[int]]]:
    """Return the parts of the graph that hang together: by link, its jobs.

    Links of one job alone are none of it.
    """
    links = {link: sorted(on) for link, on in sorted(jobs.items()) if len(on) > 1}
    at: dict[int, list[int]] = {}
    for link, on in links.items():
        for job in on:
            at.setdefault(job, []).append(link)
    found: list[dict[int, list[int]]] = []
    seen: set[int] = set()
    for first in links:
        if first in seen:
            continue
        seen.add(first)
        queue, part = deque([first]), {}
        while queue:
            link = queue.popleft()
            part[link] = links[link]
            for job in links[link]:
                new = [other for other in at[job] if other not in seen]
                seen.update(new)
                queue.extend(new)
        found.append(dict(sorted(part.items())))
    return found


def has_loop(part: Mapping[int, Sequence[int]]) -> bool:
    """Return whether a connected part of the graph has a loop: it is no tree."""
    edges = sum(len(on) for on in part.values())
    nodes = len(part) + len({job for on in part.values() for job in on})
    return edges >= nodes


def one_shift_each(
    part: Mapping[int, Sequence[int]],
    wanted: Mapping[int, Mapping[int, float]],
    periods: Mapping[int, float],
) -> dict[int, float]:
    """Return one shift a job that keeps what every link wants, in a part without loops.

    From job j over link l to job k: t_k = (t_j - t_j^l + t_k^l) mod T_k.
    """
    first = min(job for on in part.values() for job in on)
    found, queue, crossed = {first: 0.0}, deque([first]), set[int]()
    while queue:
        job = queue.popleft()
        for link, on in part.items():
            if job not in on or link in crossed:
                continue
            crossed.add(link)
            for other in on:
                if other not in found:
                    late = found[job] - wanted[link][job] + wanted[link][other]
                    found[other] = late % periods[other]
                    queue.append(other)
    return found
