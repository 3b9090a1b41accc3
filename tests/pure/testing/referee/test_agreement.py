"""The referee agrees with itself: one ordered run, and all runs that can differ."""

import random
from dataclasses import replace

import pytest
from tests.checking.cases import SCHEDULES, programs
from tests.checking.plan_mutants import plan_edits
from tests.checking.referee import Machine, Outcome, judge, scopes
from tests.checking.referee.campaign import run_task
from tests.checking.referee.explore import explore, run_at_random
from tests.checking.referee.verdict import Fault
from tests.pure.testing.referee.plans import FORCED, WRONG

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule
from stretto.compiler.verify import verify


def explored(machine, **options):
    """Return what running all orders comes to."""
    try:
        explore(machine, **options)
    except Fault as e:
        return e.outcome
    return Outcome.RIGHT


@pytest.mark.parametrize("seed", range(6))
def test_what_must_be_ordered_is_what_goes_wrong(seed):
    """Of plans and mutants, in weak and strong memory, no race is without a cost."""
    found = run_task("explored", seed * 7)

    assert set(found.counts) <= {"explored agree"}, found


def test_packets_that_are_stored_twice_are_not_found_by_chance():
    """Whoever polls a cell may find the first of two packets of one epoch."""
    program = verify(next(p for _, p in programs(3, "all_gather/ring")))
    plan = lower(program, Schedule.parse("push packets staged"))
    compared = 0
    for nth, rank in enumerate(plan.ranks):
        for lane, steps in enumerate(rank):
            puts = [s for s in steps if isinstance(s, Move) and s.dsts[-1].packets]
            for put in puts:
                other = puts[0]._replace(dsts=put.dsts[-1:])  # what it sends first
                twice = [t for s in steps for t in ((other, s) if s is put else (s,))]
                lanes = (*rank[:lane], tuple(twice), *rank[lane + 1 :])
                ranks = (*plan.ranks[:nth], lanes, *plan.ranks[nth + 1 :])
                call = next(scopes(replace(plan, ranks=ranks))).calls
                compared += Outcome.RIGHT is not explored(Machine(call))
                assert not judge(call).right

    assert compared > 1
    assert {"explored agree"} == set(run_task("explored", 402_053).counts)


def test_fewer_orders_tell_as_much_as_all_of_them():
    """What is left out is the same as something that was tried."""
    rng = random.Random(19)
    compared = 0
    for _, program in programs(2, "all_gather/one_shot"):
        for text in SCHEDULES:
            plan = lower(verify(program), Schedule.parse(text))
            for _, make in rng.sample(list(plan_edits(plan)), 8):
                try:
                    mutant = make()
                    machine = Machine([next(scopes(mutant)).calls[0]])
                except Fault:
                    continue
                few = explored(machine, bound=300)
                every = explored(machine, bound=1_200, reduce=False)
                if Outcome.UNDECIDED not in (few, every):
                    compared += 1
                    assert (few is Outcome.RIGHT) == (every is Outcome.RIGHT)

    assert compared > 12


def test_a_run_at_random_finds_it_in_the_end():
    """A rank that runs ahead and stores that land late are tried by the seeds."""
    plan = WRONG["lanes that run ahead"]
    scope = next(scopes(plan))
    outcomes = set()
    for seed in range(30):
        try:
            run_at_random(Machine(scope.calls), seed)
            outcomes.add(Outcome.RIGHT)
        except Fault as e:
            outcomes.add(e.outcome)

    assert {Outcome.RIGHT, Outcome.HANG} == outcomes


def test_more_orders_than_the_bound_are_no_verdict():
    """Undecided is not right."""
    _, program = next(iter(programs(2, "barrier")))
    plan = lower(verify(program), Schedule.parse("push bulk staged"))
    machine = Machine(next(scopes(plan)).calls)

    assert Outcome.RIGHT is explored(machine, bound=1)
    assert Outcome.UNDECIDED is explored(machine, bound=1, reduce=False)


@pytest.mark.parametrize("kind", WRONG)
def test_both_ways_catch_what_a_proof_let_pass(kind):
    """In the scope that shows it, some order really goes wrong."""
    plan = WRONG[kind]
    every = scopes(plan, in_place=FORCED.get(kind))
    bad = [s for s in every if not judge(s.calls, threads=s.threads).right]

    assert bad
    for scope in bad:
        machine = Machine(scope.calls, threads=scope.threads)
        assert Outcome.RIGHT is not explored(machine)
