"""No mutant that computes something else, races or can hang passes a proof."""

import json
import os
import random
import runpy
import sys
from pathlib import Path

import pytest

from stretto.errors import StrettoError
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.testing import (
    SCHEDULES,
    group_programs,
    plan_mutants,
    program_mutants,
    programs,
)
from stretto.testing.judge import plan_is_right, program_is_right
from stretto.verify import verify, verify_plan

SAMPLE = 12


def accepts(proof, subject):
    try:
        proof(subject)
    except StrettoError:
        return False
    return True


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_no_wrong_program_is_accepted(n):
    """An accepted mutant of a program computes the collective all the same."""
    rng = random.Random(n)
    tried = caught = 0
    for label, program in programs(n):
        mutants = list(program_mutants(program))
        for what, mutant in rng.sample(mutants, min(SAMPLE, len(mutants))):
            tried += 1
            if not accepts(verify, mutant):
                caught += 1
                continue
            assert program_is_right(mutant, seed=tried), f"{label}: {what}"

    assert caught > tried // 2


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_no_wrong_plan_is_accepted(n, in_place):
    """An accepted mutant of a plan computes the collective in every order tried."""
    rng = random.Random(n)
    tried = caught = 0
    for label, program in programs(n):
        schedule = rng.choice(SCHEDULES)
        plan = lower(verify(program), Schedule.parse(schedule), in_place=in_place)
        if not accepts(verify_plan, plan):
            assert in_place, label
            assert "zero_copy" in schedule
            continue
        mutants = list(plan_mutants(plan))
        for what, mutant in rng.sample(mutants, min(SAMPLE, len(mutants))):
            tried += 1
            if not accepts(verify_plan, mutant):
                caught += 1
                continue
            assert plan_is_right(mutant, seed=tried), f"{label} {schedule}: {what}"

    assert caught > tried // 2


def test_no_wrong_program_among_some_ranks_is_accepted():
    """Nor one of its plans: relays that forget, double or mix up are caught."""
    rng = random.Random(4)
    tried = caught = 0
    for label, program in group_programs(4):
        schedule = rng.choice([s for s in SCHEDULES if "staged" in s])
        plan = lower(verify(program), Schedule.parse(schedule), in_place=True)
        verify_plan(plan)
        for proof, right, mutants in (
            (verify, program_is_right, program_mutants(program)),
            (verify_plan, plan_is_right, plan_mutants(plan)),
        ):
            every = list(mutants)
            for what, mutant in rng.sample(every, min(SAMPLE // 3, len(every))):
                tried += 1
                if not accepts(proof, mutant):
                    caught += 1
                    continue
                assert right(mutant, seed=tried), f"{label} {schedule}: {what}"

    assert caught > tried // 2


def test_the_script_goes_on_where_it_ended(tmp_path, monkeypatch, capsys):
    """What a file says is done is not done again; the file holds all of it."""
    script = Path(__file__).parents[3] / "scripts" / "mutants"
    main = runpy.run_path(os.fspath(script))["main"]
    out = tmp_path / "mutants.json"
    words = ["mutants", "--ranks", "2", "--only", "permute", "--out", os.fspath(out)]

    def run(*more):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        assert 0 == main()
        return json.loads(out.read_text())

    assert 0 == run("--seconds", "0")["tasks_done"]
    report = run()
    assert report["tasks_done"] == report["tasks_in_all"] == len(report["tasks"])
    assert report["mutants"] > report["equivalent"] > report["wrong_mutants"] == 0
    assert report["tasks"] == run()["tasks"]
    assert "wrong mutants accepted" in capsys.readouterr().out
