"""HPCC: packets bring the load of every port; windows aim at 95 % of the fullest."""

from __future__ import annotations

from typing import Any

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER", "begin", "on_ack"]

RATE, WINDOW, LINE, ROUND, PACKET = 0, 1, 3, 4, 5
USED, BASE, STAGE, END = range(6, 10)
ETA, STAGES, ADD = range(3)


def begin(state: Any, params: Any, told: Any) -> None:
    """Begin with what fills the way once."""
    state[WINDOW] = state[BASE] = state[LINE] * state[ROUND]
    state[USED] = 1.0


def on_ack(state: Any, params: Any, told: Any) -> None:
    """Set the window so that the fullest link is as full as it shall be."""
    over = min(told[5], state[ROUND]) / state[ROUND]
    state[USED] += over * (told[4] - state[USED])
    full = state[USED] / params[ETA]
    add = params[ADD] * state[LINE] * state[ROUND]
    most = state[LINE] * state[ROUND]
    if full >= 1.0 or state[STAGE] >= params[STAGES]:
        window = state[BASE] / max(full, 0.1) + add
    else:
        window = state[BASE] + add
    state[WINDOW] = min(most, max(state[PACKET], window))
    state[RATE] = min(state[LINE], state[WINDOW] / state[ROUND])
    if told[6] > state[END]:
        if full >= 1.0 or state[STAGE] >= params[STAGES]:
            state[STAGE] = 0.0
        else:
            state[STAGE] += 1.0
        state[BASE] = state[WINDOW]
        state[END] = told[7]


_PAPER = "HPCC, SIGCOMM'19"
OFFER = Congestion(
    name="hpcc",
    about="windows; by the load that packets bring from every port",
    parameters=(
        Parameter(name="eta", value=0.95, unit="", source=_PAPER),
        Parameter(name="stages", value=5, unit="", source=_PAPER),
        Parameter(name="add", value=1e-3, unit="of the line rate", source=_PAPER),
    ),
    slots=4,
    acks=True,
    loads=True,
    begin=begin,
    on_ack=on_ack,
)
