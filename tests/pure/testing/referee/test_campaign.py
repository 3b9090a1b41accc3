"""The proof and the referee side by side, a short version; scripts/referee goes on."""

import functools
import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from tests.checking.referee.campaign import TASKS, Found, catalogue, run_task
from tests.nightly import examples, nightly


@functools.cache
def found_of(task, seed):
    """Return what a task found, which several tests look at."""
    return run_task(task, seed)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_proved_stays_right_when_plans_follow_one_another(seed):
    """Calls of different plans share the arena, in any cut and order."""
    for more in range(5):
        found = run_task("sequences", 100 * seed + more)
        assert not found.accepted_wrong, found.examples


@pytest.mark.parametrize("part", nightly(range(4), 4))
def test_plans_of_the_catalogue_are_right_in_wide_scopes(part):
    """A few of them here, with all orders run in both memories."""
    for i in range(2):
        seed = (part * 419 + i * 97) % len(catalogue())
        found = run_task("catalogue", seed)
        assert not found.accepted_wrong, found.examples


def test_no_wrong_program_or_plan_is_accepted_and_no_right_program_refused():
    """Random ones: right as they were drawn, and with one thing wrong.

    Their plans too, in place, on all ranks and on some.
    """
    for seed in range(examples(20)):
        found = run_task("programs", seed)
        assert not found.accepted_wrong, found.examples
        assert not [k for k in found.refused_right if k.startswith("programs")]


def test_no_wrong_mutant_of_a_plan_is_accepted():
    """One thing wrong, or two: steps, operands, atoms, lanes, signals, layout."""
    for seed in range(examples(14)):
        found = found_of("mutants", seed)
        assert not found.accepted_wrong, found.examples


def test_no_wrong_rewrite_is_accepted_nor_a_wrong_mutant_of_one():
    """Kernels in batches, closed, in halves with copy engines, and copies alone."""
    every = Found()
    for seed in range(12):
        every.add(run_task("rewritten", seed))

    assert not every.accepted_wrong, every.examples
    assert every.counts["rewritten accepted RIGHT"] > 8
    assert every.counts["rewrite_mutants refused RACE"] > 4


def test_what_is_refused_is_wrong_or_refused_by_a_rule():
    """Each refusal of what would be right is one that a stated rule explains."""
    every = Found()
    for seed in range(12):
        every.add(found_of("mutants", seed))

    assert 0 < every.refused_right.total() < every.counts.total() // 4
    unstated = [k for k in every.refused_right if "safe: " not in k]
    assert not unstated, every.examples[unstated[0]]


def test_the_script_goes_on_where_it_ended(tmp_path, monkeypatch, capsys):
    """What a file says is done is not done again; the file holds all of it."""
    script = Path(__file__).parents[4] / "scripts" / "referee"
    main = runpy.run_path(os.fspath(script))["main"]
    out = tmp_path / "referee.json"
    words = ["referee", "--tasks", "sequences", "--seconds", "0.2", "--out"]
    monkeypatch.setattr(sys, "argv", [*words, os.fspath(out)])

    def more_than(judged: int) -> dict:
        """Run it until that many are judged: a slow machine may judge none."""
        for _ in range(100):
            assert 0 == main()
            found = json.loads(out.read_text())
            if found["judged"] > judged:
                break
        return found

    first = more_than(0)
    second = more_than(first["judged"])
    for one in (first, second):
        start, stop = one["seeds"]["sequences"]
        assert one["judged"] == stop - start - len(one["begun_and_not_counted"])
    assert second["judged"] > first["judged"] > 0
    assert second["accepted_and_wrong"] == 0
    assert "accepted and wrong" in capsys.readouterr().out
    assert set(TASKS) >= set(second["seeds"])
