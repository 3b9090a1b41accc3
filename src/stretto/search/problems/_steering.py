"""Cubic, steered by a policy: a congestion control for the packet engine.

The window is Cubic's times 2 to the power of twice the policy's value, cut to -1 to 1.
Where that value breaks a promise, Cubic's own window is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from stretto.network.congestion import cubic
from stretto.search.language import Bounds, Term, bounds, code_of
from stretto.search.language.machine import DEEPEST, value_of
from stretto.search.quick import quick
from stretto.topology.traffic import Congestion, Parameter
from stretto.topology.traffic.congestion import OWN

__all__ = ["FEATURES", "FELL", "certified", "steered"]

FEATURES = ("wait", "trend", "loss", "used", "window")
"""Of a flow: what the round trip takes beyond its least, in such; how fast that grows;
the share of packets lost of late; the share of the first link's rate that it has; and
Cubic's window, in rates times round trips."""

_VOID = "void(float64[::1],float64[::1],float64[::1])"
_cubic_begin, _cubic_ack, _cubic_loss = (
    quick(_VOID)(f) for f in (cubic.begin, cubic.on_ack, cubic.on_loss)
)
_OF_CUBIC = len(cubic.OFFER.parameters)
_SPARED, _LENGTH = _OF_CUBIC, _OF_CUBIC + 1
_CODE = _OF_CUBIC + 2
WINDOW, LINE, ROUND, PACKET = 1, 3, 4, 5
_BASE, _LEAST, _SMOOTH, _LOST, _SINCE, _BYTES = range(OWN + 4, OWN + 10)
FELL = OWN + 10
"""Where a flow counts how often Cubic's own window was taken."""
_SEEN = FELL + 1
_STACK = _SEEN + len(FEATURES)
_FREE, _LATE, _LOSSY = 0.1, 1.0, 0.02
"""Waits below which nothing is in the way, and above which much is; loss that is much.
"""


def begin(state: Any, params: Any, told: Any) -> None:
    """Begin as Cubic does."""
    _cubic_begin(state, params, told)
    state[_BASE], state[_LEAST], state[_SINCE] = state[WINDOW], 1e9, told[0]


def on_loss(state: Any, params: Any, told: Any) -> None:
    """Let Cubic cut its window."""
    state[WINDOW] = state[_BASE]
    _cubic_loss(state, params, told)
    state[_BASE] = state[WINDOW]
    state[_LOST] += (1.0 - state[_LOST]) * 0.1


def on_ack(state: Any, params: Any, told: Any) -> None:
    """Let Cubic grow its window, and steer by what is seen."""
    state[WINDOW] = state[_BASE]
    _cubic_ack(state, params, told)
    state[_BASE] = base = state[WINDOW]
    state[_LEAST] = least = min(state[_LEAST], told[3])
    wait = told[3] / least - 1.0
    state[_SMOOTH] += 0.1 * (wait - state[_SMOOTH])
    state[_LOST] *= 0.99
    state[_BYTES] += told[1]
    if told[0] - state[_SINCE] > least:
        rate = state[_BYTES] / (told[0] - state[_SINCE])
        state[_SEEN + 3] = min(1.0, rate / state[LINE])
        state[_SINCE], state[_BYTES] = told[0], 0.0
    state[_SEEN], state[_SEEN + 1] = min(8.0, wait), wait - state[_SMOOTH]
    state[_SEEN + 1] = max(-1.0, min(1.0, state[_SEEN + 1]))
    state[_SEEN + 2] = state[_LOST]
    state[_SEEN + 4] = min(8.0, base / (state[LINE] * state[ROUND]))
    long = int(params[_LENGTH])
    turn = value_of(
        params[_CODE : _CODE + long],
        params[_CODE + long : _CODE + 2 * long],
        state[_SEEN:_STACK],
        state[_STACK : _STACK + DEEPEST],
    )
    turn = max(-1.0, min(1.0, turn))
    if params[_SPARED] > 0.0:
        lost, late = state[_LOST] >= _LOSSY, state[_SEEN] >= _LATE
        free = state[_LOST] < 1e-6 and state[_SEEN] <= _FREE
        if (turn < 0.0 and free) or (turn > 0.0 and (late or lost)):
            turn = 0.0
            state[FELL] += 1.0
    state[WINDOW] = max(state[PACKET], base * 2.0 ** (2.0 * turn))


def steered(term: Term, *, name: str = "searched", spared: bool = True) -> Congestion:
    """Return a policy as a congestion control; `spared`: where it fails, Cubic is."""
    code = code_of(term, FEATURES)
    mine = [float(spared), float(len(code.words)), *code.words, *code.values]
    return Congestion(
        name=name,
        about="Cubic, its window steered by a policy that was searched",
        parameters=(
            *cubic.OFFER.parameters,
            *(
                Parameter(name=f"code{i}", value=value, unit="", source="searched")
                for i, value in enumerate(mine)
            ),
        ),
        slots=_STACK + DEEPEST - OWN,
        acks=True,
        ecn_us=(1e6, 1e6, 1.0),
        begin=begin,
        on_ack=on_ack,
        on_loss=on_loss,
    )


_ANY: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"wait": (0, 8), "trend": (-1, 1), "loss": (0, 1), "used": (0, 1), "window": (0, 8)}
)
_PROMISES: tuple[tuple[str, Mapping[str, tuple[float, float]], int], ...] = (
    ("does not cut where nothing waits", {"wait": (0, _FREE), "loss": (0, 0)}, 1),
    ("does not grow where much waits", {"wait": (_LATE, 8)}, -1),
    ("does not grow where much is lost", {"loss": (_LOSSY, 1)}, -1),
)
_PARTS, _NOISE, _STEADY = 5, 0.05, 0.25
"""Parts of a side of a box; how wrong a wait may be; how much a value then changes."""


def certified(term: Term) -> dict[str, float]:
    """Return the share of its boxes in which each promise is proved, and the mean."""
    found = {}
    for said, where, sign in _PROMISES:
        low, high = bounds(term, _parts({**_ANY, **where}))
        found[said] = float(np.mean((low >= 0) if sign > 0 else (high <= 0)))
    states = {k: (low + high) / 2 for k, (low, high) in _parts(_ANY, every=40).items()}
    near = {name: (middle, middle) for name, middle in states.items()}
    near["wait"] = states["wait"] * (1 - _NOISE), states["wait"] * (1 + _NOISE)
    low, high = (np.clip(side, -1, 1) for side in bounds(term, near))
    found["hears no noise"] = float(np.mean(high - low <= _STEADY))
    return {**found, "certified": sum(found.values()) / len(found)}


def _parts(
    box: Mapping[str, tuple[float, float]], *, every: int = _PARTS
) -> dict[str, Bounds]:
    """Return a box cut into parts along what waits, what is used, and the window."""
    sides = {"wait": every, "trend": 2, "loss": 2, "used": 2, "window": 2}
    edges = [np.linspace(*box[name], many + 1) for name, many in sides.items()]
    lows = np.meshgrid(*(e[:-1] for e in edges), indexing="ij")
    highs = np.meshgrid(*(e[1:] for e in edges), indexing="ij")
    return {
        name: (low.ravel(), high.ravel())
        for name, low, high in zip(sides, lows, highs, strict=True)
    }
