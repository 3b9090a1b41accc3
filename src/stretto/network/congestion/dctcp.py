"""DCTCP: the window shrinks by the share of marked bytes, once a round trip."""

from __future__ import annotations

from typing import Any

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER"]

WINDOW, LINE, ROUND, PACKET = 1, 3, 4, 5
ALPHA, HEARD, MARKED, END, CUT = range(6, 11)
G, ADD = range(2)


def begin(state: Any, params: Any, told: Any) -> None:
    """Begin with what fills the way once."""
    state[WINDOW] = state[LINE] * state[ROUND] + state[PACKET]
    state[ALPHA] = 1.0


def on_ack(state: Any, params: Any, told: Any) -> None:
    """Add a packet a round trip; at a mark cut by half of alpha, once a round trip."""
    state[HEARD] += told[1]
    state[MARKED] += told[1] * told[2]
    if told[6] >= state[END]:
        share = state[MARKED] / max(1.0, state[HEARD])
        state[ALPHA] += params[G] * (share - state[ALPHA])
        state[HEARD] = state[MARKED] = 0.0
        state[END] = told[7]
    if told[2] > 0.0 and told[6] >= state[CUT]:
        cut = state[WINDOW] * (1.0 - state[ALPHA] / 2.0)
        state[WINDOW] = max(state[PACKET], cut)
        state[CUT] = told[7]
    state[WINDOW] += params[ADD] * state[PACKET] * told[1] / state[WINDOW]


def on_loss(state: Any, params: Any, told: Any) -> None:
    """Halve the window."""
    state[WINDOW] = max(state[PACKET], state[WINDOW] / 2.0)


_PAPER = "DCTCP, SIGCOMM'10"
OFFER = Congestion(
    name="dctcp",
    about="windows; cut once a round trip by the share of marks",
    parameters=(
        Parameter(name="g", value=1 / 16, unit="", source=_PAPER),
        Parameter(name="add", value=1, unit="packets a round trip", source=_PAPER),
    ),
    slots=5,
    acks=True,
    ecn_us=(24.0, 24.0, 1.0),
    begin=begin,
    on_ack=on_ack,
    on_loss=on_loss,
)
