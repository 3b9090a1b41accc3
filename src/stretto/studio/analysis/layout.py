"""Where nodes stand in a picture: boxes of ranks on rings, what joins boxes above.

Places are within a box, from -1 to 1; the page decides where boxes go.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto.topology import Link, Machine
from stretto.trace import RankInfo

ABOVE = -1
"""The box of a switch that joins several."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The boxes, and the nodes that are in them, column by column."""

    boxes: tuple[str, ...]
    node: tuple[int, ...]
    """The machine's number of each node here."""
    names: tuple[str, ...]
    box: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    is_switch: tuple[bool, ...]


_Spot = tuple[int, str, int, float, float, bool]
"""Number, name, box, x, y, whether it is a switch: a row of `NodeLayout`."""


def of_machine(machine: Machine, ranks: Iterable[int]) -> NodeLayout:
    """Return the boxes that ranks are in, with all that is in them, and above them."""
    m = machine
    per_box = m.ranks_per_box if m.ranks_per_box > 1 else m.num_ranks
    shown = sorted({rank // per_box for rank in ranks})
    number = {box: at for at, box in enumerate(shown)}
    spots: list[_Spot] = []
    for box in shown:
        mine = range(box * per_box, (box + 1) * per_box)
        spots += _ring([(r, str(r)) for r in mine], number[box], 0.78, False)
    joined = _homes(m.links, m.num_ranks, per_box)
    inside: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for node in range(m.num_ranks, m.num_ranks + len(m.switches)):
        homes = {number[box] for box in joined[node] if box in number}
        if len(joined[node]) == 1 and homes:
            inside[homes.pop()].append((node, m.node_name(node)))
        elif homes or not joined[node]:
            spots.append((node, m.node_name(node), ABOVE, 0.0, 0.0, True))
    for at, nodes in inside.items():
        spots += _ring(nodes, at, 0.34 if len(nodes) > 1 else 0.0, True)
    word = "box" if len(shown) > 1 else m.name
    return _layout([f"{word} {box}" if word == "box" else word for box in shown], spots)


def of_ranks(infos: Sequence[RankInfo], world: Sequence[int]) -> NodeLayout:
    """Return hosts as boxes, where no machine is known; nodes are places in `world`."""
    hosts = {info.rank: info.host for info in infos}
    boxes: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, rank in enumerate(world):
        boxes[hosts.get(rank, "unknown host")].append((place, str(rank)))
    spots = [
        spot
        for at, nodes in enumerate(boxes.values())
        for spot in _ring(nodes, at, 0.78, False)
    ]
    return _layout([name or "one host" for name in boxes], spots)


def _homes(links: Sequence[Link], num_ranks: int, per_box: int) -> dict[int, set[int]]:
    """Return the boxes that each switch is joined to: itself, or over other switches.

    A switch that only joins switches belongs to all of their boxes.
    """
    found: dict[int, set[int]] = defaultdict(set)
    between: dict[int, set[int]] = defaultdict(set)
    for link in links:
        for node, far in ((link.src, link.dst), (link.dst, link.src)):
            if node < num_ranks:
                continue
            if far < num_ranks:
                found[node].add(far // per_box)
            else:
                between[node].add(far)
    for node, others in between.items():
        if not found[node]:
            found[node] = set().union(*(found[other] for other in others))
    return found


def _ring(
    nodes: Sequence[tuple[int, str]], box: int, reach: float, is_switch: bool
) -> list[_Spot]:
    turn = 2 * math.pi / max(1, len(nodes))
    return [
        (
            node,
            name,
            box,
            reach * math.sin(at * turn),
            -reach * math.cos(at * turn),
            is_switch,
        )
        for at, (node, name) in enumerate(nodes)
    ]


def _layout(boxes: Sequence[str], spots: Sequence[_Spot]) -> NodeLayout:
    columns = list(zip(*spots, strict=True)) or [()] * 6
    return NodeLayout(tuple(boxes), *columns)
