"""Every example runs, and is written so that somebody can copy from it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.meta.fresh import environment

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path):
    """It has a docstring and a main(), ends well, and prints something."""
    text = path.read_text()
    tree = ast.parse(text)

    done = subprocess.run(
        [sys.executable, path],
        env=environment(text),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ast.get_docstring(tree)
    assert "main" in {x.name for x in tree.body if isinstance(x, ast.FunctionDef)}
    assert 0 == done.returncode, done.stderr
    assert done.stdout


def test_there_are_examples():
    """Somebody who learns by reading programs finds some."""
    assert EXAMPLES
