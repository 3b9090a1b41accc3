"""Cubic: windows that grow with the cube of the time since the last loss or mark."""

from __future__ import annotations

from typing import Any

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER"]

WINDOW, LINE, ROUND, PACKET = 1, 3, 4, 5
MOST, SINCE, SLOW, END = range(6, 10)
GROWTH, KEEP = range(2)


def begin(state: Any, params: Any, told: Any) -> None:
    """Begin with ten packets, doubling each round trip."""
    state[WINDOW], state[SLOW] = 10.0 * state[PACKET], 1.0


def on_loss(state: Any, params: Any, told: Any) -> None:
    """Cut the window, once for all that was sent before."""
    if told[6] >= state[END]:
        state[MOST], state[SINCE], state[SLOW] = state[WINDOW], told[0], 0.0
        state[WINDOW] = max(2.0 * state[PACKET], state[WINDOW] * params[KEEP])
        state[END] = told[7]


def on_ack(state: Any, params: Any, told: Any) -> None:
    """Grow; a mark is as good as a loss."""
    if told[2] > 0.0:
        if told[6] >= state[END]:
            state[MOST], state[SINCE], state[SLOW] = state[WINDOW], told[0], 0.0
            state[WINDOW] = max(2.0 * state[PACKET], state[WINDOW] * params[KEEP])
            state[END] = told[7]
        return
    if state[SLOW] > 0.0:
        state[WINDOW] += told[1]
        return
    most = state[MOST] / state[PACKET]
    late = (most * (1.0 - params[KEEP]) / params[GROWTH]) ** (1.0 / 3.0)
    t = (told[0] - state[SINCE]) / 1e3 - late
    want = (params[GROWTH] * t * t * t + most) * state[PACKET]
    if want > state[WINDOW]:
        gain = min(want - state[WINDOW], state[WINDOW])
        state[WINDOW] += gain * told[1] / state[WINDOW]
    state[WINDOW] += 0.5 * state[PACKET] * told[1] / state[WINDOW]


OFFER = Congestion(
    name="cubic",
    about="windows; a cubic of the time since the last loss or mark",
    parameters=(
        Parameter(
            name="growth", value=0.4, unit="packets/ms^3",
            source="RFC 9438, in ms instead of s: data centres are that much shorter",
        ),
        Parameter(name="keep", value=0.7, unit="", source="RFC 9438"),
    ),
    slots=4,
    acks=True,
    begin=begin,
    on_ack=on_ack,
    on_loss=on_loss,
)  # fmt: skip
