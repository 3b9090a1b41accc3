"""The timeline: parts, calls and processor time of some ranks, in a stretch of time."""

from dataclasses import replace

import numpy as np
import pytest
from tests.pure.studio.made import recording

from stretto.errors import CallError
from stretto.studio import views
from stretto.studio.analysis.scene import Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.trace import CALL, MARKS, SAMPLE, CallKind, Comm


def scene(num_ranks=8, **more):
    made = recording(num_ranks, 30)
    rank = made.ranks[0].rank
    part = np.zeros(1, CALL)
    part["rank"], part["comm"], part["kind"] = rank, len(made.comms), len(made.kinds)
    part["seq"] = part["state"] = 1
    part["start"] = part["enqueue"] = made.calls["start"].min()
    part["end"] = part["start"] + 5_000
    sample = np.zeros(1, SAMPLE)
    sample["rank"], sample["time"] = rank, part["end"]
    sample["period"], sample["main"] = 4_000, 1_000
    made = replace(
        made,
        calls=np.concatenate([made.calls, part]),
        samples=sample,
        comms=(*made.comms, Comm(name=f"{MARKS} {rank}", members=(rank,))),
        kinds=(*made.kinds, CallKind(collective="forward")),
        **more,
    )
    return Scene(LoadedInputs(recording=made))


def test_it_has_parts_calls_and_curves():
    """Parts are in no other figure."""
    shown = scene()
    found = views.get("timeline").data(shown, {})

    assert 8 * 30 + 1 == len(found["row"])
    assert ["forward"] == [
        found["names"][k] for k in found["kind"][found["layer"] == 0].tolist()
    ]
    assert [0.25] == found["curve"].tolist()
    assert [] == found["notes"]
    assert 8 * 30 == len(shown.index.calls)
    assert "forward" not in views.get("overview").data(shown, {})["activity"]["names"]


def test_a_stretch_of_time_and_a_few_of_many_ranks():
    """The rank that holds the others up is among them, first."""
    found = views.get("timeline").data(scene(64), {"from": "100", "to": "900"})

    assert 12 == len(found["ranks"])
    assert 3 == found["ranks"][0]
    assert (found["end"] > 100).all()
    assert (found["begin"] < 900).all()
    with pytest.raises(CallError, match="to='5'"):
        views.get("timeline").data(scene(), {"from": "100", "to": "5"})


def test_what_is_missing_is_said():
    """With what records it."""
    bare = Scene(LoadedInputs(recording=recording(4, 9)))
    notes = " ".join(views.get("timeline").data(bare, {})["notes"])
    assert "record_function" in notes
    assert "`stretto trace` samples it" in notes
