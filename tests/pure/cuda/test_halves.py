"""Plans in two halves: what a kernel keeps, what copy engines hand round after it."""

from __future__ import annotations

import re

import pytest
from cuda_fakes import on_ranks

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule, hands_round_on_engine
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import PlanError
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms
from stretto.runtime.choice import Profile, Question, Selector

HALVES = "pull bulk zero_copy copy:engine+push"


def test_a_plan_in_halves_stores_everything_once():
    """What the kernel no longer stores at peers, copies of its results do."""
    program = algorithms.get("all_reduce/two_shot").build(4)
    plan = lower(verify(program), Schedule.parse(HALVES))
    halves = verify_plan(plan).in_halves()
    kernel, copies = halves.kernel.plan, halves.copies.plan

    def stores(one):
        return sorted(
            (rank, d, step.start, step.stop)
            for rank, _, _, step in one.steps()
            if isinstance(step, Move)
            for d in step.dsts
        )

    assert stores(plan) == sorted(stores(kernel) + stores(copies))
    assert {1} == {len(s.dsts) for _, _, _, s in kernel.steps() if hasattr(s, "dsts")}
    assert hands_round_on_engine(plan)


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("all_gather/one_shot", True),
        ("all_reduce/hierarchical", True),
        ("broadcast/flat", True),
        ("all_gather/bruck", False),
        ("all_gather/recursive", False),
        ("all_gather/ring", False),
        ("all_reduce/double_binary_tree", False),
        ("all_reduce/rabenseifner", False),
        ("all_reduce/ring", False),
        ("all_reduce/swing", False),
        ("broadcast/binomial", False),
    ],
)
def test_a_kernel_passes_nothing_on_that_is_copied_after_it(name, served):
    """Relays would read, and signal, what has not come: such plans are refused."""
    program = algorithms.get(name).build(4)
    plan = lower(verify(program), Schedule.parse(HALVES))
    said = ""
    try:
        verify_plan(plan).in_halves()
    except PlanError as e:
        said = str(e)

    assert served == (not said)
    assert served or re.search("reads what nobody wrote|may still be writing", said)
    assert served or "want an algorithm whose last phase, and no other" in said


def test_halves_need_results_that_are_pushed():
    """A plan that pulls its results has nothing to hand round."""
    program = algorithms.get("all_reduce/two_shot").build(2)
    plan = lower(verify(program), Schedule.parse("push bulk staged copy:engine"))

    with pytest.raises(PlanError, match="pushes its results"):
        verify_plan(plan).in_halves()


ROWS = """
executor = "cuda"
[[rule]]
collective = "all_reduce"
memory = "zero_copy"
ranks = [2, 8]
sizes = [["1K", "all_reduce/{0} {1}"], ["1T", "all_reduce/two_shot {1}"]]
"""


@pytest.mark.parametrize(
    ("name", "used"), [("ring", "two_shot"), ("hierarchical",) * 2]
)
def test_rows_of_profiles_that_cannot_be_run_so_are_passed_over(fake, name, used):
    """As rows are that the catalogue or the machine refuses."""
    asked = Question(
        executor="cuda",
        collective="all_reduce",
        num_ranks=4,
        nbytes=512,
        memory="zero_copy",
        in_place=False,
    )

    def work(group):
        session = CudaSession(group)
        profile = Profile.parse(ROWS.format(name, HALVES), "here")
        found = Selector("cuda", profile, {"cuda": session}).choose(asked)
        session.close()
        return found.algorithm.name

    assert [f"all_reduce/{used}"] * 4 == on_ranks(fake, 4, work)
