"""Machines as text and as a drawing.

The text lists equal links of a box once. The drawing puts the ranks of every box on a
ring, its switches inside, switches between boxes in a row above.
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from xml.sax.saxutils import escape

from stretto.topology.machine import Machine
from stretto.topology.parts import Costs, Link

__all__ = ["draw", "render"]

_BOX, _RADIUS, _NODE = 260.0, 92.0, 13.0
_DRAWN_BOXES = 8
_NAMED = 8
_ASIDE = 0.5
"""So far from the middle, or from one another, things are seen apart; a radius is 1."""
_ALIVE = 'stroke="rgb(90,120,120)"'


def render(machine: Machine) -> str:
    """Return a machine as text: what it is, its links by kind, its costs."""
    m = machine
    lines = [f"{m.name}: {m.about}" if m.about else m.name]
    boxes = (
        f" in {m.num_boxes} boxes of {m.ranks_per_box}"
        if 1 < m.num_boxes < m.num_ranks
        else ""
    )
    nics = f"; NICs of a box: {m.nics_per_box}" if m.nics_per_box else ""
    lines.append(f"  {m.num_ranks} {m.kind} ranks{boxes}{nics}")
    if m.dead_ranks:
        lines.append(f"  dead ranks: {', '.join(map(str, sorted(m.dead_ranks)))}")
    lines += [f"  {said}" for said in _cut_off(m)]
    kinds: dict[tuple[str, float, float], list[Link]] = defaultdict(list)
    for link in m.links:
        kinds[_ends(m, link), link.bandwidth_gbytes_per_s, link.latency_us].append(link)
    for (ends, rate, latency), links in kinds.items():
        speed = f"{rate:g} GB/s" if rate > 0 else "dead"
        example = links[0].name + (", ..." if len(links) > 1 else "")
        lines.append(
            f"  {len(links):>5} links  {ends:<24} {speed:>12} {latency:g} us  {example}"
        )
    plain = Costs()
    costs = [
        key if (value := getattr(m.costs, key)) is True else f"{key} {value:g}"
        for key in Costs.__dataclass_fields__
        if getattr(m.costs, key) != getattr(plain, key)
    ]
    if costs:
        lines.append(f"  costs  {', '.join(costs)}")
    return "\n".join(lines) + "\n"


def _cut_off(m: Machine) -> Iterator[str]:
    """Yield which ranks nothing joins with rank 0, one way or the other."""
    for said, forth in (
        ("no way from rank 0 to", True),
        ("no way to rank 0 from", False),
    ):
        ways: dict[int, list[int]] = defaultdict(list)
        for link in m.links:
            start, end = (link.src, link.dst) if forth else (link.dst, link.src)
            if link.bandwidth_gbytes_per_s > 0:
                ways[start].append(end)
        reached, ahead = {0}, [0]
        while ahead:
            new = set(ways[ahead.pop()]) - reached
            reached |= new
            ahead += new
        lost = sorted(set(range(m.num_ranks)) - reached - m.dead_ranks)
        if lost:
            more = ", ..." if len(lost) > _NAMED else ""
            named = ", ".join(map(str, lost[:_NAMED]))
            yield f"{said} {'ranks' if len(lost) > 1 else 'rank'} {named}{more}"


def _ends(m: Machine, link: Link) -> str:
    far = 1 < m.ranks_per_box < m.num_ranks and (
        max(link.src, link.dst) < m.num_ranks
        and link.src // m.ranks_per_box != link.dst // m.ranks_per_box
    )
    between = " between boxes" if far else ""
    return f"{_kind(m, link.src)} -> {_kind(m, link.dst)}{between}"


def _kind(m: Machine, node: int) -> str:
    return "rank" if node < m.num_ranks else m.node_name(node).rstrip("0123456789.")


def draw(machine: Machine) -> str:
    """Return a machine as an SVG picture.

    Of more than eight boxes the first eight are drawn, and it says so.
    """
    m = machine
    per_box = m.ranks_per_box if m.ranks_per_box > 1 else m.num_ranks
    num_boxes = m.num_ranks // per_box
    shown = min(num_boxes, _DRAWN_BOXES)
    size = _BOX * max(1.0, per_box / 16)
    places = _places(m, per_box, shown, size)
    width, height = size * shown, size + 70
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}"'
        f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        ' font-family="sans-serif" font-size="11" text-anchor="middle">'
    )
    out = [
        head,
        f"<title>{escape(m.name)}</title>",
        *(
            f'<rect x="{b * size + 4:.0f}" y="66" width="{size - 8:.0f}"'
            f' height="{size - 4:.0f}" rx="8" fill="none" stroke="#bbb"/>'
            for b in range(shown)
        ),
        *_lines(m, places),
        *_nodes(m, places),
    ]
    if shown < num_boxes:
        out.append(
            f'<text x="{width / 2:.0f}" y="14">the first {shown} of {num_boxes} boxes'
            "</text>"
        )
    return "\n".join([*out, "</svg>"]) + "\n"


_Places = dict[int, tuple[float, float]]


def _places(m: Machine, per_box: int, shown: int, size: float) -> _Places:
    """Return where the nodes stand."""
    places: _Places = {}
    radius = _RADIUS * size / _BOX
    for r in range(per_box * shown):
        angle = 2 * math.pi * (r % per_box) / per_box - math.pi / 2
        x, y = (r // per_box + 0.5) * size, 66 + size / 2
        places[r] = (x + radius * math.cos(angle), y + radius * math.sin(angle))
    joined: dict[int, set[int]] = defaultdict(set)
    for link in m.links:
        joined[link.src].add(link.dst)
    above, inside = [], defaultdict(list)
    for node in range(m.num_ranks, m.num_ranks + len(m.switches)):
        homes = {k // per_box for k in joined[node] if k < m.num_ranks}
        if len(homes) == 1:
            inside[homes.pop()].append(node)
        else:
            above.append(node)
    for box, nodes in inside.items():
        ranks = [{k for k in joined[node] if k < m.num_ranks} for node in nodes]
        apart = _apart(ranks, per_box)
        x, y = (box + 0.5) * size, 66 + size / 2
        for node, at in zip(nodes, apart, strict=True):
            if box < shown:
                places[node] = (x + radius * at.real, y + radius * at.imag)
    for i, node in enumerate(above):
        places[node] = ((i + 0.5) * size * shown / len(above), 40.0)
    return places


def _apart(joined: list[set[int]], per_box: int) -> list[complex]:
    """Return where the switches of a box stand, in radii from its middle.

    Towards their ranks, if that differs. Where two would stand in one place, or one
    joins ranks all round, they stand evenly.
    """
    means = []
    for nodes in joined:
        turns = [2j * math.pi * (r % per_box) / per_box for r in nodes]
        means.append(sum(cmath.exp(turn) for turn in turns) * -1j)
    found = [cmath.phase(mean) for mean in means]
    step = 2 * math.pi / len(joined)
    if all(abs(mean) > _ASIDE for mean in means) and all(
        abs(cmath.exp(1j * a) - cmath.exp(1j * b)) > _ASIDE
        for a, b in itertools.combinations(found, 2)
    ):
        return [0.7 * cmath.exp(1j * angle) for angle in found]
    reach = 0.45 if len(joined) > 1 else 0.0
    return [-1j * reach * cmath.exp(1j * step * i) for i in range(len(joined))]


def _lines(m: Machine, places: _Places) -> Iterator[str]:
    """Yield the links; the two directions of a pair are one line, dead if one is."""
    dead: dict[tuple[int, int], bool] = {}
    for link in m.links:
        if link.src in places and link.dst in places:
            pair = (min(link.src, link.dst), max(link.src, link.dst))
            dead[pair] = dead.get(pair, False) or link.bandwidth_gbytes_per_s == 0
    for (a, b), is_dead in dead.items():
        (x1, y1), (x2, y2) = places[a], places[b]
        style = 'stroke="#d00" stroke-dasharray="4"' if is_dead else _ALIVE
        yield (
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
            f' {style} stroke-width="1.0"/>'
        )


def _nodes(m: Machine, places: _Places) -> Iterator[str]:
    for node, (x, y) in places.items():
        if node < m.num_ranks:
            fill = "#999" if node in m.dead_ranks else "#2b6cb0"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE:g}" fill="{fill}"/>'
            colour = "#fff"
        else:
            name_width = 7 * len(m.node_name(node)) + 8
            yield (
                f'<rect x="{x - name_width / 2:.1f}" y="{y - 9:.1f}" rx="3"'
                f' width="{name_width}" height="18" fill="#f4e3b2" stroke="#b08d2b"/>'
            )
            colour = "#333"
        name = escape(m.node_name(node))
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" fill="{colour}">{name}</text>'
