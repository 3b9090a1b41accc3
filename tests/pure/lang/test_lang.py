"""What authors write is recorded, and what they get wrong is answered."""

import pytest
from tests.checking.cases import programs

from stretto.compiler.verify import verify
from stretto.errors import (
    BoundsError,
    CallError,
    ParseError,
    ProgramError,
    PromiseError,
    UndefinedError,
    UnknownNameError,
)
from stretto.program.ir import parse_program
from stretto.program.lang import algorithm, reduce


@algorithm("all_reduce/small")
def small(ranks):
    """Rank 0 adds, everyone copies."""
    ranks[0].output[:] = reduce(q.input[:] for q in ranks)
    with ranks.phase("share"):
        for q in ranks[0].others:
            q.output[:] = ranks[0].output[:]


def built(body, collective="all_reduce", n=2, split=1, **params):
    return algorithm(f"{collective}/test", split=split)(body).build(n, **params)


def test_a_program_prints_as_it_reads(golden):
    """The text of a small program."""
    golden(str(small.build(3)))


def test_programs_print_and_parse_back():
    """The text of a program is the program, for every shipped one."""
    for _, program in programs(4):
        assert program == parse_program(str(program))


def test_every_shipped_program_keeps_its_promise():
    """At 1 to 9 ranks, with every root and group."""
    for n in range(1, 10):
        for _, program in programs(n):
            assert program == verify(program).value


def test_a_program_that_is_not_its_collective_is_refused_with_the_line():
    """The error names rank, chunk, what is held, what is needed, and the place."""

    def wrong(ranks):
        for r in ranks:
            r.output[:] = reduce(r.input[:], r.input[:])

    with pytest.raises(
        PromiseError, match=r"test_lang.py:.*missing \[1\], extra \[0\]"
    ):
        verify(built(wrong))


def test_reading_what_nobody_wrote_is_refused_with_the_line():
    """Scratch is not zero."""

    def wrong(ranks):
        for r in ranks:
            r.output[:] = r.scratch("never", 2)[:]

    with pytest.raises(UndefinedError, match=r"test_lang.py:.*nobody wrote"):
        verify(built(wrong))


def test_unequal_sizes_are_refused():
    """Chunk 0 and chunk 1 are not the same number of elements."""

    def wrong(ranks):
        ranks[0].output[0] = ranks[0].input[1]

    with pytest.raises(PromiseError, match="differ in size"):
        verify(built(wrong))


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda r: r[0].output[0:9], BoundsError, "has 2 chunks"),
        (lambda r: r[0].scratch("input", 1), BoundsError, "identifier other than"),
        (lambda r: reduce(), ProgramError, "of nothing"),
        (lambda r: reduce(3), ProgramError, "got 3; want references"),
        (lambda r: r[0].output.__setitem__(0, 3), ProgramError, "want a reference"),
        (lambda r: r[0].input[0].__iadd__(3), ProgramError, "x = reduce"),
        (
            lambda r: r[0].output.__setitem__(slice(None), r[0].input[0]),
            BoundsError,
            "as many on both sides",
        ),
    ],
)
def test_misuse_is_answered(body, error, text):
    """Every mistake has a sentence of its own."""
    with pytest.raises(error, match=text):
        built(body)


def test_buffers_that_do_not_exist_cannot_be_named():
    """A broadcast's other ranks have no input."""
    with pytest.raises(BoundsError, match="rank 1 has no input"):
        built(lambda ranks, root=0: ranks[1].input[:], "broadcast")


def test_parameters_are_checked():
    """Unknown ones are answered with the known; a root must exist."""
    with pytest.raises(CallError, match="takes no group"):
        small.build(2, group=3)
    with pytest.raises(CallError, match="root=7"):
        built(lambda ranks, root=0: None, "broadcast", root=7)
    with pytest.raises(UnknownNameError, match="known: all_reduce"):
        algorithm("all_redoce/ring")
    with pytest.raises(ProgramError, match="want 'collective/shape'"):
        algorithm("ring")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "want 'program NAME"),
        ("program x collective=all_reduce", "missing ranks"),
        ("program x collective=all_reduce ranks=2\n  r0.output[0]", "want 'REF"),
        ("program x collective=all_reduce ranks=2\n  r0.out = 3", "want rRANK"),
    ],
)
def test_malformed_text_is_one_clear_line(text, problem):
    """What cannot be read says which line and what was wanted."""
    with pytest.raises(ParseError, match=problem):
        parse_program(text)


def test_a_parsed_program_is_proved_like_any_other():
    """Text may name ranks, buffers and chunks that do not exist."""
    head = "program x collective=all_reduce ranks=2\n  "
    for line, text in (
        ("r0.output[0] = r5.input[0]", "there are 2 ranks"),
        ("r0.output[0] = r1.nothing[0]", "no such buffer"),
        ("r0.output[4] = r1.input[4]", "has 2 chunks"),
        ("r0.input[0] = r1.input[0]", "input is never written"),
    ):
        with pytest.raises(BoundsError, match=text):
            verify(parse_program(head + line))
