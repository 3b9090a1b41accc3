"""Who waits for whom when the recording ends: ranks that hang, and why."""

from __future__ import annotations

from typing import Any

from stretto import watch
from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.trace import STATES, Recording

TITLE = "Waiting"
ORDER = 10
_RUNNING = STATES.index("running")
_MOST_ROWS = 2048


def offered(loaded: LoadedInputs) -> bool:
    """Return whether a call was under way when the recording was made."""
    recording = loaded.recording
    return recording is not None and (
        bool(recording.waits) or bool((recording.calls["state"] == _RUNNING).any())
    )


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return the diagnosis in words, and where each rank stands."""
    recording = scene.index.recording
    rows = _rows(recording)
    notes = []
    if len(rows) > _MOST_ROWS:
        notes.append(f"The first {_MOST_ROWS:,} of {len(rows):,} rows are shown.")
    return {
        "page": watch.page(watch.diagnose(recording), recording),
        "rows": rows[:_MOST_ROWS],
        "notes": notes,
    }


def _rows(recording: Recording) -> list[dict[str, Any]]:
    """Return the last call of every rank, in each communicator; the furthest last."""
    rows = [
        {
            "comm": recording.comms[stand.comm].name,
            "rank": stand.world,
            "seq": stand.seq,
            "call": stand.kind.text or stand.kind.collective if stand.kind else "",
            "state": stand.state if stand.seq else "no call",
            "step": stand.waits[0].text if stand.waits else "",
        }
        for each in watch.stands(recording)
        for stand in each
    ]
    return sorted(rows, key=lambda row: (row["comm"], row["seq"], row["rank"]))
