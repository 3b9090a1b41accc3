"""`stretto cluster`: runs, shifts, traces and lists, and what is refused."""

import json

import pytest

from stretto.trace import read

SNAPSHOT = "".join(
    f"""
[[jobs]]
name = "{name}"
ranks = [{first}, {first + 4}]
iterations = 30
[[jobs.steps]]
compute_ms = 110
collective = "chain"
up_ms = 90
gbits_per_s = 45
"""
    for name, first in (("a", 0), ("b", 2))
)


@pytest.fixture
def snapshot(tmp_path):
    """Two jobs whose flows meet on one link of 50 Gb/s."""
    path = tmp_path / "jobs.toml"
    path.write_text(SNAPSHOT)
    return str(path)


def test_a_run_has_a_line_for_each_scheduler_and_ideal(stretto, snapshot, tmp_path):
    """With figures of all seeds; by job when asked; and a trace for the studio."""
    trace = str(tmp_path / "t.stretto")
    words = ("cluster", "run", snapshot, "--seeds", "2", "--jobs", "--trace", trace)
    status, out, _ = stretto(*words, "--jitter", "0.01", "--json")
    told = json.loads(out)

    assert 0 == status
    names = ["packed", "packed+cassini", "ideal"]
    assert names == [row["scheduler"] for row in told["rows"]]
    assert 4 == len(told["jobs"])
    assert {0, 2, 4, 6} == set(read(trace).steps["rank"].tolist())
    _, table, _ = stretto(*words)
    assert "marks are modelled" in table


def test_shifts_are_told_and_drawn(stretto, snapshot, tmp_path):
    """Scores before and after, beside the best there are, and a circle each."""
    pytest.importorskip("ortools")
    drawn = tmp_path / "circles.svg"
    words = ("cluster", "shifts", snapshot, "--machine", "leaf_spine2x4", "--exact")
    status, out, _ = stretto(*words, "--svg", str(drawn), "--json")
    told = json.loads(out)

    assert 0 == status
    assert 2 == len(told["links"])  # up to the spine, and down from it
    for link in told["links"]:
        assert link["score_at_0"] < link["score"] == pytest.approx(1) == link["exact"]
        assert link["proved"]
    assert ["a", "b"] == [row["job"] for row in told["rows"]]
    assert drawn.read_text().startswith("<svg")
    assert 2 * 2 * 2 == drawn.read_text().count("<path")
    assert "score 1.000 of 2 links" in stretto(*words)[1]


def test_a_trace_is_written_and_runs(stretto, tmp_path):
    """From a seed, for the ranks of a machine."""
    path = str(tmp_path / "t.toml")
    more = ("--load", "1", "--hours", "0.05", "--mean", "5", "--seed", "2")
    status, out, _ = stretto("cluster", "trace", path, *more, "--json")
    (row,) = json.loads(out)["rows"]
    status_of_run, table, _ = stretto("cluster", "run", path, "--scheduler", "srpt")

    assert (0, 0) == (status, status_of_run)
    assert f"{row['jobs']} jobs on leaf_spine6x4" in table


def test_graphs_and_partial_jobs_have_tables(stretto, tmp_path):
    """Every order beside ideal; and how much partial back-propagation gives."""
    path = tmp_path / "d.json"
    task = {"ms": 5, "needs": [0.6, 0.1]}
    rows = [{"tasks": [task, {**task, "after": [0]}]}, {"tasks": [task]}]
    path.write_text(json.dumps({"dags": rows}))
    _, out, _ = stretto("cluster", "dags", str(path), "--json")
    told = json.loads(out)["rows"]
    (row,) = json.loads(stretto("cluster", "partial", "--json")[1])["rows"]

    names = ["fair", "critical", "tetris", "graphene", "ideal"]
    assert names == [row["order"] for row in told]
    assert 0.2 < row["rank_time_saved"] < 0.28


def test_schedulers_and_profiles_are_listed(stretto):
    """13 models, each with what of it is assumed."""
    told = json.loads(stretto("cluster", "list", "--json")[1])

    assert 13 == len(told["profiles"])
    assert all("compute_ms" in row["assumed"] for row in told["profiles"])
    assert {"packed", "random", "srpt", "themis", "pollux"} <= {
        row["scheduler"] for row in told["schedulers"]
    }
    assert "ideal" in stretto("cluster", "list")[1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run", "absent.toml"), "absent.toml: No such file"),
        (("run", "JOBS", "--scheduler", "themys"), "no scheduler named 'themys'; did"),
        (("run", "JOBS", "--scheduler", "packed+x"), "want NAME or NAME+cassini"),
        (("run", "JOBS", "--seeds", "0"), "--seeds 0: want 1 to 1000"),
        (("run", "JOBS", "--jitter", "2"), "--jitter 2: want 0 to 1"),
        (("run", "JOBS", "--machine", "leaf_spine2x2"), "ranks: got 4; want ranks"),
        (("shifts", "JOBS", "--machine", "ring"), "no machine named 'ring'"),
        (("dags", "--servers", "0"), "--servers 0: want 1 to"),
        (("dags", "--load", "0"), "--load 0: want above 0"),
        (("dags", "absent.json"), "absent.json: No such file"),
        (("partial", "--workers", "17"), "workers: got 17; want at most 16"),
        (("trace", "x.csv"), "x.csv: want a .toml file"),
        (("trace", "x.toml", "--kind", "all"), "kind 'all'; want poisson or burst"),
        (("trace", "x.toml", "--hours", "0"), "hours: got 0; want more than 0"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(stretto, snapshot, words, reason):
    """Exit status 2, and why."""
    words = [snapshot if word == "JOBS" else word for word in words]
    status, _, err = stretto("cluster", *words)

    assert 2 == status
    assert reason in err
    assert 1 == err.count("\n")
