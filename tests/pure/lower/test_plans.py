"""Every shipped algorithm, under every kind of schedule, gives a proved plan."""

import pytest
from tests.checking.cases import SCHEDULES, programs
from tests.checking.judge import plan_is_right

from stretto import algorithm, reduce
from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule, Space, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, PlanError
from stretto.program import algorithms

PUSHED = "push packets staged"


@pytest.mark.parametrize(
    "n", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 7, 8, 9))]
)
def test_every_algorithm_has_a_proved_plan_under_every_schedule(n):
    """Out of place everything is proved; in place everything staged is."""
    refused = set()
    for label, program in programs(n):
        proved = verify(program)
        for text in SCHEDULES:
            for in_place in (False, True):
                plan = lower(proved, Schedule.parse(text), in_place=in_place)
                try:
                    verify_plan(plan)
                except PlanError:
                    refused.add((label, text, in_place))

    assert not {r for r in refused if not r[2] or "zero_copy" not in r[1]}


@pytest.mark.parametrize("n", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_plan_computes_its_collective_in_random_orders(n):
    """What is proved comes out right in the simulator, several epochs long."""
    for label, program in programs(n):
        for seed, text in enumerate(SCHEDULES):
            plan = lower(verify(program), Schedule.parse(text))

            assert plan_is_right(plan, seed=seed, tries=1), f"{label} {text}"


def test_plans_print_and_parse_back():
    """The text of a plan is the plan."""
    for _, program in programs(3):
        for text in SCHEDULES:
            plan = lower(verify(program), Schedule.parse(text))

            assert plan == parse_plan(str(plan))


@pytest.mark.parametrize("name", algorithms.names())
def test_the_plan_of_every_algorithm_is_as_recorded(name, golden):
    """Golden plans at the smallest telling number of ranks."""
    chosen = algorithms.get(name)
    n = next(n for n in (3, 4) if chosen.refuses(n) is None)
    params = {"pairs": ((0, 1), (1, 2))} if name == "permute/direct" else {}
    plan = lower(verify(chosen.build(n, **params)), Schedule.parse(PUSHED))

    golden(str(plan), f"lower/{name.replace('/', '_')}.txt")


def test_the_digest_of_every_plan_is_as_recorded(golden):
    """A refactor leaves this file unchanged."""
    lines = []
    for n in (2, 4, 8):
        for label, program in programs(n):
            proved = verify(program)
            for text in SCHEDULES:
                plan = lower(proved, Schedule.parse(text))
                lines.append(f"{plan.digest} {label} {text}")

    golden("\n".join(lines), "digests.txt")


def test_packets_are_not_pulled_and_not_sent_to_callers():
    """A schedule that means nothing is refused, with what is meant."""
    program = verify(algorithms.get("all_reduce/ring").build(3))

    for text in ("pull packets staged", "push packets zero_copy"):
        with pytest.raises(CallError, match="announce themselves"):
            lower(program, Schedule.parse(text))


def test_a_plan_pinned_in_place_and_not_safe_there_is_refused():
    """Everyone reads everyone's input while outputs are stored over it."""
    program = verify(algorithms.get("all_reduce/one_shot").build(3))
    plan = lower(program, Schedule.parse("pull zero_copy"), in_place=True)

    with pytest.raises(PlanError, match="may still be writing it"):
        verify_plan(plan)


@algorithm("all_reduce/sent_twice", split=8)
def sent_twice(ranks):
    """What rank 0 has is sent in many pieces, added to, and sent once more."""
    mine, other = ranks
    for c in range(16):
        parts = [mine.input[c], other.input[c]] if c else [mine.input[c]]
        mine.output[c] = reduce(parts)
    other.output[:] = mine.output[:]
    mine.output[0] += other.input[0]
    other.output[:] = mine.output[:]


@pytest.mark.parametrize("text", SCHEDULES)
def test_what_is_sent_again_is_read_again_after_a_store(text):
    """Many pieces that were read once are remembered: until one of them changes."""
    program = verify(sent_twice.build(2))

    assert verify_plan(lower(program, Schedule.parse(text)), program)


def test_what_goes_to_several_peers_in_many_pieces_is_laid_out_once():
    """In a box of three each rank shares its sixteen parts with both of the others."""
    program = verify(algorithms.get("all_reduce/hierarchical").build(48, group=3))
    plan = lower(program, Schedule.parse(PUSHED))

    assert verify_plan(plan, program)
    for rank, _, _, step in plan.steps():
        if isinstance(step, Move):
            mine = [d for d in step.dsts if d[:2] == (rank, Space.STAGE)]
            assert len(mine) <= 1


@pytest.mark.parametrize("text", ["push bulk zero_copy", "pull bulk zero_copy"])
@pytest.mark.parametrize(
    ("name", "num_ranks", "params"),
    [
        ("all_reduce/hierarchical", 32, {"group": 2}),
        ("all_reduce/rabenseifner", 17, {}),
    ],
)
def test_many_sums_that_are_finished_where_they_come_are_proved(
    name, num_ranks, params, text
):
    """A rank's own sum is finished in its output alone: it does not travel joined."""
    program = verify(algorithms.get(name).build(num_ranks, **params))

    assert verify_plan(lower(program, Schedule.parse(text)), program)
