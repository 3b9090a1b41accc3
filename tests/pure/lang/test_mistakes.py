"""What authors get wrong is answered with the line, and with what to write instead."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import (
    BoundsError,
    CallError,
    LaunchEnvironmentError,
    ProgramError,
    RanksError,
    StrettoError,
)
from stretto.program.ir import parse_program
from stretto.program.lang import algorithm, reduce

N = 3


def plus(ranks):
    for r in ranks:
        r.output[:] = ranks[0].input[:] + ranks[1].input[:]


def bracketed(ranks):
    ranks[0].output[0] = ranks[0].input[0] + (ranks[1].input[0] + ranks[2].input[0])


def summed(ranks):
    ranks[0].output[0] = sum(q.input[0] for q in ranks)


def expression(ranks):
    total = ranks[0].input[:] + ranks[1].input[:]
    total += ranks[2].input[:]
    ranks[0].output[:] = total


def variable(ranks):
    held = ranks[0].output[0]
    held += ranks[1].input[0]
    ranks[0].output[1] = ranks[0].input[1]


def variable_at_the_end(ranks):
    held = ranks[0].output[0]
    held += ranks[1].input[0]


def buffers(ranks):
    ranks[0].output[:] = reduce(q.input for q in ranks)


def buffer_to_buffer(ranks):
    ranks[0].output = ranks[0].input


def fraction(ranks):
    ranks[0].output[len(ranks) / 2] = ranks[0].input[1]


def truth(ranks):
    ranks[0].output[True] = ranks[0].input[1]


def chunk_as_index(ranks):
    for c in ranks[0].input:
        ranks[0].output[c] = c


def fractional_scratch(ranks):
    ranks[0].scratch("s", 1.5)


def outside(ranks):
    ranks[0].output[0:9] = ranks[0].input[0:9]


def raised(ranks):
    return ranks[0].nothing


def doubled(ranks):
    for r in ranks:
        r.scratch("s", N)[:] = r.input[:]
    for r in ranks:
        s = r.scratch("s", N)
        for q in r.others:
            s[:] += q.input[:]
        s[:] += ranks[0].input[:]
        r.output[:] = s[:]


def twice_at_once(ranks):
    for r in ranks:
        r.output[:] = reduce(r.input[:], *(q.input[:] for q in ranks))


def forgotten_and_copied(ranks):
    s = ranks[0].scratch("s", N)
    s[:] = reduce(q.input[:] for q in ranks[1:])
    for r in ranks:
        r.output[:] = s[:]


def other_size(ranks):
    ranks[0].output[0] = ranks[0].input[1]


def scratch_of_other_size(ranks):
    ranks[0].scratch("s", 1)[0] = ranks[0].input[0]
    ranks[0].output[2] = ranks[0].scratch("s", 1)[0]


def nothing_stored(ranks):
    ranks[0].scratch("s", N)[:] = ranks[0].input[:]


def updated_first(ranks):
    ranks[0].output[:] += ranks[1].input[:]


def read_too_early(ranks):
    ranks[0].output[:] = ranks[1].output[:]
    ranks[1].output[:] = ranks[0].input[:]


def partial(ranks):
    for r in ranks:
        r.output[0] = ranks[0].input[r]


def untransposed(ranks):
    for r in ranks:
        r.output[:] = r.input[:]


def not_mine(ranks):
    for r in ranks:
        for q in ranks:
            r.output[q] = r.input[0]


MISTAKES = {
    "all_reduce": (
        *(plus, bracketed, summed, expression, variable, variable_at_the_end),
        *(buffers, buffer_to_buffer, fraction, truth, chunk_as_index),
        *(fractional_scratch, outside, raised, doubled, twice_at_once),
        *(forgotten_and_copied, other_size, scratch_of_other_size, nothing_stored),
        *(updated_first, read_too_early),
    ),
    "all_to_all": (partial, untransposed),
    "all_gather": (not_mine,),
}


def told(collective, function):
    """Return the answer; lines are counted from the function's first."""
    first = function.__code__.co_firstlineno
    with pytest.raises(ProgramError) as raised:
        verify(algorithm(f"{collective}/{function.__name__}")(function).build(N))
    text = str(raised.value)
    head, _, _ = text.partition(": ")
    assert head.startswith(f"{__file__}:"), text
    for line in range(first, first + 20):
        text = text.replace(f"{__file__}:{line}", f"LINE+{line - first}")
    return f"{function.__name__}\n  {type(raised.value).__name__}: {text}\n"


def test_every_mistake_has_an_answer(golden):
    """The text of each: where, what was got, what to write instead."""
    assert Path(__file__).name == "test_mistakes.py"
    golden("\n".join(told(c, f) for c, every in MISTAKES.items() for f in every))


def test_a_sum_may_be_written_as_programs_print_it():
    """`a + b + c` is reduce(a, b, c)."""

    def written(ranks):
        for r in ranks:
            total = ranks[0].input[:] + ranks[1].input[:]
            r.output[:] = total + ranks[2].input[:]

    def reduced(ranks):
        for r in ranks:
            r.output[:] = reduce(q.input[:] for q in ranks)

    one, other = (algorithm("all_reduce/sum")(f).build(3) for f in (written, reduced))

    assert other == one
    verify(one)


def test_a_buffer_is_gone_through_once():
    """Indexing wraps; iterating does not."""

    def each(ranks):
        for r in ranks:
            inputs = zip(*(q.input for q in ranks), strict=True)
            for i, chunks in enumerate(inputs):
                r.output[i] = reduce(chunks)

    verify(algorithm("all_reduce/each")(each).build(3))


def exchange(ranks, pairs=()):
    """Move every pair."""
    for source, target in pairs:
        ranks[target].output[:] = ranks[source].input[:]


def test_an_iterator_is_read_before_anybody_proves():
    """Pairs that can be read once are kept: their proof is not an empty one."""
    made = algorithm("permute/x")(exchange)

    assert ((0, 1),) == made.build(2, pairs=iter([(0, 1)])).params["pairs"]
    assert 1 == len(made.build(2, pairs=iter([iter((0, 1))])).ops)
    with pytest.raises(CallError, match="more than 1,048,576 values"):
        made.build(2, pairs=itertools.repeat((0, 1)))
    program = made.build(2, pairs=((0, 1),))
    with pytest.raises(CallError, match="in a tuple"):
        verify(type(program)(**fields(program) | {"params": {"pairs": iter([])}}))


def fields(program):
    return {one.name: getattr(program, one.name) for one in dataclasses.fields(program)}


@pytest.mark.parametrize("split", [1.5, True, 0, -1, "2"])
def test_a_split_is_a_whole_number(split):
    """Where it is declared, and where it is built."""
    with pytest.raises(ProgramError, match="want a whole number of chunks"):
        algorithm("all_reduce/x", split=split)
    with pytest.raises(CallError, match="want a whole number of chunks"):
        algorithm("all_reduce/x")(plus).build(3, split=split)


@pytest.mark.parametrize("side", ["input", "output", "others"])
def test_a_number_is_no_rank_and_says_how_it_becomes_one(side):
    """Ranks are numbers; what is computed from them is a number alone."""

    def neighbours(ranks):
        for r in ranks:
            getattr(r ^ 1, side)

    want = rf"1 is a number and no rank; want ranks\[1\]\.{side}"
    with pytest.raises(ProgramError, match=want):
        algorithm("all_reduce/x")(neighbours).build(4)


@pytest.mark.parametrize("ranks", [1.5, True, "3", None])
def test_ranks_are_a_whole_number(ranks):
    """Nothing is rounded."""
    with pytest.raises(CallError, match="want a whole number"):
        algorithm("all_reduce/x")(plus).build(ranks)


@pytest.mark.parametrize(
    "name", ["all_reduce/ring", "all_reduce/one_shot", "all_to_all/one_shot"]
)
def test_absurd_numbers_of_ranks_are_estimated_and_refused(name):
    """Before anything is traced, with how much it would be."""
    from stretto.program import algorithms

    with pytest.raises(ProgramError, match=r"about [\d,]+,000,000 operations.*MOST_OP"):
        algorithms.get(name).build(100_000)
    text = "program x collective=all_reduce ranks=999999999\n"
    with pytest.raises(CallError, match="want at most 16,384"):
        verify(parse_program(text))


def test_a_program_has_a_limit_of_operations(monkeypatch):
    """It is stated, and can be raised; the line that went beyond it is named."""

    def endless(ranks):
        while True:
            ranks[0].output[0] = ranks[0].input[0]

    monkeypatch.setenv("STRETTO_MOST_OPERATIONS", "1000")
    with pytest.raises(ProgramError, match=r"mistakes.py:\d+: more than 1,000 operat"):
        algorithm("all_reduce/endless")(endless).build(3)
    monkeypatch.setenv("STRETTO_MOST_OPERATIONS", "many")
    with pytest.raises(LaunchEnvironmentError, match="want a whole number"):
        algorithm("all_reduce/endless")(endless).build(3)


def test_requires_says_why_in_words():
    """A truth value is no reason, and what raises has a line."""
    with pytest.raises(ProgramError, match=r"mistakes.py:\d+: .*requires= gave True"):
        algorithm("all_reduce/x", requires=lambda n: True)(plus).build(3)
    with pytest.raises(ProgramError, match="requires= raised ZeroDivisionError"):
        algorithm("all_reduce/x", requires=lambda n: 1 // 0)(plus).build(3)
    with pytest.raises(RanksError, match="even"):
        algorithm("all_reduce/x", requires=lambda n: "want even")(plus).build(3)


def test_an_error_says_its_line_once():
    """Also when it passes through two builds."""

    def outer(ranks):
        algorithm("all_reduce/inner")(outside).build(3)

    with pytest.raises(BoundsError) as raised:
        algorithm("all_reduce/outer")(outer).build(3)

    assert 1 == str(raised.value).count("test_mistakes.py:")
    assert raised.value.where.startswith(__file__)
    assert "" == StrettoError("x").where


def test_what_is_proved_prints_as_one_line():
    """`print(verify(p))` says what it is about."""
    proved = verify(algorithm("permute/x")(exchange).build(2, pairs=((0, 1),)))
    plan = verify_plan(lower(proved, Schedule.parse("push packets")))

    assert "<proved: permute/x for 2 ranks, 1 operations>" == str(proved)
    assert "<proved: permute/x for 2 ranks, push packets staged>" == str(plan)


def test_nobody_owns_less_than_no_staging():
    """Units of staging are counted."""
    with pytest.raises(BoundsError, match="rank 1 has -1 units of staging"):
        Plan(name="x", collective="barrier", num_ranks=2, stage_units=(0, -1))


USES = (
    *("bool(x)", "int(x)", "float(x)", "abs(x)", "-x", "max(x, x)", "sorted([x, x])"),
    *("x and x", "1 if x else 0", "x > 0", "x <= x"),
    *("x - x", "2 * x", "x * 0.5", "x / 2", "x // 2"),
)


@pytest.mark.parametrize("use", USES)
def test_what_a_chunk_holds_is_no_number_and_no_condition(use):
    """A condition on data was taken as true, and arithmetic said what Python says."""

    @algorithm("all_reduce/asks")
    def asks(ranks):
        ranks[0].output[0] = eval(use, {"x": ranks[1].input[0]})

    with pytest.raises(ProgramError, match="want whole chunks moved, and combined by"):
        asks.build(N)
