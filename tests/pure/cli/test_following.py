"""`stretto simulate --then`: a step of several calls, timed and recorded."""

import json

import numpy as np
import pytest

from stretto.cli import following
from stretto.executors import sim
from stretto.studio import NamedInputs, Studio
from stretto.trace import MARKS, read

STEP = (
    *("simulate", "all_gather/ring", "--machine", "h200x4", "--size", "64K"),
    *("--then", "compute 300us", "--then", "all_reduce/ring 1M"),
    *("--then", "compute 1ms", "--then", "all_gather/ring 64K"),
)


def test_a_step_is_the_sum_of_its_parts(stretto):
    """Each call takes what it takes alone; computing what was said."""
    rows = json.loads(stretto(*STEP, "--repeat", "3", "--json")[1])["rows"]
    alone = {
        (name, size): json.loads(
            stretto("simulate", name, "--machine", "h200x4", "--size", size, "--json")[
                1
            ]
        )["rows"][0]["time_us"]
        for name, size in (("all_gather/ring", "64K"), ("all_reduce/ring", "1M"))
    }
    gather, total = alone["all_gather/ring", "64K"], alone["all_reduce/ring", "1M"]

    assert [gather, 300, total, 1000, gather] == [row["time_us"] for row in rows[:-1]]
    assert rows[-1]["time_us"] == pytest.approx(3 * (2 * gather + total + 1300))


def test_a_call_of_many_ranks_is_simulated_once_and_recorded(
    stretto, tmp_path, monkeypatch
):
    """Not again to be recorded; of a few plans, only the fastest is."""
    heard = []
    simulate = sim.simulate
    monkeypatch.setattr(
        sim,
        "simulate",
        lambda *args, **more: (
            heard.append(more["recorder"] is not None) or simulate(*args, **more)
        ),
    )
    words = ("simulate", "broadcast/binomial", "--size", "64K")
    path = tmp_path / "call.trace"
    for machine, want in (("dgx_h200x4", [True]), ("h200x4", [False] * 4 + [True])):
        heard.clear()
        assert 0 == stretto(*words, "--machine", machine, "--trace", str(path))[0]
        assert want == heard
        assert len(read(path).steps)


def test_a_size_that_is_spelled_in_two_ways_is_recorded_each_time(stretto, tmp_path):
    """The second recording holds what the first does."""
    path = tmp_path / "step.trace"
    words = ("simulate", "all_gather/ring", "--machine", "h200x4", "--size", "64K")
    then = ("--then", "all_gather/ring 65536", "--trace", str(path))
    assert 0 == stretto(*words, *then)[0]
    first, second = (read(path).steps["seq"] == seq for seq in (1, 2))
    assert first.sum() == second.sum() > 0


def test_a_step_is_recorded_call_by_call(stretto, tmp_path):
    """In order, each after the one before; computing is a mark of each rank."""
    path = tmp_path / "step.trace"
    assert 0 == stretto(*STEP, "--repeat", "2", "--trace", str(path))[0]
    seen = read(path)
    calls = seen.without(MARKS).calls
    marks = seen.calls[seen.calls["comm"] > 0]
    mine, marked = calls[calls["rank"] == 2], marks[marks["rank"] == 2]
    names = [seen.kinds[kind].collective for kind in mine["kind"]]

    assert ["all_gather", "all_reduce", "all_gather"] * 2 == names
    assert [1, 2, 3, 4, 5, 6] == mine["seq"].tolist()
    assert (mine["start"][1:] >= mine["end"][:-1]).all()
    assert [300_000, 1_000_000] * 2 == (marked["end"] - marked["start"]).tolist()
    inside = (seen.steps["seq"][:, None] == calls["seq"]) & (
        seen.steps["rank"][:, None] == calls["rank"]
    )
    assert (inside.sum(axis=1) == 1).all()
    of = inside.argmax(axis=1)
    assert (seen.steps["begin"] >= calls["start"][of] - 1).all()
    assert (seen.steps["end"] <= calls["end"][of]).all()
    assert 6 == len(np.unique(seen.steps["seq"]))


def test_the_studio_shows_a_recorded_step(stretto, tmp_path):
    """Every view that it offers has data."""
    path = tmp_path / "step.trace"
    stretto(*STEP, "--trace", str(path))
    studio = Studio(NamedInputs(recordings=(path,)))
    studio.refresh()

    offered = {view["name"] for view in studio.index()["views"]}

    assert {"timeline", "traffic", "topology", "collective"} <= offered
    assert all(studio.view(name, {}) for name in offered)
    assert b"compute" in studio.view("timeline", {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--then", "compute"], "want 'compute 300us' or 'NAME SIZE'"),
        (["--then", "compute 3"], "want a time such as 300us"),
        (["--then", "compute 1.2.3us"], "want a time such as 300us"),
        (["--then", "all_reduce/rign 1M"], "did you mean all_reduce/ring?"),
        (["--then", "all_reduce/ring 1K:1M"], "want one size, as 4M"),
        (["--repeat", "0"], "--repeat 0; want 1 to"),
    ],
)
def test_what_is_no_step_is_refused(stretto, more, said):
    """With what was meant, or what is wanted."""
    status, _, error = stretto(*STEP, *more)

    assert 2 == status
    assert said in error


def test_a_recording_that_would_fill_memory_is_refused(stretto, tmp_path, monkeypatch):
    """Before it does, with what its parts have."""
    monkeypatch.setattr(following, "_MOST_ROWS", 10_000)
    path = tmp_path / "step.trace"

    status, _, error = stretto(*STEP, "--repeat", "4000", "--trace", str(path))

    assert 2 == status
    assert "--repeat 4000 with --trace: more than 10000 steps" in error
    assert not path.exists()


@pytest.mark.slow
def test_a_thousand_ranks_are_recorded(stretto, tmp_path):
    """Their plan is proved and simulated once."""
    path = tmp_path / "many.trace"
    words = "simulate all_reduce/recursive_doubling --machine dgx_h200x128 --size 1M"
    assert 0 == stretto(*words.split(), "--trace", str(path))[0]

    assert 1024 == len(np.unique(read(path).steps["rank"]))
