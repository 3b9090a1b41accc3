"""Memory is as weak as plans may assume, and calls follow one another."""

from dataclasses import replace

import pytest
from tests.checking.cases import programs
from tests.checking.referee import Call, Outcome, judge, judge_plan

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule, Signal, parse_plan
from stretto.compiler.verify import verify, verify_plan

GATHER = """plan all_gather/one_shot collective=all_gather ranks=2 split=1
schedule push bulk staged
atoms 0:1 1:2
rank 0 input 0:1@0 output 0:2@0 stage 1
  lane 0
    put output[0], r1.stage[0] <- input[0] @0
    signal r1.0 n=1
    wait r1.0 n=1
    copy output[1] <- stage[0] @1
rank 1 input 0:1@1 output 0:2@0 stage 1
  lane 0
    put output[1], r0.stage[0] <- input[0] @1
    signal r0.0 n=1
    wait r0.0 n=1
    copy output[0] <- stage[0] @0
"""


def plan_of(name, schedule, n=3, *, in_place=False):
    """Return the first program of that name, lowered, and the program."""
    _, program = next(iter(programs(n, name)))
    plan = lower(verify(program), Schedule.parse(schedule), in_place=in_place)
    return plan, program


def test_what_was_not_released_may_land_late():
    """Strong memory forgives it: then whatever came before has been seen."""
    weak = parse_plan(GATHER.replace("signal r1.0 n=1", "signal r1.0 n=1 relaxed"))
    calls = [Call(plan=weak, counts=(2, 2))]

    assert judge_plan(parse_plan(GATHER)).right
    assert Outcome.RACE is judge(calls).outcome
    assert judge(calls, weak=False).right


def test_a_later_relaxed_signal_takes_back_nothing():
    """A flag word that was released carries on what it carried."""
    more = "    signal r1.0 n=1\n    signal r1.0 n=2 relaxed\n"
    text = GATHER.replace("    signal r1.0 n=1\n", more)
    plan = parse_plan(text.replace("wait r0.0 n=1", "wait r0.0 n=2"))

    assert judge_plan(plan).right


def test_packets_announce_nothing_but_themselves():
    """Plain data beside them may come later than they."""
    text = GATHER.replace("stage 1", "stage 2").replace(
        "    signal r1.0 n=1\n", "    put_packets r1.stage[1]! <- input[0] @0\n"
    )
    text = text.replace(
        "    wait r0.0 n=1\n    copy output[0] <- stage[0] @0",
        "    read_packets output[0] <- stage[1]! @0\n    copy output[0] <- stage[0] @0",
    )
    plan = parse_plan(text)
    calls = [Call(plan=plan, counts=(2, 2))]

    assert Outcome.RACE is judge(calls).outcome
    assert judge(calls, weak=False).right


def test_who_leaves_early_overwrites_what_a_peer_still_reads():
    """Without its last wait, a rank may free memory that a peer pulls from."""
    plan, program = plan_of("all_gather/one_shot", "pull bulk zero_copy", 2)
    steps = plan.ranks[0][0][:-1]
    open_ = replace(plan, ranks=((steps,), *plan.ranks[1:]))

    assert judge_plan(plan, program).right
    verdict = judge([Call(plan=open_, counts=(2, 2))])
    assert Outcome.OVERWRITTEN is verdict.outcome, verdict
    assert "the caller" in "".join(verdict.trace)


def test_two_plans_may_share_staging_when_both_are_closed():
    """Other units, other tiles, other protocols: in every order of calls."""
    kinds = ("push packets staged", "push bulk staged", "pull bulk staged")
    calls = []
    for name, kind in zip(("all_reduce/ring", "all_gather/", "broadcast/"), kinds):  # noqa: B905
        plan, program = plan_of(name, kind)
        parts = 3 if "all_gather" in name else 1
        counts = (4, 1, 2)[:parts]
        calls.append(Call(plan=plan, counts=counts, most=1, program=program))

    for first in range(3):
        order = calls[first:] + calls[:first]
        assert judge(order + order, threads=True).right


def test_a_plan_that_is_not_closed_is_overwritten_by_another():
    """Rank 0 only sends: nothing tells it that the others have left their calls."""
    plan, _ = plan_of("broadcast/flat", "push bulk staged")
    steps = tuple(s for s in plan.ranks[0][0] if isinstance(s, Move | Signal))
    open_ = replace(plan, ranks=((steps,), *plan.ranks[1:]))
    one = Call(plan=open_, counts=(3,))

    assert judge([one, one]).right
    verdict = judge([one, one, one])
    assert Outcome.OVERWRITTEN is verdict.outcome, verdict


@pytest.mark.parametrize("name", ["all_to_all/one_shot", "all_gather/ring"])
def test_slices_that_announce_nothing_need_the_gpus_closing(name):
    """Unequal parts end in different tiles; signals in every epoch keep ranks near."""
    plan, _ = plan_of(name, "push packets staged")
    parts = 9 if "all_to_all" in name else 3
    counts = (0, 5, 0, 0, 0, 0, 0, 0, 0)[:parts]
    kept = verify_plan(plan).closed().value
    call, safe = (Call(plan=p, counts=counts, most=1) for p in (plan, kept))

    assert judge([safe, safe], threads=True, silent=True).right
    found = judge([call, call], threads=True, silent=True)
    assert found.outcome in (Outcome.RACE, Outcome.OVERWRITTEN, Outcome.HANG), found


def test_in_place_is_where_unequal_counts_put_it():
    """The own part of a vector begins after those of others, whatever their counts."""
    for name in ("all_gather", "reduce_scatter", "gather", "scatter"):
        for _, program in programs(3, f"{name}/"):
            plan = lower(
                verify(program), Schedule.parse("push packets staged"), in_place=True
            )
            for some in ({0}, {1, 2}, {0, 1, 2}):
                verdict = judge_plan(plan, program, in_place=frozenset(some))
                assert verdict.right, f"{program.name}: {verdict}"
