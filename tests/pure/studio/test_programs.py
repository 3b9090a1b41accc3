"""A program's lines, steps and values, as the page shows them."""

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule
from stretto.compiler.verify import verify
from stretto.program import algorithms
from stretto.studio.analysis.contributions import contributions_of
from stretto.studio.analysis.side_by_side import side_by_side
from stretto.studio.inputs.given import NamedInputs
from stretto.studio.inputs.loading import load

SOME = ("all_reduce/two_shot", "all_reduce/ring", "all_gather/bruck", "broadcast/chain")


@pytest.mark.parametrize("name", [n for n in algorithms.names() if "all_reduce" in n])
def test_at_the_end_everybody_has_contributed_everywhere(name):
    """What the page draws of an all_reduce ends full."""
    if algorithms.get(name).refuses(4) is not None:
        pytest.skip("not for 4 ranks")
    found = contributions_of(algorithms.get(name).build(4))

    assert 0 == found.held[0].max()
    assert {4} == set(found.held[-1].ravel().tolist())
    assert set(found.step.tolist()) <= set(range(found.num_steps))


def test_what_is_too_long_is_no_picture():
    """It is said, not drawn in part."""
    assert contributions_of(algorithms.get("all_reduce/two_shot").build(256)) is None


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("schedule", ["", "packets", "pull bulk zero_copy"])
def test_every_step_is_tied_to_its_line_and_to_the_kernel(name, schedule):
    """Moves know their operation, waits and signals that of a move beside them."""
    program = algorithms.get(name).build(4)
    found = side_by_side(program, schedule=schedule, rank=1, dtype="float32")
    plan = lower(verify(program), Schedule.parse(schedule))
    steps = {(k, i) for k, lane in enumerate(plan.ranks[1]) for i in range(len(lane))}
    mine = {step for line in found.plan for step in line.steps}
    told = {step for line in found.kernel for step in line.steps}
    written = {op for line in found.author for op in line.ops}

    moves = {
        (k, i)
        for k, lane in enumerate(plan.ranks[1])
        for i, step in enumerate(lane)
        if isinstance(step, Move)
    }

    assert steps == mine
    assert moves <= told <= steps  # a kernel leaves out waits that others imply
    assert set(range(len(program.ops))) == written
    assert all(line.ops for line in found.plan if line.steps)
    for line in found.kernel:
        if line.text.startswith("  // ") and line.steps:
            ((lane, step),) = line.steps
            same = [one for one in found.plan if one.steps == ((lane, step),)]
            assert line.text.split(": ", 1)[1] == same[0].text.strip()


def test_only_files_that_were_given_are_read(tmp_path):
    """A program that says it was written elsewhere is shown as its own text."""
    secret = tmp_path / "secret.py"
    secret.write_text("password\n" * 40)
    program = algorithms.get("all_reduce/two_shot").build(2)
    names = {n: getattr(program, n) for n in program.__slots__}
    places = tuple(f"{secret}:{at}" for at in range(1, len(program.places) + 1))
    alien = program.__class__(**{**names, "places": places, "source": f"{secret}:1"})
    shut = side_by_side(alien, schedule="", rank=0, dtype="float32")
    opened = side_by_side(
        alien, schedule="", rank=0, dtype="float32", given=str(secret)
    )

    assert not any("password" in line.text for line in shut.author)
    assert any("password" in line.text for line in opened.author)


def test_a_plan_that_cannot_be_made_is_said():
    """The program is still shown."""
    program = algorithms.get("all_reduce/two_shot").build(2)
    found = side_by_side(program, schedule="engine", rank=0, dtype="float32")

    assert found.author
    assert found.notes


def test_what_is_too_long_to_simulate_is_said_before_it_is_tried(monkeypatch):
    """The program is shown without its times."""
    monkeypatch.setattr("stretto.studio.inputs.simulated._MOST_EVENTS", 100)
    program = algorithms.get("all_reduce/two_shot").build(4)
    loaded = load(NamedInputs(program=program, machine="h200x4"))

    assert loaded.recording is None
    assert "show it for fewer ranks" in loaded.notes[0]
