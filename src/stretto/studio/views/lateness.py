"""Who came late: ranks by collectives, the delay behind the first rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.studio.analysis.scene import NO_CALLS, Args, Scene, number
from stretto.studio.inputs.loading import LoadedInputs
from stretto.watch import Late, holdup, lateness, slow_first

TITLE = "Lateness"
ORDER = 5
_MOST_COLUMNS, _MOST_ROWS = 640, 1024


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a recording."""
    return loaded.recording is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return the most that a rank was late by, in each stretch of collectives."""
    index = scene.index
    comms = index.recording.comms
    used = np.bincount(index.calls["comm"], minlength=max(1, len(comms)))
    comm = number(args, "comm", int(used.argmax()), most=max(0, len(comms) - 1))
    of_comm = np.flatnonzero(index.instance_comm == comm)
    first = number(args, "from", 0, most=max(0, len(of_comm) - 1))
    last = number(args, "to", len(of_comm), low=first, most=max(first, len(of_comm)))
    chosen = of_comm[first:last]  # instances are numbered by comm, then number
    calling = np.zeros(len(index.ranks), bool)
    calling[index.row[index.calls["comm"] == comm]] = True
    there = index.ranks[calling]
    columns = max(1, min(_MOST_COLUMNS, len(chosen)))
    rows = max(1, min(_MOST_ROWS, len(there)))
    worst = np.full(rows * columns, -1.0, np.float64)
    latest: list[Late] = []
    if len(chosen):
        mine = (index.instance >= chosen[0]) & (index.instance <= chosen[-1])
        at = (index.instance[mine] - chosen[0]) * columns // len(chosen)
        row = np.searchsorted(there, index.calls["rank"][mine])
        late = index.late_us[mine]
        np.maximum.at(worst, row * rows // len(there) * columns + at, late)
        latest = slow_first(lateness(index.calls[mine]), holdup(index.calls[mine]))
    full = _full(worst.reshape(rows, columns))
    edges = np.arange(columns) * max(1, len(chosen)) // columns
    return {
        "comm": comm,
        "comms": [
            {"id": i, "name": c.name, "ranks": len(c.members), "calls": int(used[i])}
            for i, c in enumerate(comms)
        ],
        "from": first,
        "to": last,
        "of": len(of_comm),
        "rows": rows,
        "columns": columns,
        "ranks": there[np.arange(rows) * len(there) // rows].astype(np.int32)
        if len(there)
        else np.zeros(1, np.int32),
        "ranks_a_row": max(1, -(-len(there) // rows)),
        "seq": index.instance_seq[chosen[edges]].astype(np.float64)
        if len(chosen)
        else np.zeros(1),
        "kind": index.instance_kind[chosen[edges]].astype(np.int32)
        if len(chosen)
        else np.zeros(1, np.int32),
        "kinds": [k.collective for k in index.recording.kinds],
        "full_us": full,
        "late_us": worst.astype(np.float32),
        "worst": [
            {"rank": one.rank, "p50_us": one.p50_us, "kept_us": one.kept_us}
            for one in latest[:10]
        ],
        "clock_error_us": index.recording.error_ns / 1e3,
        "notes": [] if len(index.calls) else [NO_CALLS],
    }


def _full(worst: NDArray[np.float64]) -> float:
    """Return the lateness whose colour is the last: one outlier must not hide the rest.

    Three times what the latest rank usually is late by, or the most, if that is less.
    """
    usual = max(
        (float(np.median(row[row >= 0])) for row in worst if (row >= 0).any()),
        default=0.0,
    )
    most = float(worst.max(initial=0.0))
    return min(3 * usual, most) if usual > 0 else max(most, 0.0)
