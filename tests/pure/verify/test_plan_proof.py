"""What the proof of a plan refuses: each family that once went through, or might."""

import re
from dataclasses import replace
from importlib.resources import files

import pytest
from tests.checking.judge import plan_is_right

from stretto import algorithm, reduce
from stretto.compiler.lower import lower
from stretto.compiler.plan import (
    FLAG_BITS,
    Move,
    Plan,
    Schedule,
    Signal,
    Space,
    Wait,
    parse_plan,
)
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import (
    BoundsError,
    ParseError,
    PlanError,
    PromiseError,
    UndefinedError,
)
from stretto.executors.cpu.words import FLAG
from stretto.program import algorithms
from stretto.program.ir import freeze, parse_program


def plan_of(name, n, schedule="push bulk staged", **options):
    return lower(
        verify(algorithms.get(name).build(n)), Schedule.parse(schedule), **options
    )


def changed(plan, rank, change):
    """Return the plan with one rank's first lane changed."""
    lane = change(list(plan.ranks[rank][0]))
    ranks = list(plan.ranks)
    ranks[rank] = (tuple(lane), *plan.ranks[rank][1:])
    return replace(plan, ranks=tuple(ranks))


# In place: the same elements, or refused.


@algorithm("all_to_all/uneven_cuts", split=2)
def uneven_cuts(ranks):
    """Ranks send both chunks to lower ranks at once, to higher ones one by one."""
    for r in ranks:
        for q in ranks:
            if q < r:
                q.output[2 * r : 2 * r + 2] = r.input[2 * q : 2 * q + 2]
            else:
                for j in range(2):
                    q.output[2 * r + j] = r.input[2 * q + j]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("schedule", ["push packets staged", "push bulk staged"])
def test_parts_cut_otherwise_in_both_directions_are_one_cut_in_place(n, schedule):
    """A slice of an atom must not be a slice and a half of what lies under it."""
    program = verify(uneven_cuts.build(n))
    apart = lower(program, Schedule.parse(schedule))
    together = lower(program, Schedule.parse(schedule), in_place=True)

    with pytest.raises(PlanError, match=r"in place, rank \d: input.* is cut otherwise"):
        verify_plan(replace(apart, in_place=True), program)
    assert len(apart.atoms) < len(together.atoms)
    assert verify_plan(together, program).value == together
    for seed in range(4):
        assert plan_is_right(together, seed=seed)


def test_what_lies_over_something_of_another_kind_is_refused(monkeypatch):
    """Chunks of different sizes that begin together are not the same elements."""
    plan = plan_of("all_gather/ring", 3, in_place=True)
    verify_plan(plan)
    shifted = "stretto.program.collectives.all_gather.AllGather.in_place"
    monkeypatch.setattr(shifted, lambda self, shape, rank: 1 - rank)
    shares = "stretto.program.collectives.members.Collective.chunks_per_part"
    monkeypatch.setattr(shares, lambda self, shape: 3)

    with pytest.raises(PlanError, match="nothing says that they have one size"):
        verify_plan(plan)


# What lies in staging.


RELAY = """plan broadcast/relay collective=broadcast ranks=3 split=1 root=0
schedule push bulk staged
atoms 0:1 1:2 2:3
rank 0 input 0:3@0 output 0:3@0 stage 0
  lane 0
    put output[0], r1.stage[0] <- input[0] @0:3
    signal r1.0 n=1
    wait r2.0 n=1
rank 1 input output 0:3@0 stage 3
  lane 0
    wait r0.0 n=1
    put output[0], r2.stage[0] <- stage[0] @0:3
    signal r2.0 n=1
    signal r0.0 n=1 relaxed
    wait r2.0 n=1
rank 2 input output 0:3@0 stage 3
  lane 0
    signal r0.0 n=1 relaxed
    signal r1.0 n=1 relaxed
    wait r1.0 n=1
    copy output[0] <- stage[0] @0:3
"""


def test_a_unit_of_staging_is_read_as_the_atom_that_it_holds():
    """Its size is that of its atom: another's would move another number of elements."""
    plan = parse_plan(RELAY)
    closed = changed(plan, 0, lambda lane: [*lane, Wait(1, 0, 1)])
    verify_plan(closed)

    def mixed_up(lane):
        at = next(i for i, s in enumerate(lane) if isinstance(s, Move))
        move = lane[at]
        (far,) = [d for d in move.dsts if d.space is Space.STAGE]
        (near,) = [d for d in move.dsts if d.space is Space.OUTPUT]
        lane[at : at + 1] = [
            move._replace(dsts=(near,)),
            move._replace(dsts=(far,), start=1, stop=2),
            move._replace(
                dsts=(far._replace(pos=1),),
                srcs=(move.srcs[0]._replace(pos=1),),
                start=0,
                stop=1,
            ),
            move._replace(
                dsts=(far._replace(pos=2),),
                srcs=(move.srcs[0]._replace(pos=2),),
                start=2,
                stop=3,
            ),
        ]
        return lane

    with pytest.raises(PlanError, match="as atom 1, and it holds 0"):
        verify_plan(changed(closed, 1, mixed_up))


# The order of sums.


def backwards(lane):
    at = next(i for i, s in enumerate(lane) if isinstance(s, Move) and len(s.srcs) > 1)
    lane[at] = lane[at]._replace(srcs=lane[at].srcs[::-1])
    return lane


@pytest.mark.parametrize("name", ["one_shot", "two_shot", "ring", "recursive_doubling"])
def test_a_rank_that_adds_in_another_order_than_the_program_is_refused(name):
    """The bits of a result depend on the program, and on nothing that runs it."""
    program = verify(algorithms.get(f"all_reduce/{name}").build(4))
    plan = lower(program, Schedule())
    verify_plan(plan, program)

    for rank in range(4):
        with pytest.raises(PromiseError, match="made in another order than by its"):
            verify_plan(changed(plan, rank, backwards), program)


def test_a_plan_alone_makes_what_ranks_have_in_common_in_one_way():
    """Without its program, the ranks are compared with each other."""
    plan = plan_of("all_reduce/one_shot", 3)

    with pytest.raises(PromiseError, match="made in another order than by rank 0"):
        verify_plan(changed(plan, 2, backwards))


def test_a_chain_is_not_a_tree():
    """((a + b) + c) + d and (a + b) + (c + d) are different sums of the same inputs."""

    @algorithm("reduce/chained")
    def chained(ranks, root=0):
        t = ranks[0].scratch("t", 1)
        t[0] = ranks[0].input[0]
        for q in ranks[1:]:
            t[0] = reduce(t[0], q.input[0])
        ranks[0].output[0] = t[0]
        for c in range(1, len(ranks)):
            ranks[0].output[c] = reduce(q.input[c] for q in ranks)

    @algorithm("reduce/at_once")
    def at_once(ranks, root=0):
        ranks[0].output[:] = reduce(q.input[:] for q in ranks)

    chain, tree = verify(chained.build(4, root=0)), verify(at_once.build(4, root=0))
    plan = lower(chain, Schedule())

    verify_plan(plan, chain)
    with pytest.raises(PromiseError, match=r"output\[0\] is made in another order"):
        verify_plan(plan, tree)


def test_a_plan_is_compared_with_a_program_of_its_kind_only():
    """A plan of four ranks does not run a program of three."""
    plan = plan_of("all_reduce/ring", 4)

    with pytest.raises(PlanError, match=r"num_ranks=4; .* has num_ranks=3"):
        verify_plan(plan, verify(algorithms.get("all_reduce/ring").build(3)))


# Lanes.


def two_lanes(close):
    """Return two ranks of two lanes, each of which exchanges one half."""
    text = ["plan all_to_all/lanes collective=all_to_all ranks=2 split=2"]
    text += ["schedule push packets staged", "atoms 0:1 1:2 2:3 3:4 4:5 5:6 6:7 7:8"]
    for r in range(2):
        q = 1 - r
        text.append(
            f"rank {r} input 0:4@{4 * r} output 0:2@{2 * r} 2:4@{4 + 2 * r} stage 2"
        )
        for lane in range(2):
            mine, theirs = 4 * r + 2 * q + lane, 4 * q + 2 * r + lane
            own = 4 * r + 2 * r + lane
            text += [f"  lane {lane}"]
            if close:
                text += [f"    signal r{q}.{m} n=1 relaxed" for m in range(2)]
                text += [f"    signal r{r}.{1 - lane} n=1 relaxed"]
            text += [
                f"    put_packets r{q}.stage[{lane}]! <- input[{2 * q + lane}] @{mine}",
                f"    copy output[{2 * r + lane}] <- input[{2 * r + lane}] @{own}",
                f"    read_packets output[{2 * q + lane}] <- stage[{lane}]! @{theirs}",
            ]
            if close:
                text += [f"    wait r{q}.{m} n=1" for m in range(2)]
                text += [f"    wait r{r}.{1 - lane} n=1"]
    return parse_plan("\n".join(text) + "\n")


def test_every_lane_closes_its_epochs():
    """A lane that hears of one lane only may be two epochs ahead of another."""
    verify_plan(two_lanes(close=True))

    with pytest.raises(PlanError, match="not closed: rank 0 may end an epoch before"):
        verify_plan(two_lanes(close=False))


def test_a_rank_without_lanes_is_refused():
    """It would never enter."""
    plan = plan_of("all_reduce/one_shot", 2)

    with pytest.raises(BoundsError, match="at least one lane"):
        verify_plan(replace(plan, ranks=(plan.ranks[0], ())))


# Signals may be left out where a later one says as much.


def meet(signals, waits):
    lanes = [
        (*(Signal(q, 0, n) for n in signals), *(Wait(q, 0, n) for n in waits))
        for q in (1, 0)
    ]
    return Plan(
        name="barrier/meet",
        collective="barrier",
        num_ranks=2,
        params=freeze({}),
        inputs=((), ()),
        outputs=((), ()),
        stage_units=(0, 0),
        ranks=tuple((lane,) for lane in lanes),
    )


@pytest.mark.parametrize(
    ("signals", "waits"),
    [((1,), (1,)), ((3,), (1, 2, 3)), ((1, 4), (2,)), ((2,), (1,))],
)
def test_a_wait_is_served_by_any_signal_that_says_so_much(signals, waits):
    """Signals carry numbers that rise; a wait asks for a number or more."""
    verify_plan(meet(signals, waits))


@pytest.mark.parametrize(
    ("signals", "waits", "why"),
    [
        ((2, 2), (2,), "they rise"),
        ((2, 1), (1,), "they rise"),
        ((1,), (2,), "can hang"),
    ],
)
def test_signals_that_do_not_rise_or_suffice_are_refused(signals, waits, why):
    """A flag holds the last number stored: a smaller one would take a signal back."""
    with pytest.raises(PlanError, match=why):
        verify_plan(meet(signals, waits))


@pytest.mark.parametrize("number", [1 << FLAG_BITS, (1 << FLAG_BITS) + 1, 1 << 44])
def test_a_signal_that_would_spill_into_the_next_epoch_is_refused(number):
    """A flag has the epoch above the number: a wait of the next would end early."""
    with pytest.raises(BoundsError, match="counted from 1"):
        verify_plan(meet((number,), (1,)))
    verify_plan(meet(((1 << FLAG_BITS) - 1,), (1,)))


def test_a_lane_of_more_steps_than_a_flag_can_count_is_refused():
    """Packets announce themselves by the number of their step."""
    plan = meet((1,), (1,))
    long = tuple(Signal(1, 0, n) for n in range(1, (1 << FLAG_BITS) + 1))

    with pytest.raises(BoundsError, match="steps"):
        verify_plan(replace(plan, ranks=((long,), plan.ranks[1])))


def test_executors_have_flags_as_the_proof_takes_them():
    """The number below, the epoch above; in CUDA it is written where it is used."""
    kernels = files("stretto.executors.cuda") / "kernels"
    assert FLAG == FLAG_BITS
    for name in ("flag.cuh", "packet.cuh", "task.cuh"):
        shifts = re.findall(r"epoch << (\w+)", (kernels / name).read_text())
        assert shifts, name
        assert set(shifts) == {str(FLAG_BITS)}, name


@pytest.mark.parametrize("units", [(-1, 0, 0), (0, -3, 0)])
def test_there_is_no_negative_staging(units):
    """A size below zero would make room for whatever follows."""
    plan = plan_of("all_gather/ring", 3)

    with pytest.raises(BoundsError, match="units of staging"):
        verify_plan(replace(plan, stage_units=units))


def test_a_missing_wait_is_said_with_who_stores_what_is_read():
    """Whichever wait is taken away: nothing is read that only chance had stored."""
    text = str(lowered("all_gather/recursive", 4, "push bulk staged"))
    lines = text.splitlines(keepends=True)
    said = []
    for at, line in enumerate(lines):
        if not line.lstrip().startswith("wait"):
            continue
        with pytest.raises((PlanError, UndefinedError)) as caught:
            verify_plan(parse_plan("".join(lines[:at] + lines[at + 1 :])))
        said += [str(caught.value)] * isinstance(caught.value, UndefinedError)
    who = r"reads what nobody wrote so far: rank \d stores it in put .*"
    for text in said:
        assert re.search(f"{who}; want a wait for that before it$", text), text
    assert len(said) >= 4


def test_the_text_of_a_plan_is_no_program_and_says_who_reads_it():
    """As `stretto verify FILE` has it, too."""
    text = str(lowered("all_gather/recursive", 4, "push bulk staged"))
    with pytest.raises(ParseError, match=r"this is the text of a plan.*verify_plan"):
        parse_program(text)


def lowered(name, ranks, schedule):
    program = verify(algorithms.get(name).build(ranks))
    return lower(program, Schedule.parse(schedule))
