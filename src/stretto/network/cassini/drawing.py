"""Circles as SVG: for every link, who asks for it when, before shifts and after."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.network.cassini.groups import Affinity
from stretto.network.cassini.shifts import Shifts, score
from stretto.topology import Machine

__all__ = ["svg"]

_SIZE, _INNER, _OUTER, _MARGIN = 220.0, 34.0, 96.0, 46.0
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2")


def svg(machine: Machine, plan: Affinity) -> str:
    """Return a row for every contended link: its circle as it is, and shifted."""
    parts: list[str] = []
    top = 10.0
    for group in plan.groups:
        fit = group.fit
        before = score(fit.problem, dict.fromkeys(fit.parts, 0))
        for link in fit.problem.asks:
            parts.append(_row(machine.links[link].name, group.names, link, top, before))
            parts.append(_circle(_SIZE * 2.1, top, fit, link, "shifted"))
            top += _SIZE + _MARGIN
    frame = f'width="760" height="{top:.0f}" viewBox="0 0 760 {top:.0f}"'
    body = "".join(parts) or '<text x="10" y="24">no link is contended</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} '
        f'font-family="sans-serif" font-size="13">{body}</svg>\n'
    )


def _row(name: str, jobs: Sequence[str], link: int, top: float, before: Shifts) -> str:
    found = [_circle(_SIZE * 1.0, top, before, link, "as it is")]
    period = before.problem.circle.perimeter_ms
    said = f"link {name}", f"circle {period:.4g} ms"
    for i, text in enumerate(said):
        found.append(
            f'<text x="10" y="{top + 20 + 18 * i:.0f}">{html.escape(text)}</text>'
        )
    on = before.problem.asks[link]
    for i, job in enumerate(on):
        name = jobs[before.problem.jobs.index(job)]
        y = top + 62 + 18 * i
        found.append(
            f'<rect x="10" y="{y - 10:.0f}" width="10" height="10" '
            f'fill="{_colour(before, job)}"/>'
            f'<text x="26" y="{y:.0f}">{html.escape(name[:26])}</text>'
        )
    return "".join(found)


def _colour(fit: Shifts, job: int) -> str:
    return _COLOURS[fit.problem.jobs.index(job) % len(_COLOURS)]


def _circle(left: float, top: float, fit: Shifts, link: int, title: str) -> str:
    """Draw what jobs ask, one on the other; red is what the link has not."""
    problem = fit.problem
    capacity = problem.capacity[link]
    asks = {
        job: np.roll(ask, fit.parts[job]) for job, ask in problem.asks[link].items()
    }
    scale = (_OUTER - _INNER) / max(capacity, float(sum(asks.values()).max()))
    x, y = left + _SIZE / 2, top + _SIZE / 2
    below = np.zeros(problem.circle.parts)
    found = []
    for job, ask in asks.items():
        found += _ring(x, y, below * scale, ask * scale, _colour(fit, job))
        below = below + ask
    full = _INNER + capacity * scale
    found.append(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{full:.1f}" fill="none" '
        'stroke="#888" stroke-dasharray="3 3"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">'
        f"{fit.scores[link]:.2f}</text>"
        f'<text x="{x:.1f}" y="{top + _SIZE + 16:.1f}" text-anchor="middle">'
        f"{title}</text>"
    )
    return "".join(found)


def _ring(x: float, y: float, low: Any, high: Any, colour: str) -> list[str]:
    """Draw arcs of equal height as one path each."""
    size, found, start = len(low), [], 0
    for at in range(1, size + 1):
        same = at < size and low[at] == low[start] and high[at] == high[start]
        if same and at - start < size // 2:
            continue
        if high[start] > 0:
            a, b = 2 * math.pi * start / size, 2 * math.pi * at / size
            inner, outer = _INNER + low[start], _INNER + low[start] + high[start]
            points = [
                (x + r * math.sin(angle), y - r * math.cos(angle))
                for r, angle in ((inner, a), (outer, a), (outer, b), (inner, b))
            ]
            (x1, y1), (x2, y2), (x3, y3), (x4, y4) = points
            found.append(
                f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}'
                f"A{outer:.1f} {outer:.1f} 0 0 1 {x3:.1f} {y3:.1f}"
                f"L{x4:.1f} {y4:.1f}"
                f'A{inner:.1f} {inner:.1f} 0 0 0 {x1:.1f} {y1:.1f}Z" fill="{colour}"/>'
            )
        start = at
    return found
