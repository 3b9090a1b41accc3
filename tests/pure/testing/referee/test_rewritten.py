"""Rewritten plans are judged as they run: copies in any order, after the kernel."""

from dataclasses import replace

import pytest
from tests.checking.plan_mutants import plan_edits
from tests.checking.referee.calls import Call
from tests.checking.referee.lanes import in_turn
from tests.checking.referee.rewritten import (
    ON_ENGINE,
    judge_rewritten,
    rewrites_of,
)

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError
from stretto.program import algorithms

PUSHED, PULLED, HALVES = ON_ENGINE


def rewritten(name, text, n=4):
    """Return a program of the catalogue and the rewrites of its plan."""
    program = algorithms.get(name).build(n)
    right = verify(program)
    plan = lower(right, Schedule.parse(text))
    return program, list(rewrites_of(verify_plan(plan, right)))


def regrouped(one, change):
    """Return a rewritten plan with rank 0's lane changed, steps and groups."""
    steps, sizes = list(one.plan.ranks[0][0]), list(one.groups[0][0])
    steps, sizes = change(steps, sizes)
    ranks = ((tuple(steps),), *one.plan.ranks[1:])
    groups = ((tuple(sizes),), *one.groups[1:])
    return replace(one, plan=replace(one.plan, ranks=ranks), groups=groups)


@pytest.mark.parametrize(
    ("name", "text", "hows"),
    [
        ("all_reduce/two_shot", "push packets staged", ["batched", "closed"]),
        ("all_reduce/two_shot", HALVES, ["in_halves", "closed, in_halves"]),
        ("all_reduce/hierarchical", HALVES, ["in_halves", "closed, in_halves"]),
        ("all_gather/one_shot", PUSHED, ["copied"]),
        ("broadcast/flat", PULLED, ["copied"]),
    ],
)
def test_what_rewrites_make_is_right(name, text, hows):
    """As kernels, in halves, and on copy engines."""
    program, made = rewritten(name, text)

    assert hows == [one.how for one in made]
    for one in made:
        assert judge_rewritten(one, program).right


def test_copies_are_whole_after_the_last_tile():
    """A kernel does tile after tile; then come copies of all tiles, and one barrier."""
    _, [_, one] = rewritten("all_reduce/two_shot", HALVES, n=2)
    [steps], [sizes] = one.plan.ranks[0], one.groups[0]
    groups = Call(plan=one.plan, counts=(5,), groups=one.groups).together(0, 0)
    kernel = one.copies[0]
    turns = [(nth, list(tiles)) for nth, _, tiles in in_turn(groups, steps, 3, kernel)]

    assert [(nth, [t]) for t in range(3) for nth in range(kernel)] == turns[:-3]
    assert [(kernel, [0, 1, 2]), (kernel + 1, [2]), (kernel + 2, [2])] == turns[-3:]
    assert len(sizes) == kernel + 3


@pytest.mark.parametrize("nth", [0, 1], ids=["one tile", "several tiles"])
def test_copies_of_results_that_are_not_there_yet_are_seen(nth):
    """A copy that no longer waits for the kernel's last sums hands round old data."""
    program, made = rewritten("all_reduce/two_shot", HALVES)
    one = made[nth]
    first = sum(one.groups[0][0][: one.copies[0]])
    assert isinstance(one.plan.ranks[0][0][first], Move)

    def early(steps, sizes):
        return [steps[first], *steps[:first], *steps[first + 1 :]], [
            1,
            *sizes[: one.copies[0]],
            *([left] if (left := sizes[one.copies[0]] - 1) else []),
            *sizes[one.copies[0] + 1 :],
        ]

    assert not judge_rewritten(regrouped(one, early), program).right


def test_copies_that_need_one_another_are_not_in_one_batch():
    """Each runs by itself: what one stores may not be what another one reads."""
    program, [one] = rewritten("broadcast/flat", PULLED)
    rank = next(
        r
        for r, (steps,) in enumerate(one.plan.ranks)
        if sum(isinstance(s, Move) for s in steps) == 1
    )
    (steps,), (sizes,) = one.plan.ranks[rank], one.groups[rank]
    at = next(i for i, s in enumerate(steps) if isinstance(s, Move))
    nth = next(i for i in range(len(sizes)) if sum(sizes[: i + 1]) > at)
    again = steps[at]._replace(srcs=steps[at].dsts)  # of what has just been stored
    more = (*steps[: at + 1], again, *steps[at + 1 :])
    verdicts = []
    for many in ((1, 1), (2,)):
        groups = (*sizes[:nth], *many, *sizes[nth + 1 :])
        ranks = (*one.plan.ranks[:rank], (more,), *one.plan.ranks[rank + 1 :])
        every = (*one.groups[:rank], (groups,), *one.groups[rank + 1 :])
        changed = replace(one, plan=replace(one.plan, ranks=ranks), groups=every)
        verdicts.append(judge_rewritten(changed, program).right)

    assert verdicts == [True, False]


@pytest.mark.parametrize("name", ["broadcast/binomial", "all_reduce/two_shot"])
def test_a_kernel_of_several_tiles_does_not_wait_for_the_barrier(name):
    """It comes once, after the last tile: in one before, who waits for it waits on."""
    program, [_, one] = rewritten(name, HALVES, n=3)
    means = verify_plan(lower(verify(program), Schedule.parse(HALVES)))
    hangs = 0
    for what, make in plan_edits(one.plan):
        if not what.startswith("other peer"):
            continue
        wrong = replace(one, plan=make())
        as_one_tile = replace(wrong, tiles=False)
        if accepts(as_one_tile, means):
            hangs += not judge_rewritten(wrong, program).right
        assert not accepts(wrong, means) or judge_rewritten(wrong, program).right, what

    assert hangs or name != "broadcast/binomial"


def accepts(one, means):
    """Return whether a rewritten plan is proved."""
    try:
        one.prove(means)
    except StrettoError:
        return False
    return True
