"""Collectives by what they are and how large: times, waits, bandwidth."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stretto.studio.analysis.groups import groups
from stretto.studio.analysis.scene import NO_CALLS, Args, Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.studio.units import size_name

TITLE = "Operations"
ORDER = 4


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a recording."""
    return loaded.recording is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return a row for each group of alike collectives."""
    rows = [
        {**asdict(one), "size": size_name(one.mean_nbytes)}
        for one in groups(scene.index)
    ]
    return {"rows": rows, "notes": [] if rows else [NO_CALLS]}
