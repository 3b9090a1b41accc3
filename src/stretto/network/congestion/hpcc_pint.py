"""HPCC-PINT: HPCC that hears the load as one byte, a logarithm."""

from __future__ import annotations

import math
from typing import Any

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER"]

RATE, WINDOW, LINE, ROUND, PACKET = 0, 1, 3, 4, 5
USED, BASE, STAGE, END = range(6, 10)
ETA, STAGES, ADD, LOG = range(4)


def begin(state: Any, params: Any, told: Any) -> None:
    """Begin with what fills the way once."""
    state[WINDOW] = state[BASE] = state[LINE] * state[ROUND]
    state[USED] = 1.0


def on_ack(state: Any, params: Any, told: Any) -> None:
    """Do what HPCC does, with the load rounded to a power of the base."""
    over = min(told[5], state[ROUND]) / state[ROUND]
    load = told[4]
    if load > 0.0:
        step = math.log(params[LOG])
        load = math.exp(step * math.floor(math.log(load) / step + 0.5))
    state[USED] += over * (load - state[USED])
    full = state[USED] / params[ETA]
    add = params[ADD] * state[LINE] * state[ROUND]
    if full >= 1.0 or state[STAGE] >= params[STAGES]:
        window = state[BASE] / max(full, 0.1) + add
    else:
        window = state[BASE] + add
    state[WINDOW] = min(state[LINE] * state[ROUND], max(state[PACKET], window))
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
    name="hpcc-pint",
    about="HPCC with the load in one byte",
    parameters=(
        Parameter(name="eta", value=0.95, unit="", source=_PAPER),
        Parameter(name="stages", value=5, unit="", source=_PAPER),
        Parameter(name="add", value=1e-3, unit="of the line rate", source=_PAPER),
        Parameter(name="base", value=1.05, unit="", source="PINT, SIGCOMM'20"),
    ),
    slots=4,
    acks=True,
    loads=True,
    begin=begin,
    on_ack=on_ack,
)
