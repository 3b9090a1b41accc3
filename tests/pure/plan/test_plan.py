"""Schedules read as they print; layouts cover everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, layout, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import BoundsError, CallError, ParseError, PlanError
from stretto.program import algorithms

schedules = st.builds(
    Schedule,
    direction=st.sampled_from(["push", "pull"]),
    protocol=st.sampled_from(["packets", "bulk", "engine"]),
    memory=st.sampled_from(["staged", "zero_copy", "across"]),
    blocks=st.integers(1, 200),
    tile_bytes=st.integers(1, 1 << 30),
    phases=st.just({"copy": {"direction": "push"}}) | st.just({}),
)


@given(schedules)
def test_schedules_print_and_parse_back(schedule):
    """The words of a schedule are the schedule."""
    assert schedule == Schedule.parse(str(schedule))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("shove", "known: push"),
        ("blocks=0", "want at least 1"),
        ("speed=3", "no such number"),
        ("copy:blocks", "known: push"),
        ("push lines staged", "'lines'; known: push, pull, packets, bulk, engine"),
        ("push bulk zero_copy tma", "'tma'; known: push"),
        ("push bulk zero_copy unordered", "'unordered'; known: push"),
    ],
)
def test_wrong_schedules_are_answered(words, text):
    """With the right words."""
    with pytest.raises(CallError, match=text):
        Schedule.parse(words)


def test_a_phase_has_no_numbers_of_its_own():
    """All phases of a program share blocks, threads and tiles."""
    with pytest.raises(CallError, match="phase 'copy' cannot set 'blocks'"):
        Schedule(phases={"copy": {"blocks": "2"}})


@given(
    st.integers(0, 5000),
    st.integers(1, 7),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 4096),
)
def test_a_layout_gives_every_element_to_one_block_and_epoch(
    count, blocks, itemsize, tile_bytes
):
    """Slices of all blocks and epochs cover each atom once, tiles within limits."""
    plan = _plan(Schedule(blocks=blocks, tile_bytes=tile_bytes))
    sizes = np.array([count, count // 2, 0])
    laid = layout(plan, sizes, itemsize)

    covered = laid.tile * blocks * laid.tiles
    assert covered >= sizes.max()
    assert laid.tile * itemsize <= max(tile_bytes + 15, 16)
    assert laid.unit_bytes >= laid.tile * itemsize
    assert list(laid.inputs[0]) == [0, *sizes.cumsum()]


def _plan(schedule):
    program = algorithms.get("all_reduce/two_shot").build(3)
    return lower(verify(program), schedule)


def test_a_plan_from_a_file_is_proved_again():
    """Text can say anything; what does not exist or is too early is refused."""
    text = str(_plan(Schedule()))
    for old, new, error, match in (
        ("stage[0]", "stage[9]", BoundsError, "units of staging"),
        ("wait r1.0 n=1", "wait r1.0 n=9", PlanError, "can hang"),
        ("signal r1.0 n=2", "signal r1.0 n=1", PlanError, "they rise"),
        ("output[0]", "output[1]", BoundsError, "holds atoms"),
        ("input 0:3@0", "input 0:2@0", BoundsError, "are no all_reduce buffers"),
    ):
        assert old in text
        with pytest.raises(error, match=match):
            verify_plan(parse_plan(text.replace(old, new, 1)))


@pytest.mark.parametrize("text", ["", "plan x", "plan x ranks=2\nschedule push\natoms"])
def test_malformed_plans_are_one_clear_line(text):
    """What cannot be read says what was wanted."""
    with pytest.raises(ParseError, match="want"):
        parse_plan(text)


def test_a_step_that_cannot_be_read_names_its_line():
    """The line number of the text."""
    text = str(_plan(Schedule())).replace("put ", "push ", 1).replace("<-", "<=", 1)

    with pytest.raises(ParseError, match=r"line \d+"):
        parse_plan(text)
