"""DCQCN: receivers of marked packets complain, senders slow down and recover by timer.

The byte counter of the paper is left out, as in the HPCC authors' simulations: rates
are raised by the timer alone.
"""

from __future__ import annotations

from typing import Any

from stretto.topology.traffic import Congestion, Parameter

__all__ = ["OFFER"]

RATE, WINDOW, WHEN, LINE = range(4)
TARGET, ALPHA, ALPHA_AT, RAISE_AT, STAGE = range(6, 11)
G, ALPHA_US, RAISE_US, STAGES, ADD, HYPER, LEAST = range(7)


def begin(state: Any, params: Any, told: Any) -> None:
    """Begin at line rate."""
    state[TARGET], state[ALPHA], state[WHEN] = state[LINE], 1.0, 0.0


def on_cnp(state: Any, params: Any, told: Any) -> None:
    """Cut the rate by half of alpha, and begin to recover anew."""
    state[TARGET] = state[RATE]
    cut = state[RATE] * (1.0 - state[ALPHA] / 2.0)
    state[RATE] = max(params[LEAST] * state[LINE], cut)
    state[ALPHA] = (1.0 - params[G]) * state[ALPHA] + params[G]
    state[ALPHA_AT] = told[0] + params[ALPHA_US]
    state[RAISE_AT] = told[0] + params[RAISE_US]
    state[STAGE] = 0.0


def on_timer(state: Any, params: Any, told: Any) -> None:
    """Let alpha decay; recover, then probe for more.

    The paper's timers run all the time, ours only while there is something to send:
    what they missed since they were due is done now.
    """
    now = told[0] + 1e-6
    if state[RAISE_AT] == 0.0:  # the first that it sends: timers begin
        state[ALPHA_AT] = now + params[ALPHA_US]
        state[RAISE_AT] = now + params[RAISE_US]
    if state[ALPHA_AT] <= now:
        missed = int((now - state[ALPHA_AT]) / params[ALPHA_US])
        state[ALPHA] *= (1.0 - params[G]) ** (1 + missed)
        state[ALPHA_AT] = told[0] + params[ALPHA_US]
    if state[RAISE_AT] <= now:
        missed = int((now - state[RAISE_AT]) / params[RAISE_US])
        for _ in range(1 + missed):
            state[STAGE] += 1.0
            if state[STAGE] > 2.0 * params[STAGES]:
                state[TARGET] += params[HYPER] * state[LINE]
            elif state[STAGE] > params[STAGES]:
                state[TARGET] += params[ADD] * state[LINE]
            state[TARGET] = min(state[TARGET], state[LINE])
            state[RATE] = (state[RATE] + state[TARGET]) / 2.0
        state[RAISE_AT] = told[0] + params[RAISE_US]
    state[WHEN] = min(state[ALPHA_AT], state[RAISE_AT])


_PAPER = "DCQCN, SIGCOMM'15"
_LEAST = "HPCC: 1 Gb/s at 100 Gb/s"
OFFER = Congestion(
    name="dcqcn",
    about="rates; cut on complaints of marks, raised by timer",
    parameters=(
        Parameter(name="g", value=1 / 256, unit="", source=_PAPER),
        Parameter(name="alpha_timer", value=55, unit="us", source=_PAPER),
        Parameter(name="raise_timer", value=55, unit="us", source=_PAPER),
        Parameter(name="stages", value=5, unit="", source=_PAPER),
        Parameter(name="add", value=1e-3, unit="of the line rate", source=_PAPER),
        Parameter(name="hyper", value=1e-2, unit="of the line rate", source=_PAPER),
        Parameter(name="least", value=1e-2, unit="of the line rate", source=_LEAST),
    ),
    slots=5,
    cnp_us=50,
    begin=begin,
    on_cnp=on_cnp,
    on_timer=on_timer,
)
