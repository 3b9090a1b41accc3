"""Recordings that tests look at: written by hand, or drawn."""

import numpy as np

from stretto.trace import (
    CALL,
    STATES,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    LaneWait,
    RankInfo,
    Recording,
)

WORLD = "world"


def recording(calls, *, comms=None, kinds=None, waits=(), steps=(), num_ranks=None):
    """Return a recording of calls (rank, comm, seq, kind, state, start, end).

    `comms` are name: members, `kinds` texts or (collective, nbytes); all by place.
    """
    calls = list(calls)
    n = num_ranks or 1 + max((c[0] for c in calls), default=0)
    comms = comms or {WORLD: tuple(range(n))}
    kinds = kinds or [("all_reduce", 4096)]
    table = np.zeros(len(calls), CALL)
    said = [k if isinstance(k, CallKind) else kind(*k) for k in kinds]
    for row, (rank, comm, seq, k, state, start, end) in enumerate(calls):
        table[row] = (
            *(rank, comm, seq, k, STATES.index(state), said[k].nbytes, 7),
            *(start, start, end),
        )
    step_table = np.zeros(len(steps), STEP)
    for row, one in enumerate(steps):
        step_table[row] = tuple(
            STEP_KINDS.index(v) if isinstance(v, str) else v for v in one
        )
    return Recording(
        calls=table,
        steps=step_table,
        ranks=tuple(
            RankInfo(rank=r, num_ranks=n, host="a", pid=100 + r) for r in range(n)
        ),
        comms=tuple(Comm(name=name, members=who) for name, who in comms.items()),
        kinds=tuple(said),
        waits=tuple(waits),
    )


def kind(collective, nbytes=0, text=""):
    """Return a kind of calls."""
    return CallKind(
        collective=collective,
        nbytes=nbytes,
        dtype="float32",
        algorithm=f"{collective}/ring",
        text=text or f"{collective} of {nbytes} bytes",
    )


def wait(rank, comm, seq, peers, text="wait", lane=0):
    """Return what a lane waits for."""
    return LaneWait(
        rank=rank, comm=comm, seq=seq, peers=tuple(peers), text=text, lane=lane
    )
