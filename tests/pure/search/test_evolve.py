"""The loop: deterministic, resumable, never fooled by its judges."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from tests.pure.search.planted import FORMULAS, Planted

from stretto.errors import CallError, ParseError, StrettoError
from stretto.search import Settings, Verdict, evolve, replay
from stretto.search.evolve import SearchRun, fresh_of, search
from stretto.search.judges.children import Children
from stretto.search.problems import problem, problems


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    """The same seed writes the same bytes."""
    for name in "ab":
        evolve(Planted(), evals=200, seed=3, path=tmp_path / name).run.close()
    evolve(Planted(), evals=200, seed=4, path=tmp_path / "c").run.close()
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_planted_formulas_are_found():
    """Planted formulas are found."""
    found = [evolve(Planted(f), evals=600, seed=1) for f in FORMULAS]
    errors = [one.held_out["error"] for one in found]
    assert sum(e < 0.01 for e in errors) >= 2, errors
    assert all(one.held_out["error"] <= one.first["error"] for one in found)


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 7, 40, 99])
def test_a_search_that_was_left_is_resumed_to_the_same_bytes(tmp_path, after):
    """A search that was left is resumed to the same bytes."""
    evolve(Planted(), evals=100, seed=5, path=tmp_path / "whole").run.close()
    count = itertools.count(1)

    def stop(one):
        if next(count) == after:
            raise Stop

    run = SearchRun(tmp_path / "parts")
    with pytest.raises(Stop):
        search(Planted(), Settings(evals=100, seed=5), run=run, told=stop)
    run.close()
    evolve(Planted(), evals=100, seed=5, path=tmp_path / "parts").run.close()
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


def test_a_killed_process_is_resumed_to_the_same_bytes(tmp_path):
    """A killed process is resumed to the same bytes."""
    text = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from tests.pure.search.planted import Planted\n"
        "from stretto.search import evolve\n"
        "evolve(Planted(), evals=700, seed=5, path=sys.argv[1]).run.close()\n"
    )
    here, path = Path(__file__).parent, tmp_path / "run"
    command = [sys.executable, "-c", text, str(path), str(here.parents[2])]
    child = subprocess.Popen(command)
    until = time.monotonic() + 60
    while time.monotonic() < until and child.poll() is None:
        if path.exists() and path.stat().st_size > 24_000:
            break
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    judged = len(list(SearchRun(path).rows()))
    assert judged
    evolve(Planted(), evals=700, seed=5, path=path).run.close()
    evolve(Planted(), evals=700, seed=5, path=tmp_path / "whole").run.close()
    assert digest(path) == digest(tmp_path / "whole")


def test_what_was_searched_otherwise_is_not_resumed(tmp_path):
    """What was searched otherwise is not resumed."""
    path = tmp_path / "run"
    evolve(Planted(), evals=20, seed=1, path=path).run.close()
    for other, what in (
        (Planted(FORMULAS[1]), {}),
        (Planted(), {"seed": 2}),
        (Planted(), {"evals": 9}),
    ):
        with pytest.raises(ParseError, match="was searched with"):
            evolve(other, **{"evals": 20, "seed": 1, **what}, path=path)


def test_a_changed_judge_or_loop_refuses_to_go_on(tmp_path):
    """A changed judge or loop refuses to go on."""
    path = tmp_path / "run"
    run = SearchRun(path)
    evolve(Planted(), evals=30, seed=1, path=path)
    run._file.execute("update judged set text = 'size' where number = 3")
    with pytest.raises(ParseError, match="evaluation 3 judged 'size'"):
        evolve(Planted(), evals=30, seed=1, path=path)


def test_files_that_hold_no_search_are_refused(tmp_path):
    """Files that hold no search are refused."""
    path = tmp_path / "file"
    path.write_text("nothing of the kind")
    with pytest.raises(ParseError, match="want a file of"):
        SearchRun(path)


def test_a_replay_judges_again_and_says_what_differs():
    """A replay judges again and says what differs."""
    found = evolve(Planted(), evals=50, seed=1)
    assert replay(Planted(), found.run) == 0
    found.run._file.execute("update judged set cost = cost + 1 where number = 2")
    assert replay(Planted(), found.run) > 0


@pytest.mark.parametrize(
    "given",
    [{"evals": 0}, {"evals": 1.5}, {"islands": 0}, {"brood": -1}, {"explore": 2}],
)
def test_settings_that_mean_nothing_are_refused(given):
    """Settings that mean nothing are refused."""
    with pytest.raises(CallError, match="want"):
        search(Planted(), Settings(**given))


class Odd(Planted):
    """A judge with every way to go wrong."""

    def judge(self, candidate, rung, *, fresh):
        odd = [float("nan"), float("inf"), "nothing", None, float("-inf")]
        number = candidate.size % (len(odd) + 1)
        return Verdict.of(odd[number] if number < len(odd) else 1.0)


def test_costs_that_are_no_numbers_are_refusals_and_kept():
    """Costs that are no numbers are refusals and kept."""
    found = evolve(Odd(), evals=100, seed=1)
    rows = list(found.run.rows())
    refused = [one.verdict.refused for one in rows if one.verdict.refused]
    assert found.verdict.cost == 1.0
    assert {"the cost is nan", "the cost is inf", "the cost is -inf"} <= set(refused)
    assert any("no number" in why for why in refused)


class Refusing(Planted):
    """A judge that lets nothing pass."""

    def judge(self, candidate, rung, *, fresh):
        return Verdict(refused="never")


def test_nothing_that_passes_is_said_with_the_first_reason():
    """Nothing that passes is said with the first reason."""
    with pytest.raises(CallError, match=r"all .* refused; the first: never"):
        evolve(Refusing(), evals=20)


def test_fresh_numbers_differ_by_evaluation_rung_and_seed():
    """Fresh numbers differ by evaluation rung and seed."""
    found = evolve(Planted(), evals=60, seed=1)
    trials = [one.trial for one in found.run.rows()]
    numbers = {fresh_of(seed, trial) for trial in trials for seed in (1, 2)}
    assert len(numbers) == 2 * len(trials)


class _Hostile(Planted):
    """Judged in a child: its formula says what the judge does."""

    begin: ClassVar = ("1", "2", "3", "4", "5", "6")

    def behaviour(self, candidate):
        return self.spell(candidate)

    def judge(self, candidate, rung, *, fresh):
        match candidate["score"].value:
            case 1:
                time.sleep(1000)
            case 2:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 3:
                return Verdict.of(len(bytearray(8 << 30)))
            case 4:
                sys.stdout.write("cost 0\n" * 100_000)
                raise RuntimeError("an error of its own")
            case 5:
                subprocess.Popen(["sleep", "1000"])
                os._exit(7)
        return Verdict.of(1.0)


OFFER = _Hostile


def test_judges_that_hang_die_or_eat_memory_are_refusals(tmp_path, monkeypatch):
    """Judges that hang die or eat memory are refusals."""
    info = tmp_path / "hostile-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[stretto.problems]\nhostile = tests.pure.search.test_evolve\n"
    )
    paths = [str(tmp_path), str(Path(__file__).parents[3]),
             os.environ.get("PYTHONPATH", "")]  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with Children("hostile", {}, seed=1, deadline_s=3.0, memory_mb=512) as judge:
        found = search(_Hostile(), Settings(evals=6), judge=judge)
        children = [child._process.pid for child in judge._living]
    refused = {one.trial.text: one.verdict.refused for one in found.run.rows()}
    assert found.text == "6"
    assert refused.pop("6") == ""
    for (text, why), said in zip(
        sorted(refused.items()),
        ("no verdict in 3 s", "ended with -11", "wanted more than 512 MB",
         "RuntimeError: an error of its own", "ended with 7"),
        strict=True,
    ):  # fmt: skip
        assert said in why, text
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_judge_that_cannot_begin_says_why():
    """A judge that cannot begin says why."""
    with (
        Children("cache", {"trace": "/no/such/file"}, seed=1) as judge,
        pytest.raises(CallError, match=r"could not begin: .*/no/such/file"),
    ):
        search(Planted(), Settings(evals=2), judge=judge)


def test_problems_are_found_by_name_and_say_what_they_need():
    """Problems are found by name and say what they need."""
    assert {"cache", "config", "online", "program"} <= {*problems.names()}
    with pytest.raises(StrettoError, match="did you mean cache"):
        problem("cach")
    with pytest.raises(CallError, match="needs trace"):
        problem("cache")
    with pytest.raises(CallError, match="has no 'tracee'"):
        problem("cache", tracee=1)


def test_a_run_is_saved_and_shown(tmp_path):
    """A run is saved and shown."""
    found = evolve(Planted(), evals=40, seed=1)
    found.save(tmp_path / "run")
    rows = found.table()
    assert [row["cost"] for row in rows] == sorted(
        (r["cost"] for r in rows), reverse=True
    )
    assert rows[-1]["text"] == found.text
    assert len(list(SearchRun(tmp_path / "run").rows())) == len(list(found.run.rows()))
    assert (
        json.loads(SearchRun(tmp_path / "run").said["held_out"])["best"]
        == found.held_out
    )
