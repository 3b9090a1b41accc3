"""`spawn` inside `spawn`, and what a failure says of the user's own lines."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
MAIN = """
import stretto

def inner(comm):
    return comm.rank * 10

def outer(comm):
    return stretto.spawn(inner, num_ranks=2)

def fail(comm):
    raise ValueError("bad luck")

if __name__ == "__main__":
    print(stretto.spawn(outer, num_ranks=1))
    try:
        stretto.spawn(fail, num_ranks=1)
    except stretto.RankFailed as e:
        print(e)
"""


def test_functions_of_the_main_script_are_found_at_any_depth(tmp_path, environment):
    """And a failure is told once, with the user's line and none of the library."""
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "" == done.stderr
    assert done.stdout.startswith("[[0, 10]]")
    assert 1 == done.stdout.count("ValueError: bad luck")
    assert 'raise ValueError("bad luck")' in done.stdout
    assert "stretto/meeting" not in done.stdout
