"""What each rank did over time: parts of steps, calls, and its processor time."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.studio.analysis.scene import NO_CALLS, Args, Scene, number
from stretto.studio.inputs.loading import LoadedInputs
from stretto.trace import MARKS, Recording
from stretto.watch import holdup

TITLE = "Timeline"
ORDER = 1
_MOST_RANKS, _MOST_BARS, _MOST_POINTS = 12, 12_000, 12_000
_MARK, _CALL = 0, 1
_LAST_NS = (1 << 63) - 1


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a recording."""
    return loaded.recording is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return bars and curves of some ranks, `from` and `to` so many us."""
    recording, index = scene.loaded.recording, scene.index
    assert recording is not None  # `offered` looked
    span = max(1, int(index.span_us) + 1)
    low = number(args, "from", 0, most=span - 1)
    high = number(args, "to", span, low=low + 1, most=span)
    ranks = _ranks(recording)
    begin, end = (index.origin_ns + us * 1000 for us in (low, high))
    calls = recording.calls
    start = np.where(calls["start"] > 0, calls["start"], calls["enqueue"])
    last = min(index.origin_ns + span * 1000, _LAST_NS)
    stop = np.where(calls["end"] > 0, calls["end"], last)
    here = np.isin(calls["rank"], ranks) & (stop > begin) & (start < end)
    rows = np.flatnonzero(here)
    rows = rows[np.argsort(start[rows] - stop[rows], kind="stable")]  # the longest stay
    left, rows = max(0, len(rows) - _MOST_BARS), rows[:_MOST_BARS]
    marks = [c for c, comm in enumerate(recording.comms) if comm.name.startswith(MARKS)]
    samples = recording.samples
    inside = (samples["time"] > begin) & (samples["time"] - samples["period"] < end)
    samples = samples[np.isin(samples["rank"], ranks) & inside]
    samples = samples[:: 1 + len(samples) // _MOST_POINTS]
    shares = samples["main"] / np.maximum(1, samples["period"])
    place = {rank: row for row, rank in enumerate(ranks)}
    notes = [] if len(recording.calls) else [NO_CALLS]
    if len(recording.ranks) > len(ranks):
        notes.append(
            f"{len(ranks)} of {len(recording.ranks):,} ranks are shown: those that "
            "held the others up first."
        )
    if left:
        notes.append(f"{left:,} shorter bars are left out: come closer to see them.")
    if not marks:
        notes.append(
            "No names of parts were recorded: in PyTorch, record_function and steps "
            "are noted under `stretto trace`."
        )
    if not len(recording.samples):
        notes.append(
            "No processor time was recorded: `stretto trace` samples it, and what "
            "another program wrote has none."
        )
    return {
        "from": low,
        "to": high,
        "span": span,
        "ranks": ranks,
        "names": [kind.collective for kind in recording.kinds],
        "row": np.array([place[r] for r in calls["rank"][rows].tolist()], np.int32),
        "layer": np.where(np.isin(calls["comm"][rows], marks), _MARK, _CALL).astype(
            np.int32
        ),
        "kind": calls["kind"][rows].astype(np.int32),
        "begin": index.us(start[rows]).astype(np.float64),
        "end": index.us(stop[rows]).astype(np.float64),
        "curve_row": np.array([place[r] for r in samples["rank"].tolist()], np.int32),
        "curve_at": index.us(samples["time"]).astype(np.float64),
        "curve": shares.astype(np.float32),
        "notes": notes,
    }


def _ranks(recording: Recording) -> list[int]:
    """Return the ranks that are shown: those who held others up, then the first."""
    every = [info.rank for info in recording.ranks]
    if len(every) <= _MOST_RANKS:
        return every
    slow = list(holdup(recording.without(MARKS).calls).ranks)[: _MOST_RANKS // 2]
    rest = [rank for rank in every if rank not in slow]
    return slow + rest[: _MOST_RANKS - len(slow)]
