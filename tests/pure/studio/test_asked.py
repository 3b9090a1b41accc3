"""Sixty questions as people ask them; half were never used to build the language."""

import pytest
from tests.pure.studio.asked import BUILT_WITH, HELD_OUT, REFUSED

from stretto.errors import CallError
from stretto.studio.ask import parse_question

MOST_WRONG = 2


def read(text):
    try:
        return str(parse_question(text))
    except CallError:
        return ""


@pytest.mark.parametrize(("text", "plain"), BUILT_WITH)
def test_a_question_is_what_it_means(text, plain):
    """Each is written as the language has it."""
    assert plain == read(text)


def test_most_questions_that_nobody_built_for_are_understood():
    """When they were first tried, 28 of 30 were; it is not fewer since."""
    wrong = [text for text, plain in HELD_OUT if read(text) != plain]
    assert len(wrong) <= MOST_WRONG, wrong


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_question_is_refused_with_the_nearest(text):
    """A number that means nothing is not passed over."""
    with pytest.raises(CallError, match=r"Nearest are: .*; .*; "):
        parse_question(text)
