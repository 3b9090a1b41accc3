"""Calls that others run beside: few blocks, by a row for it, or a caller's most."""

import itertools

import pytest

from stretto.errors import TopologyError
from stretto.runtime.choice import Beside, Profile, Question, Selector
from stretto.runtime.choice.beside import FEW_FOR_BULK, SMALL_BYTES

ALONE = "all_reduce/two_shot push bulk staged blocks=128"
CALM = "all_reduce/two_shot push bulk staged blocks=12"


def profile(*rows):
    """Return rows of all_reduce, each a pin, and words of the row besides."""
    text = 'executor = "cuda"\n'
    for pin, words in rows:
        text += (
            f'[[rule]]\ncollective = "all_reduce"\nmemory = "staged"\nranks = [2, 8]\n'
            f'sizes = [["1T", "{pin}"]]\n{words}\n'
        )
    return Profile.parse(text, "of a test")


def asked(nbytes, collective="all_reduce", num_ranks=2, memory="staged"):
    return Question(
        executor="cuda",
        collective=collective,
        num_ranks=num_ranks,
        nbytes=nbytes,
        memory=memory,
        dtypes="half",
    )


def test_a_row_for_it_is_taken_by_such_calls_alone():
    """Whichever comes first in the table."""
    for rows in itertools.permutations([(ALONE, ""), (CALM, "beside = true")]):
        selector = Selector("cuda", profile(*rows))
        question = asked(8 << 20)
        assert 12 == selector.choose(question, Beside()).schedule.blocks
        assert 128 == selector.choose(question).schedule.blocks


def test_without_a_row_the_usual_choice_has_few_blocks():
    """All else stays; what is small is soon over, and stays as it is."""
    selector = Selector("cuda", profile((ALONE, "")))
    large = selector.choose(asked(SMALL_BYTES + 1), Beside())
    assert f"{ALONE[:-3]}{FEW_FOR_BULK}" == str(large)
    assert ALONE == str(selector.choose(asked(SMALL_BYTES), Beside()))


def test_large_packets_become_bulk_where_few_blocks_send_them():
    """Not small ones, and not where a row says otherwise."""
    packets = "all_reduce/two_shot push packets staged blocks=128 threads=256 depth=8"
    selector = Selector("cuda", profile((packets, "")))
    large = selector.choose(asked(8 << 20), Beside())
    assert "all_reduce/two_shot push bulk staged blocks=24" == str(large)
    assert "packets" == selector.choose(asked(1 << 20), Beside()).schedule.protocol
    told = Selector("cuda", profile((packets, "beside = true")))
    assert packets == str(told.choose(asked(8 << 20), Beside()))


@pytest.mark.parametrize("most", [1, 3, 8, 100])
def test_never_more_blocks_than_the_caller_allows(most):
    """By whichever row, of whichever size, however many ranks, in every profile."""
    ours = Selector("cuda", profile((ALONE, ""), (CALM, "beside = true")))
    shipped = Selector("cuda")
    for nbytes, n, memory, verb in itertools.product(
        (1 << 10, 1 << 18, 25 << 20, 1 << 30),
        (2, 4),
        ("staged", "zero_copy"),
        ("all_reduce", "all_gather", "reduce_scatter"),
    ):
        for selector in (ours, shipped):
            found = selector.choose(asked(nbytes, verb, n, memory), Beside(most))
            assert found.schedule.blocks <= most, (nbytes, n, memory, verb)


def test_started_calls_of_shipped_profiles_leave_most_of_a_gpu():
    """From a quarter of a megabyte on; those that block keep their shape."""
    selector = Selector("cuda")
    for exponent, n, memory in itertools.product(
        range(19, 31), (2, 3, 4, 8), ("staged", "zero_copy")
    ):
        for verb in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            question = asked(1 << exponent, verb, n, memory)
            few = selector.choose(question, Beside()).schedule.blocks
            assert few <= 32, (exponent, n, memory, verb)
    assert 128 == selector.choose(asked(16 << 20)).schedule.blocks


def test_a_row_says_it_by_true_or_false():
    """Anything else is refused, with what it got."""
    with pytest.raises(TopologyError, match="beside = 'yes', not true or false"):
        profile((ALONE, 'beside = "yes"'))
