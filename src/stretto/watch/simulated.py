"""A simulation as a recording: what its lanes did, in the simulator's time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stretto.trace import (
    CALL,
    NOBODY,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    Event,
    RankInfo,
    Recording,
    Run,
)


def simulated(
    events: Iterable[Event], kind: CallKind, num_ranks: int, *, machine: str = ""
) -> Recording:
    """Return the events of one call as a recording, its times from 0 on.

    A lane that waits does so for all of the event; one that moves has what it needs.
    """
    found = [event for event in events if event.name in _KIND_OF]
    steps = np.zeros(len(found), STEP)
    steps["seq"] = 1
    steps["kind"] = [_KIND_OF[event.name] for event in found]
    for name in ("rank", "lane", "step", "nbytes"):
        steps[name] = [getattr(event, name) for event in found]
    steps["tile"] = [event.epoch for event in found]
    steps["peer"] = [e.peer if e.peer >= 0 else NOBODY for e in found]
    steps["begin"] = [round(event.t0_us * 1e3) for event in found]
    steps["end"] = [round(event.t1_us * 1e3) for event in found]
    waits = np.array([event.kind == "wait" for event in found], bool)
    steps["wait"] = (steps["end"] - steps["begin"]) * waits
    calls = np.zeros(num_ranks, CALL)
    calls["rank"], calls["seq"], calls["state"] = np.arange(num_ranks), 1, 1
    calls["nbytes"] = kind.nbytes
    calls["start"] = calls["enqueue"] = 1  # 0 would say that nobody looked
    ends = np.ones(num_ranks, np.int64)
    np.maximum.at(ends, steps["rank"], steps["end"])
    calls["end"] = np.maximum(ends, 2)
    return Recording(
        calls=calls,
        steps=steps[np.lexsort((steps["begin"], steps["lane"], steps["rank"]))],
        ranks=tuple(
            RankInfo(rank=r, num_ranks=num_ranks, host=machine, clock="virtual")
            for r in range(num_ranks)
        ),
        comms=(Comm(name="world", members=tuple(range(num_ranks))),),
        kinds=(kind,),
        run=Run(title=f"simulation of {kind.text or kind.collective}", machine=machine),
    )


_KIND_OF = {name: kind for kind, name in enumerate(STEP_KINDS)}
