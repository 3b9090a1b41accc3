"""Between hosts a put lands later, and only its own lane's signal says when.

Each wrong plan here is right on one host: only the line `hosts` makes it wrong. The
referee, which shares no code with the proof, says the same of each.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.checking.cases import programs
from tests.checking.plan_mutants import plan_edits
from tests.checking.plan_runs.interleave import interleave
from tests.checking.referee.judge import judge_plan
from tests.nightly import nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule, Signal, Space, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import BoundsError, CallError, PlanError, StrettoError
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape
from stretto.program.ir import Verified
from stretto.testing import draw, input_counts, interpret

TWO_AND_TWO, THREE_AND_ONE, APART = (0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 2, 3)
SCHEDULES = ["push packets staged blocks=2", "push bulk staged"]

ONE_SENDS = """
plan permute/one collective=permute ranks=2 split=1 pairs=((0,1),)
schedule push bulk staged
hosts 0x1 1x1
atoms 0:1 1:2
rank 0 input 0:1@0 output stage 0
  lane 0
    put r1.stage[0] <- input[0] @0
    signal r1.0 n=1
    wait r1.0 n=1
rank 1 input output 0:1@0 stage 1
  lane 0
    signal r0.0 n=1 relaxed
    wait r0.0 n=1
    copy output[0] <- stage[0] @0
"""
BY_ANOTHER_LANE = """
plan permute/lanes collective=permute ranks=2 split=1 pairs=((0,1),)
schedule push bulk staged
hosts 0x1 1x1
atoms 0:1 1:2
rank 0 input 0:1@0 output stage 0
  lane 0
    put r1.stage[0] <- input[0] @0
    signal r0.1 n=1
    wait r1.0 n=1
    wait r0.1 n=1
  lane 1
    wait r0.0 n=1
    signal r1.0 n=1
    signal r0.0 n=1
    wait r1.0 n=1
rank 1 input output 0:1@0 stage 1
  lane 0
    signal r0.0 n=1 relaxed
    signal r0.1 n=1 relaxed
    wait r0.1 n=1
    copy output[0] <- stage[0] @0
"""
THROUGH_A_THIRD = """
plan permute/third collective=permute ranks=3 split=1 pairs=((0,2),)
schedule push bulk staged
hosts 0x2 1x1
atoms 0:1 1:2 2:3
rank 0 input 0:1@0 output stage 0
  lane 0
    put r2.stage[0] <- input[0] @0
    signal r1.0 n=1
    wait r1.0 n=1
    wait r2.0 n=1
rank 1 input output stage 0
  lane 0
    signal r0.0 n=1 relaxed
    wait r0.0 n=1
    signal r2.0 n=1
    wait r2.0 n=1
rank 2 input output 0:1@0 stage 1
  lane 0
    signal r0.0 n=1 relaxed
    signal r1.0 n=1 relaxed
    wait r1.0 n=1
    copy output[0] <- stage[0] @0
"""
SOURCE_TOO_EARLY = """
plan all_to_all/early collective=all_to_all ranks=2 split=1
schedule push bulk staged in_place
hosts 0x1 1x1
atoms 0:1 1:2 2:3 3:4
rank 0 input 0:2@0 output 0:1@0 1:2@2 stage 1
  lane 0
    put r1.stage[0] <- input[1] @1
    signal r1.0 n=1
    copy output[0] <- input[0] @0
    wait r1.0 n=1
    copy output[1] <- stage[0] @2
rank 1 input 0:2@2 output 0:1@1 1:2@3 stage 1
  lane 0
    put r0.stage[0] <- input[0] @2
    signal r0.0 n=1
    copy output[1] <- input[1] @3
    wait r0.0 n=1
    copy output[0] <- stage[0] @1
"""


def accepts(plan, program=None):
    try:
        verify_plan(plan, program)
    except StrettoError:
        return False
    return True


def on_one_host(plan):
    return replace(plan, hosts=())


@pytest.mark.parametrize("text", [BY_ANOTHER_LANE, THROUGH_A_THIRD, SOURCE_TOO_EARLY])
def test_what_is_right_on_one_host_is_refused_on_two(text):
    """By another lane, through a third rank, a source stored over: all are refused."""
    plan = parse_plan(text)

    assert accepts(on_one_host(plan))
    assert judge_plan(on_one_host(plan)).right
    with pytest.raises(PlanError, match=r"may (not )?have landed"):
        verify_plan(plan)
    assert not judge_plan(plan).right


def test_a_put_has_landed_when_its_own_lane_has_said_so():
    """The direct signal after it is enough; without release, or without it, nothing."""
    plan = parse_plan(ONE_SENDS)
    lane = plan.ranks[0][0]
    relaxed = (lane[0], lane[1]._replace(release=False), lane[2])
    before = (lane[1], lane[0], lane[2])

    assert accepts(plan)
    assert judge_plan(plan).right
    for steps in (relaxed, before):
        wrong = replace(plan, ranks=((steps,), plan.ranks[1]))
        assert not accepts(wrong)
        assert not judge_plan(wrong).right


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "put r1.stage[0] <- input[0] @0",
            "put r1.output[0] <- input[0] @0",
            "staging",
        ),
        (
            "put r1.stage[0] <- input[0] @0",
            "put_packets r1.stage[0]! <- input[0] @0",
            "packets do not go there",
        ),
        ("copy output[0] <- stage[0] @0", "get output[0] <- r0.input[0] @0", "a put"),
        (
            "put r1.stage[0] <- input[0] @0",
            "put r1.stage[0], r1.stage[0] <- input[0] @0",
            "from one place to one place",
        ),
        ("<- input[0] @0", "<- input[0] @0 finish", "nothing is finished on the way"),
    ],
)
def test_only_plain_puts_reach_another_host(old, new, told):
    """Whatever else touches memory there is refused, in words that say why."""
    wrong = parse_plan(ONE_SENDS.replace(old, new, 1))

    with pytest.raises(BoundsError, match=f"rank [01] is on another host: .*{told}"):
        verify_plan(wrong)
    assert not judge_plan(wrong).right


@pytest.mark.parametrize("hosts", [TWO_AND_TWO, THREE_AND_ONE, APART, (0, 1, 0, 1)])
def test_the_catalogue_is_proved_and_lands_late(hosts):
    """All shipped programs, near packets or not, in place or not, computed bit for bit.

    In the simulator puts land as late and as disordered as the rules allow.
    """
    rng = np.random.default_rng(7)
    for nth, (label, program) in enumerate(programs(4)):
        proved = verify(program)
        how = Schedule.parse(SCHEDULES[nth % 2])
        in_place = nth // 2 % 2 == 0
        plan = lower(proved, how, in_place=in_place, hosts=hosts)
        assert parse_plan(str(plan)) == plan
        proved_plan = verify_plan(plan, proved)
        shape = Shape(num_ranks=4, split=program.split, params=program.params)
        parts = collectives.get(program.collective).num_parts(shape)
        counts = (12 * program.split,) * parts
        inputs = [
            draw(rng, c, "float32", Operator.SUM) for c in input_counts(program, counts)
        ]
        call = {"dtype": "float32", "counts": counts}
        got = interleave(
            proved_plan, inputs, seed=nth, in_place=in_place, tile_bytes=16, **call
        )
        want = interpret(program, inputs, op=Operator.SUM, **call)
        assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True)), label


@pytest.mark.parametrize("text", [BY_ANOTHER_LANE, THROUGH_A_THIRD, SOURCE_TOO_EARLY])
def test_the_simulator_shows_what_the_proof_refuses(text):
    """Under some seed such a plan computes something else."""
    plan = parse_plan(text)
    rng = np.random.default_rng(1)
    n = 1 if "permute" in text else 2
    inputs = [
        draw(rng, 64 * n if plan.inputs[r] else 0, "float32", Operator.SUM)
        for r in range(plan.num_ranks)
    ]
    parts = plan.num_ranks if n == 1 else 4
    call = {"dtype": "float32", "counts": (64,) * parts, "in_place": plan.in_place}
    want = interleave(Verified(on_one_host(plan)), inputs, seed=0, **call)

    def differs(seed):
        got = interleave(Verified(plan), inputs, seed=seed, **call)
        return not all(map(np.array_equal, want, got))

    assert any(differs(seed) for seed in range(200))


@pytest.mark.parametrize(
    "hosts", nightly(map(pytest.param, [(0, 0, 1), (0, 1), TWO_AND_TWO]), 3)
)
def test_proof_and_referee_agree_on_mutants(hosts):
    """What one accepts, the other does: signals dropped, weakened, sent elsewhere."""
    rng = random.Random(len(hosts))
    refused = 0
    for label, program in programs(len(hosts)):
        proved = verify(program)
        plan = lower(proved, Schedule(), hosts=hosts)
        far = [
            (f"r{rank}.{lane} step {i}", step)
            for rank, lane, i, step in plan.steps()
            if isinstance(step, Signal | Move)
            and plan.is_far(
                rank, step.rank if isinstance(step, Signal) else step.dsts[0].rank
            )
        ]
        edits = [e for e in plan_edits(plan) if any(e[0].endswith(at) for at, _ in far)]
        for what, make in rng.sample(edits, min(6, len(edits))):
            try:
                mutant = make()
            except StrettoError:
                continue
            right = judge_plan(mutant, program).right
            assert right or not accepts(mutant, proved), f"{label}: {what}"
            refused += not right
    assert refused > 20


def test_an_input_that_would_be_stored_over_is_kept():
    """In place, an exchange puts from a copy; where a signal comes in time, not."""
    exchange = lower(
        verify(algorithms.get("all_to_all/one_shot").build(2)),
        Schedule(),
        in_place=True,
        hosts=(0, 1),
    )
    summed = lower(
        verify(algorithms.get("all_reduce/two_shot").build(2)),
        Schedule(),
        in_place=True,
        hosts=(0, 1),
    )

    def sources(plan):
        return {
            step.srcs[0].space
            for rank, _, _, step in plan.steps()
            if isinstance(step, Move) and plan.is_far(rank, step.dsts[0].rank)
        }

    assert sources(exchange) == {Space.STAGE}
    assert Space.INPUT in sources(summed)


@pytest.mark.parametrize("words", ["pull bulk staged", "push bulk zero_copy"])
def test_pinned_schedules_that_reach_between_hosts_are_refused(words):
    """The sentence says who, where, and what to write instead."""
    program = verify(algorithms.get("all_reduce/ring").build(4))

    with pytest.raises(
        CallError, match=r"rank \d \(host \d\) takes from rank \d \(host"
    ):
        lower(program, Schedule.parse(words), hosts=TWO_AND_TWO)


def test_ranks_of_one_host_have_plans_as_before():
    """However the hosts are named."""
    program = verify(algorithms.get("all_reduce/ring").build(4))
    plain = lower(program, Schedule())

    assert plain == lower(program, Schedule(), hosts=["a"] * 4)
    assert plain.digest != lower(program, Schedule(), hosts="aabb").digest
