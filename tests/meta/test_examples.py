"""Every example runs, and is written so that somebody can copy from it."""

import ast
from pathlib import Path

import pytest
from tests.meta.programs import run

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONG = {"elastic_ddp", "moe_layer", "torch_train"}
"""Those that import much of PyTorch in several processes, or compute for long."""
BY_DAY = [
    pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG), id=path.stem)
    for path in EXAMPLES
]


def check(path, *, fresh):
    """It has a docstring and a main(), ends well, and prints something."""
    text = path.read_text()
    tree = ast.parse(text)

    done = run([path], fresh=fresh)

    assert ast.get_docstring(tree)
    assert "main" in {x.name for x in tree.body if isinstance(x, ast.FunctionDef)}
    assert 0 == done.returncode, done.stdout
    assert done.stdout


@pytest.mark.parametrize("path", BY_DAY)
def test_an_example_runs(path):
    """And is whole; ranks start in less time than users' take.

    What users start is run by tests/meta/test_docs.py: the README's blocks, and a
    program of PyTorch by torchrun.
    """
    check(path, fresh=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_users_run_it(path):
    """Each rank is a process of its own from the start."""
    check(path, fresh=True)


def test_there_are_examples():
    """Somebody who learns by reading programs finds some; each long one is one."""
    assert EXAMPLES
    assert {path.stem for path in EXAMPLES} > LONG
