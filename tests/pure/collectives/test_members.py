"""Among some of the ranks: members by their place, and nothing for the others."""

import numpy as np
import pytest
from tests.checking.cases import SCHEDULES, programs, shape_of
from tests.checking.groups import among, group_programs
from tests.checking.judge import plan_is_right, program_is_right
from tests.checking.plan_runs.interleave import interleave

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import BoundsError, CallError, ProgramError, PromiseError
from stretto.program import collectives
from stretto.program.collectives import Operator, Shape
from stretto.program.ir import parse_program
from stretto.program.lang import algorithm, reduce
from stretto.testing import draw, input_counts, interpret

MEMBERS = (0, 2, 3)


def shape(**params):
    return Shape(num_ranks=5, params=params)


@algorithm("all_reduce/at_the_relay", members=MEMBERS)
def at_the_relay(ranks):
    """Rank 1 adds up for the others."""
    room = ranks[1].scratch("room", 3)
    room[:] = reduce(r.input[:] for r in ranks.members)
    for r in ranks.members:
        r.output[:] = room[:]


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_programs_among_some_ranks_keep_their_promise(n):
    """With and without relays: proved, right, and printed as they parse."""
    for label, program in group_programs(n):
        assert program == parse_program(str(verify(program).value)), label
        assert program_is_right(program, seed=n), label


@pytest.mark.parametrize("words", [s for s in SCHEDULES if "staged" in s])
def test_their_plans_are_proved_and_right(words):
    """In random orders, over epochs, in place or not; the text is the plan."""
    for seed, (label, program) in enumerate(group_programs(4)):
        plan = lower(verify(program), Schedule.parse(words), in_place=True)

        assert plan == parse_plan(str(verify_plan(plan).value)), label
        assert seed % 8 or plan_is_right(plan, seed, tries=1), label


def test_an_average_divides_by_the_members():
    """Bit for bit in the interpreter of programs and in plans, like 3 ranks alone."""
    alone = next(p for label, p in programs(3) if label.startswith("all_reduce/ring"))
    group = among(alone, MEMBERS, 5)
    counts, rng = [40], np.random.default_rng(0)
    given = [draw(rng, 40, "float32", Operator.AVG) for _ in MEMBERS]
    inputs = [np.empty(0, np.float32)] * 5
    for rank, part in zip(MEMBERS, given, strict=True):
        inputs[rank] = part
    options = {"dtype": "float32", "op": Operator.AVG, "counts": counts}
    want = interpret(alone, given, **options)
    plan = verify_plan(lower(verify(group), Schedule()))
    run = interleave(plan, inputs, seed=0, **options)
    oracle = collectives.get("all_reduce").oracle(
        shape_of(group), inputs, Operator.AVG, np.array(counts)
    )

    assert [40, 0, 40, 40, 0] == input_counts(group, counts)
    for found in (interpret(group, inputs, **options), run):
        assert [0, 0] == [found[1].size, found[4].size]
        for place, rank in enumerate(MEMBERS):
            np.testing.assert_array_equal(want[place], found[rank])
            np.testing.assert_allclose(oracle[rank], found[rank], rtol=1e-5)


def test_parts_and_bits_are_the_members():
    """Places number parts and chunks; promises name ranks."""
    gather, kept = collectives.get("all_gather"), shape(members=MEMBERS)

    assert 3 == gather.num_parts(kept)
    assert [(), ((0, 1, 1),)] == [gather.input_runs(kept, r) for r in (1, 2)]
    assert (1 << 0, 1 << 2, 1 << 3) == tuple(n.ranks for n in gather.promise(kept, 2))
    assert () == gather.promise(kept, 4)
    assert 0b1101 == collectives.get("all_reduce").promise(kept, 3)[0].ranks


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("broadcast", {"root": 5}, "want a rank below 5"),
        ("permute", {"pairs": ((0, 5),)}, "no rank 5"),
        ("permute", {"pairs": ((0, 1), (2, 1))}, "once"),
        ("permute", {"pairs": 7}, "want .source, target."),
        ("all_gather", {"members": (2, 0)}, "want ranks in order"),
        ("all_gather", {"members": ()}, "want ranks in order"),
        ("all_gather", {"members": [0, 1]}, "want ranks in order"),
        ("all_gather", {"members": (0, 1, 1)}, "want ranks in order"),
        ("all_gather", {"members": (0, True)}, "want ranks in order"),
        ("all_gather", {"members": (0, 5)}, "want ranks below 5"),
        ("broadcast", {"members": MEMBERS, "root": 1}, "want one of .0, 2, 3."),
        ("permute", {"members": MEMBERS, "pairs": ()}, "its pairs say who takes part"),
    ],
)
def test_wrong_parameters_are_answered(name, params, text):
    """Roots and pairs that exist; members in order, the root among them."""
    with pytest.raises(CallError, match=text):
        collectives.get(name).check(shape(**params))


def test_an_author_names_members_places_and_relays():
    """Every rank has scratch; buffers and a place are the members'."""
    program = at_the_relay.build(4)

    assert MEMBERS == program.params["members"]
    assert "members=(0,2,3)" in str(program).split("\n")[0]
    assert verify(program)
    with pytest.raises(ProgramError, match=r"3 ranks; its members are .0, 2, 3."):
        at_the_relay.build(3)

    def build(body):
        return algorithm("all_gather/wrong", members=MEMBERS)(body).build(4)

    def reads_a_relay(ranks):
        ranks[0].output[:1] = ranks[1].input[:]

    def asks_its_place(ranks):
        ranks[0].output[ranks[1].place] = ranks[0].input[:]

    with pytest.raises(BoundsError, match=r"rank 1 has no input .* or its members"):
        build(reads_a_relay)
    with pytest.raises(BoundsError, match="rank 1 is not a member, so it has no place"):
        build(asks_its_place)


def test_a_relay_that_adds_something_is_found_out():
    """The proof counts contributions of members only."""

    def twice(ranks):
        room = ranks[1].scratch("room", 3)
        room[:] = reduce(ranks[0].input[:], ranks[2].input[:], ranks[2].input[:])
        for r in ranks.members:
            r.output[:] = room[:]

    program = algorithm("all_reduce/twice", members=MEMBERS)(twice).build(4)

    with pytest.raises(PromiseError, match=r"missing \[3\], extra \[2\]"):
        verify(program)


def test_members_are_a_parameter_of_every_algorithm():
    """One that speaks of `ranks.members` serves any of them."""

    def star(ranks):
        first = ranks.members[0]
        first.output[:] = reduce(r.input[:] for r in ranks.members)
        for r in ranks.members[1:]:
            r.output[:] = first.output[:]

    made = algorithm("all_reduce/star")(star)

    for members in ((1,), (0, 4), (1, 2, 3)):
        assert program_is_right(verify(made.build(5, members=members)).value, seed=1)
    assert verify(made.build(5))
