"""`stretto tune` on real processes, and on GPUs that are pretended."""

import functools
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.host.bench.test_bench import run

import stretto
from stretto import bench
from stretto.bench import tune
from stretto.runtime.calls import tuning
from stretto.runtime.choice import own

pytestmark = [pytest.mark.host, pytest.mark.timeout(150)]


def test_a_candidate_that_hangs_or_dies_does_not_end_the_search(tmp_path, monkeypatch):
    """It is noted as failed, what it broke is made anew, and the others decide."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from spoilt import DIES, HANGS

    task = bench.BenchTask(
        tests=("all_reduce",),
        sizes=(4096,),
        num_ranks=2,
        budget_s=8.0,
        options={
            "state": str(tmp_path / "s.json"), "keep": 12, "deadline_s": 0.5,
        },
    )  # fmt: skip
    said = []

    blame = functools.partial(tune.blame, tmp_path / "s.json")
    found = bench.run_search(task, said.append, blame, job="spoilt:work")

    failed = found["wrong"]
    assert any(
        "CollectiveTimeout" in w for p, w in failed.items() if p.startswith(HANGS)
    )
    assert any("rank 1" in why for p, why in failed.items() if p.startswith(DIES))
    assert any("they start again" in line for line in said)
    decision = found["decided"]["all_reduce"]["4096"]
    assert not decision["pin"].startswith((HANGS, DIES))
    assert decision["us"] <= decision["untuned_us"]


def test_the_way_of_gpus_is_taken_on_pretended_ones(tmp_path, monkeypatch):
    """Events, graphs, computing beside; kernels are compiled ahead."""
    pytest.importorskip("torch", reason="the memory of GPUs is PyTorch's")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    modes = ("graph", "overlapped")
    options = {"state": str(tmp_path / "s.json"), "keep": 3, "scratch": True}
    task = bench.BenchTask(
        tests=("all_reduce", "broadcast"),
        sizes=(1 << 14,),
        num_ranks=2,
        device="cuda",
        buffer="torch",
        registered=True,
        batches=5,
        budget_s=0.8,
        options=options | {"modes": modes},
    )

    found = bench.run_ranks(task, lambda _: None, job="pretend:work")

    for mode, one in found["modes"].items():
        assert [("", "")] * 2 == [(r["wrong"], r["refused"]) for r in one["rows"]]
        assert all(row["ok"] and row["p50_us"] > 0 for row in one["rows"])
        assert one["limits"]["flag_us"] > 0
        hidden = [row["hidden"] is not None for row in one["rows"]]
        assert [mode == "overlapped"] * 2 == hidden
    decided = found["tuned"]["decided"]
    assert {"all_reduce", "broadcast"} == set(decided)
    for one in (by_size["16384"] for by_size in decided.values()):
        slower = (one["shipped_interval"] or {"low": 0})["low"] > 1
        assert one["shipped"] == one["pin"] if slower else not one["found"]
        assert one["shipped"]
    assert found["warmed"] >= 6


def test_tuning_writes_a_profile_that_is_used(tmp_path):
    """It is chosen by figures, goes on where it was, and no setting is needed."""
    words = ("tune", "all_reduce", "--sizes", "1K:64K:8", "--budget", "2")
    words += ("--memory", "staged", "--report", str(tmp_path / "r.json"))

    status, said, error = run(*words, STRETTO_PROFILES=str(tmp_path))
    (profile,) = tmp_path.glob("cpu.*.toml")
    text = profile.read_text()
    again = run(*words, STRETTO_PROFILES=str(tmp_path))

    assert 0 == status, error
    assert "profile:" in said
    assert "figures = [" in text
    assert 0 == again[0], again[2]
    assert "untuned:" not in again[2], "what was decided is not measured again"
    kept = json.loads(profile.with_suffix(".state.json").read_text())
    assert 3 == len(kept["decided"])
    for one in kept["decided"].values():
        assert one["us"] <= one["untuned_us"] * 1.001
    by_hand = re.sub(r'"all_reduce/[^"]*"', '"all_reduce/ring push bulk staged"', text)
    profile.write_text(by_hand)
    words = ("bench", "all_reduce", "--sizes", "1K", "--budget", "0.2", "--json")
    used = json.loads(run(*words, STRETTO_PROFILES=str(tmp_path))[1])
    assert ["all_reduce/ring"] == [r["algorithm"].split()[0] for r in used["rows"]]


def tuned_by_the_first(comm):
    """Make parts that want tuning; return what the second and third of them know."""
    tuning._WORDS += ("--budget", "2", "all_reduce", "--sizes", "4K")
    comm._profiles = replace(comm._profiles, tune=True)
    took, known = [], []
    for _ in range(2):
        began = time.monotonic()
        part = comm.split(0)
        took.append(time.monotonic() - began)
        known.append(dict(part._profiles.texts))
        x = np.full(1024, comm.rank + 1.0, np.float32)
        part.all_reduce(x)
        assert x[0] == 3
        part.close()
    return took, known


def test_an_unknown_machine_is_tuned_by_the_first_job_on_it(tmp_path, monkeypatch):
    """All its ranks then know what was measured; the next job waits for nothing.

    Ranks wait longer than their deadline: they hear that it goes on.
    """
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    both = stretto.spawn(tuned_by_the_first, num_ranks=2, deadline_s=2.0)

    (path,) = tmp_path.glob("*.toml")
    assert path.read_text() == own.texts()["cpu"]
    for took, (first, second) in both:
        assert first == second == {"cpu": path.read_text()}
        assert took[0] > 1.0
        assert took[1] < took[0] / 2
