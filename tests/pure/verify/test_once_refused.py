"""Programs and schedules that are right, and were refused."""

import pytest
from tests.checking.cases import SCHEDULES
from tests.checking.judge import plan_is_right, program_is_right

from stretto import algorithm
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import PromiseError


@algorithm("all_gather/through_one_chunk")
def through_one_chunk(ranks):
    """Everything goes through one chunk of scratch on each rank, part after part."""
    for r in ranks:
        room = r.scratch("room", 1)
        for q in ranks:
            room[0] = q.input[0]
            r.output[q] = room[0]


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scratch_may_be_used_again_for_a_chunk_of_another_size(n, schedule):
    """It has the size of what was last stored in it."""
    program = through_one_chunk.build(n)
    plan = lower(verify(program), Schedule.parse(schedule))

    assert program_is_right(program, seed=n)
    assert verify_plan(plan, verify(program)).value == plan
    assert plan_is_right(plan, seed=n)


def test_a_sum_in_scratch_keeps_its_size():
    """What is added to it must have the size that it has."""

    @algorithm("all_gather/sum_of_two_sizes")
    def sum_of_two_sizes(ranks):
        for r in ranks:
            room = r.scratch("room", 1)
            room[0] = ranks[0].input[0]
            room[0] += ranks[1].input[0]
            r.output[0] = room[0]

    with pytest.raises(PromiseError, match="size"):
        verify(sum_of_two_sizes.build(2))


@algorithm("broadcast/pushed_then_pulled")
def pushed_then_pulled(ranks, root=0):
    """The root's neighbour gets all of it, and the others get it from there."""
    relay = ranks[root + 1]
    with ranks.phase("push"):
        relay.output[:] = ranks[root].input[:]
    with ranks.phase("pull"):
        for r in ranks:
            if r not in (root, relay):
                r.output[:] = relay.output[:]
    ranks[root].output[:] = ranks[root].input[:]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    "words",
    [
        "push packets staged pull:bulk+pull",
        "push packets staged pull:bulk+pull+zero_copy",
        "push packets staged pull:bulk+pull tile_bytes=16 blocks=2",
    ],
)
def test_what_came_in_packets_may_be_pulled_from_there(n, words):
    """Its owner reads the packets, and lays out what peers may read."""
    program = verify(pushed_then_pulled.build(n))
    plan = lower(program, Schedule.parse(words))

    assert verify_plan(plan, program).value == plan
    for seed in range(4):
        assert plan_is_right(plan, seed=seed)
