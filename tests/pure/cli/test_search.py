"""`stretto search`: searches, and looks at searches."""

import contextlib
import json
import sqlite3
import struct
import tomllib

import pytest

from stretto.cli import main


@pytest.fixture
def trace(tmp_path):
    rows = [(i * i) % 97 for i in range(900)]
    path = tmp_path / "t.bin"
    path.write_bytes(
        b"".join(struct.pack("<IQIq", t, o, 1 + o % 5, -1) for t, o in enumerate(rows))
    )
    return str(path)


def test_a_policy_is_searched_written_shown_resumed_and_compared(
    trace, tmp_path, capsys
):
    """A policy is searched written shown resumed and compared."""
    run, out = str(tmp_path / "run.db"), tmp_path / "policy.toml"
    command = [
        "search",
        "cache",
        trace,
        "--size",
        "10%",
        "--evals",
        "40",
        "--seed",
        "2",
    ]
    assert main([*command, "--db", run, "-o", str(out)]) == 0
    told = tomllib.loads(out.read_text())
    assert len(out.read_text().splitlines()) < 15
    assert told["problem"] == "cache"
    assert told["from"]["evals"] == 40
    assert told["held_out"]["found"]["whole"] <= 1
    capsys.readouterr()
    for verb in ("show", "resume", "replay"):
        assert main(["search", verb, run, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        if verb == "resume":
            assert said["found"] == told["found"]
        if verb == "replay":
            assert said["rows"][0]["differ"] == 0
    assert main(["search", "show", str(out)]) == 0
    assert capsys.readouterr().out == told["found"] + "\n"
    for word, kind in (("--c", "double score("), ("--bpf", "st_t score(")):
        assert main(["search", "show", str(out), word]) == 0
        assert kind in capsys.readouterr().out
    assert main(["search", "compare", run, run]) == 0
    assert "30" in capsys.readouterr().out


def test_children_judge_as_this_process_does(trace, tmp_path, capsys):
    """The same bytes, and what a judge there cannot do is said."""
    runs = []
    for jobs in ("0", "2"):
        run = tmp_path / f"{jobs}.db"
        words = ["search", "cache", trace, "--size", "10%", "--evals", "25"]
        assert main([*words, "--jobs", jobs, "--db", str(run)]) == 0
        with contextlib.closing(sqlite3.connect(run)) as file:
            runs.append(file.execute("select * from judged").fetchall())
    assert runs[0] == runs[1]
    capsys.readouterr()
    assert main(["search", "resume", str(tmp_path / "2.db"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evals"] == 25
    assert main([*words, "--jobs", "999"]) == 2
    assert "--jobs 999" in capsys.readouterr().err


def test_problems_are_listed_with_what_they_need(capsys):
    """Problems are listed with what they need."""
    assert main(["search", "list", "--json"]) == 0
    rows = {row["problem"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["cache"]["needs"] == "trace"
    assert {"cache", "config", "online", "program"} <= {*rows}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cach"], "did you mean cache"), (["cache", "/no/file"], "No such file"),
        (["program", "all_redude"], "want all_gather, all_reduce"),
        (["show", "/no/run"], "no such file of a search"),
        (["program", "all_reduce", "--machine", "dgx"], "no machine"),
        (["program", "all_reduce", "--llm", "http://a", "--evals", "1"], "such as"),
        (["program", "all_reduce", "--machine", "dgx1", "--evals", "0"], "least 1"),
        (["config", "/no/space", "--objective", "true"], "No such file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(words, said, capsys):
    """What is wrong is said in a line."""
    assert main(["search", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("budget", ["5", "usd", "many usd", "nan usd", "1.5calls"])
def test_budgets_that_mean_nothing_are_refused(trace, budget, capsys):
    """Budgets that mean nothing are refused."""
    words = [
        "search",
        "cache",
        trace,
        "--llm",
        "http://127.0.0.1:9",
        "--budget",
        budget,
    ]
    assert main(words) == 2
    assert "want such as 5usd" in capsys.readouterr().err
