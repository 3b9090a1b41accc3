"""Pauses: links that hold one another up, and switches that do without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stretto.errors import TopologyError
from stretto.topology.machine import Machine
from stretto.topology.routes import Route
from stretto.topology.traffic import engine as e

__all__ = ["cycle_of", "may_fail", "stalled"]


def cycle_of(table: Any, packets: Any) -> tuple[int, ...]:
    """Return links that are paused in a circle, each held up by the next, if any are.

    A paused link waits for the links that packets which came by it are queued for.
    """
    waits: dict[int, list[int]] = {}
    for link in range(table.shape[1]):
        packet = int(table[e.HEAD, link])
        while packet >= 0:
            came = int(packets[e.CAME, packet])
            if came >= 0 and link not in waits.setdefault(came, []):
                waits[came].append(link)
            packet = int(packets[e.NEXT, packet])
    paused = [link for link in range(table.shape[1]) if table[e.PAUSED, link]]
    for first in paused:
        way, seen = [first], {first}
        while True:
            following = [k for k in waits.get(way[-1], ()) if table[e.PAUSED, k]]
            if not following:
                break
            if following[0] in seen:
                return tuple(way[way.index(following[0]) :])
            way.append(following[0])
            seen.add(following[0])
    return ()


def stalled(machine: Machine, table: Any, packets: Any, route: Route) -> TopologyError:
    """Return why nothing happens though a message on that route has not arrived."""
    names = [link.name for link in machine.links]
    cycle = cycle_of(table, packets)
    if cycle:
        said = " > ".join(names[link] for link in (*cycle, cycle[0]))
        return TopologyError(
            f"{machine.name}: pauses wait for one another: {said}; want routes"
            " without such a circle, larger buffers, or pauses = false"
        )
    at = " > ".join(names[link] for link in route.links)
    return TopologyError(
        f"{machine.name}: nothing gets through on {at}; want links that work"
    )


def may_fail(machine: Machine) -> Machine:
    """Return a machine whose switches drop instead of pausing: its links may fail."""
    return replace(machine, ports=replace(machine.ports, pauses=False))
