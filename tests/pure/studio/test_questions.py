"""The language of questions, and its answers."""

import contextlib
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.studio.made import recording
from tests.pure.watch.test_verdict import made, sampled

from stretto.errors import CallError
from stretto.program import collectives
from stretto.studio.analysis.scene import Scene
from stretto.studio.ask import (
    EXAMPLES,
    Question,
    Subject,
    answer,
    by_command,
    parse_question,
    understood,
)
from stretto.studio.ask.question import _TAKEN
from stretto.studio.inputs.loading import LoadedInputs

NUMBERS = st.integers(0, 1 << 40)
TIMES = st.floats(0, 1e12, allow_nan=False).map(lambda v: round(v, 3))


@st.composite
def questions(draw):
    subject = draw(st.sampled_from(Subject))
    between = sorted(draw(st.tuples(TIMES, TIMES)))
    filters = {
        "collective": st.sampled_from(("", *collectives.names())),
        "over": st.just(-1) | NUMBERS,
        "under": st.just(-1) | NUMBERS,
        "comm": st.sampled_from(("", "world", "tensor parallel")),
        "last_us": st.just(-1.0) | TIMES,
        "between_us": st.sampled_from((None, tuple(between))),
        "rank": st.just(-1) | NUMBERS,
        "top": st.integers(1, 1000),
    }
    return Question(
        subject=subject,
        number=draw(NUMBERS) if "N" in subject.value else -1,
        **{name: draw(filters[name]) for name in sorted(_TAKEN[subject])},
    )


WORDS = (
    *("slowest", "links", "in", "over", "last", "between", "and", "top", "rank", "3"),
    *("1M", "minute", "why", "is", "step", "slow", '"', "all_reduce", "5", "us"),
)


@given(questions())
def test_a_question_reads_back_as_itself(question):
    """Its text is the plainest way to ask it."""
    assert question == parse_question(str(question))


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_a_question_or_is_refused_with_words(text):
    """Never another error."""
    with contextlib.suppress(CallError):
        assert parse_question(text)


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_questions(text):
    """Those of the page and of the guide."""
    assert parse_question(text) == parse_question(text.upper() + "?")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("slowest link last minute", {"last_us": 6e7}),
        ("late ranks in reduce over 1M", {"collective": "reduce", "over": 1 << 20}),
        ("late ranks last 2.5 s", {"last_us": 2.5e6}),
        ("times between 1ms and 2 ms", {"between_us": (1e3, 2e3)}),
        ("slowest links top 3", {"top": 3}),
    ],
)  # fmt: skip
def test_filters_are_understood(text, want):
    """Sizes are binary, times microseconds."""
    found = parse_question(text)

    assert want == {name: getattr(found, name) for name in want}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing was asked; try: slowest link last minute"),
        ("slowest linkz", "word 2: got 'linkz'; want one of: slowest links"),
        ("why is step x slow", "word 4: got 'x'; want one of: why is step N slow"),
        ("late ranks in all_redcue", "word 4: got 'all_redcue'.*mean 'all_reduce'"),
        ("late ranks ovr 1M", "word 3: got 'ovr'; want a filter.*did you mean 'over'"),
        ("late ranks over much", "word 4: got 'much'; want a size such as 4K or 1M"),
        ("late ranks last fortnight", "word 4: got 'fortnight'; want a time such as"),
        ("late ranks rank 3", "word 3: got 'rank', which says nothing of late ranks"),
        ("why is step 3 slow over 1M", "word 6: got 'over', which says nothing of"),
        ("late ranks top", "word 4: got the end; want a number"),
        ("times in all_reduce in all_gather", "word 4: got 'in' a second time"),
        ("times between 2s and 1s", "an end before its beginning"),
        ("x" * 500, "500 characters; want at most 400"),
    ],
)
def test_what_is_not_understood_is_said_with_the_word(text, said):
    """Where, got, want, and what was meant."""
    with pytest.raises(CallError, match=said):
        parse_question(text)


@pytest.fixture(scope="module")
def scene():
    return Scene(LoadedInputs(recording=recording(8, 90, slow=(5,), late=3)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slowest link", "From rank 5 to rank 6 data move slowest"),
        ("late ranks", "Rank 3 held the others up"),
        ("late ranks in all_gather over 1M", "Rank 3 held the others up"),
        ("why is rank 3 late", "Rank 3 comes .* after the first on average"),
        ("slowest collectives top 1", "Collective .* of world, all_gather of 4M"),
        ("times in all_reduce", "all_reduce of 1M takes most time"),
        ("traffic rank 0", "most was moved"),
        ("what is rank 2 doing", "Rank 2 last called reduce_scatter, step 90"),
        ("why is step 7 slow", "Step 7 .*: all_reduce of 1M"),
        ("late ranks over 1G", "No collective was recorded that is like that"),
    ],
)
def test_answers_name_what_was_made_slow(scene, text, said):
    """Computed from the recording, with the question as it was understood."""
    found = answer(scene, parse_question(text))

    assert re.search(said, found.text), found.text
    assert parse_question(found.question) == parse_question(text)


def test_a_link_is_looked_for_in_its_time_only(scene):
    """The filters hold for steps, too."""
    whole = answer(scene, parse_question("busiest links"))
    part = answer(scene, parse_question("busiest links last 1ms"))

    assert whole.rows[0][3] > part.rows[0][3] > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("why is step 812 slow", "no step 812 was recorded; there are 1 to 90"),
        ("why is rank 99 late", "no rank 99 was recorded; there are 0 to 7"),
        ("traffic rank 99", "no rank 99; there are 0 to 7"),
        ("late ranks on moon", "no communicator 'moon'; there are 'world'"),
    ],
)
def test_what_is_not_there_is_said(scene, text, said):
    """With what is."""
    with pytest.raises(CallError, match=said):
        answer(scene, parse_question(text))


def test_a_translator_writes_questions_and_nothing_else():
    """It is asked only where the grammar fails; what it writes is parsed the same."""
    asked = []

    def translator(text):
        asked.append(text)
        return "late ranks top 2"

    assert 2 == understood("who is dawdling", translator).top
    assert 10 == understood("late ranks", translator).top
    assert ["who is dawdling"] == asked
    with pytest.raises(CallError, match="the translator wrote 'poetry'"):
        understood("who is dawdling", lambda text: "poetry")


def test_a_translator_may_be_a_program():
    """It is told the language and the text; its fault is an error, not a hang."""
    script = "import sys; t = sys.stdin.read(); print('traffic' if 'zzz' in t else '')"

    assert (
        Subject.TRAFFIC
        is understood("zzz", by_command([sys.executable, "-c", script])).subject
    )
    with pytest.raises(CallError, match="the translator"):
        understood("zzz", by_command(["/nowhere/at/all"]))


@pytest.mark.parametrize(("busy", "doing"), [(0.95, "computing"), (0.02, "asleep")])
def test_why_a_rank_is_late_is_said_as_the_verdict_says_it(busy, doing):
    """Without samples, that it is not known."""
    late = made([0, 30_000_000, 0])
    question = parse_question("why is rank 1 late")
    said = [
        answer(Scene(LoadedInputs(recording=one)), question).text
        for one in (sampled(late, 1, busy), late)
    ]

    assert f"Outside of calls it was {doing}" in said[0]
    assert said[0].endswith("most often at train.py:7, work().")
    assert said[1].endswith("no samples of it were recorded.")
