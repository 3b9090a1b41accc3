"""Frameworks train on stretto by the very lines of docs/guides/frameworks.md.

`scripts/test-torch frameworks` installs them, and sets FRAMEWORKS=all: what is absent
then fails. Elsewhere it is skipped, by its name.
"""

import importlib.util
import os

import pytest
from tests.meta.launched import launch, launched

pytest.importorskip("torch")

PAGE = "docs/guides/frameworks.md"
NEEDS = {
    "accelerated.py": "accelerate",
    "trained.py": "transformers",
    "lit.py": "lightning",
    "deep.py": "deepspeed",
    "megatron_layers.py": "megatron",
    "titan.py": "torchtitan",
}
PROGRAMS = {one.name: one for one in launched(PAGE)}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # DeepSpeed compiles an extension, once
]


def figures(text, backend):
    """Return what a program printed of a backend: its figures, line by line."""
    lines = [line.split() for line in text.splitlines()]
    return [list(map(float, line[1:])) for line in lines if line[:1] == [backend]]


def test_every_program_of_the_guide_is_run():
    """None is only shown."""
    assert set(NEEDS) == set(PROGRAMS)


@pytest.mark.parametrize("name", NEEDS)
def test_a_framework_trains_as_on_gloo(name, tmp_path):
    """It prints the figures that it prints on Gloo, and its losses fall."""
    if importlib.util.find_spec(NEEDS[name]) is None:
        why = f"{NEEDS[name]} is not installed; scripts/test-torch frameworks does it"
        pytest.fail(why) if os.environ.get("FRAMEWORKS") == "all" else pytest.skip(why)

    program = PROGRAMS[name]
    ours = launch(program, tmp_path, timeout_s=900)
    got = figures(ours, "stretto")
    assert got, ours
    if program.variables:  # nothing is trained: it says what two ranks sum to
        assert [[2.0] * 4] == got
        return
    gloos = launch(program.on("gloo"), tmp_path, timeout_s=900)

    for mine, theirs in zip(got, figures(gloos, "gloo"), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-4)
        assert mine[-1] < mine[0]
