"""Who sent how much to whom: a matrix of ranks by ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.studio.analysis.scene import RECORD_STEPS, Args, Scene
from stretto.studio.inputs.loading import LoadedInputs

TITLE = "Traffic"
ORDER = 3
_MOST_CELLS = 1024
"""Of a side; more ranks share rows and columns."""


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a recording."""
    return loaded.recording is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return bytes, and the rate while something was on its way, from rank by to."""
    found, world = scene.traffic, scene.index.world
    n = found.num_ranks
    per_cell = -(-n // _MOST_CELLS) if n else 1
    nbytes, busy = _summed(found.nbytes, per_cell), _summed(found.busy_us, per_cell)
    rate = np.divide(nbytes, busy * 1e3, out=np.zeros_like(nbytes), where=busy > 0)
    hosts = {info.rank: info.host for info in scene.index.recording.ranks}
    notes = []
    if not len(scene.index.steps):
        notes.append(
            "No steps were recorded: who sent what to whom is not known. "
            + RECORD_STEPS
        )
    if found.unknown_nbytes:
        notes.append(
            f"{found.unknown_nbytes / 1e6:.4g} MB of steps with several peers are left "
            "out: their plan is not known here."
        )
    if per_cell > 1:
        notes.append(f"A row is {per_cell} ranks.")
    return {
        "ranks": world[::per_cell].astype(np.int32),
        "hosts": [hosts.get(int(rank), "") for rank in world[::per_cell]],
        "side": len(nbytes),
        "nbytes": nbytes.ravel().astype(np.float32),
        "gbytes_per_s": rate.ravel().astype(np.float32),
        "notes": notes,
    }


def _summed(matrix: NDArray[np.float64], per_cell: int) -> NDArray[np.float64]:
    if per_cell == 1:
        return matrix
    at = np.arange(0, len(matrix), per_cell)
    return np.add.reduceat(np.add.reduceat(matrix, at, axis=0), at, axis=1)
