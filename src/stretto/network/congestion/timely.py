"""TIMELY: rates by the round trip's time and whether it grows."""

from __future__ import annotations

from typing import Any

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER"]

RATE, LINE, ROUND = 0, 3, 4
BEFORE, SLOPE, GOOD, NEXT = range(6, 10)
ADD, NEW, CUT, LOW, HIGH, LEAST = range(6)


def on_ack(state: Any, params: Any, told: Any) -> None:
    """Once a round trip, raise the rate or cut it."""
    if told[0] < state[NEXT]:
        return
    took = told[3]
    if state[BEFORE] == 0.0:
        state[BEFORE] = took
    change = took - state[BEFORE]
    state[BEFORE] = took
    state[SLOPE] += params[NEW] * (change - state[SLOPE])
    slope = state[SLOPE] / state[ROUND]
    rate, add = state[RATE], params[ADD] * state[LINE]
    if took < params[LOW]:
        rate += add
        state[GOOD] = 0.0
    elif took > params[HIGH]:
        rate *= 1.0 - params[CUT] * (1.0 - params[HIGH] / took)
        state[GOOD] = 0.0
    elif slope <= 0.0:
        state[GOOD] += 1.0
        rate += add * (5.0 if state[GOOD] >= 5.0 else 1.0)
    else:
        rate *= 1.0 - params[CUT] * min(1.0, slope)
        state[GOOD] = 0.0
    state[RATE] = min(state[LINE], max(params[LEAST] * state[LINE], rate))
    state[NEXT] = told[0] + max(took, state[ROUND])


_PAPER = "TIMELY, SIGCOMM'15 (recalled)"
_LEAST = "HPCC: 1 Gb/s at 100 Gb/s"
OFFER = Congestion(
    name="timely",
    about="rates; by the round trip's time and its gradient",
    parameters=(
        Parameter(name="add", value=1e-3, unit="of the line rate", source="HPCC"),
        Parameter(name="new", value=0.875, unit="", source=_PAPER),
        Parameter(name="cut", value=0.8, unit="", source=_PAPER),
        Parameter(name="low", value=50, unit="us", source=_PAPER),
        Parameter(name="high", value=500, unit="us", source=_PAPER),
        Parameter(name="least", value=1e-2, unit="of the line rate", source=_LEAST),
    ),
    slots=4,
    acks=True,
    on_ack=on_ack,
)
