"""Functions that no file holds run on ranks: from stdin, `-c`, a notebook."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.nightly import at_night

import stretto
from stretto.errors import RankFailed

SOURCE = Path(__file__).parents[3] / "src"
WORK = """
import stretto
import numpy as np
SCALE = 3
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)
def adder(k):
    def add(x, more=SCALE):
        return x + k + more
    return add
def work(comm, n, add):
    x = np.full(2, comm.rank, np.float32)
    comm.all_reduce(x)
    return float(x[0]), factorial(n), add(1), [SCALE * i for i in range(2)]
print(stretto.spawn(work, 4, adder(10), num_ranks=2))
"""
CLASS = """
import stretto
class Mine:
    pass
def work(comm, x=Mine):
    return str(x)
stretto.spawn(work, num_ranks=2)
"""


def typed_in(text, *, by_stdin, without=""):
    """Run a program that Python reads from stdin, or from its command line."""
    hidden = f"import sys; sys.modules[{without!r}] = None\n" if without else ""
    words = ["-"] if by_stdin else ["-c", hidden + text]
    return subprocess.run(
        [sys.executable, *words], input=hidden + text, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("by_stdin", [True, at_night(False)])
def test_functions_that_were_typed_in_travel_by_value(by_stdin):
    """With what they use: globals, recursion, closures, defaults, modules."""
    done = typed_in(WORK, by_stdin=by_stdin)

    assert "[(1.0, 24, 14, [0, 3]), (1.0, 24, 14, [0, 3])]\n" == done.stdout, (
        done.stderr
    )


def test_a_class_that_was_typed_in_says_what_to_do():
    """Without cloudpickle: install it, or write a file."""
    done = typed_in(CLASS, by_stdin=True)

    if "CallError" in done.stderr:
        assert "class Mine was typed in" in done.stderr
        assert "pip install cloudpickle" in done.stderr
        assert "in a file that this one imports" in done.stderr
    else:  # cloudpickle is installed
        assert 0 == done.returncode, done.stderr


def wrong(comm):
    comm.all_reduce(None)


def known_elsewhere(comm):
    comm.broadcast(1, src=0)


def test_a_rank_that_fails_shows_its_own_lines_only():
    """None of the library's: the message says what they would."""
    with pytest.raises(RankFailed) as raised:
        stretto.spawn(wrong, num_ranks=1)

    assert "comm.all_reduce(None)" in str(raised.value)
    assert str(SOURCE) not in str(raised.value)


def test_a_refused_call_says_how_it_is_written_here():
    """In the failure of the rank, beside Python's words."""
    with pytest.raises(RankFailed, match="broadcast takes no src=; want root="):
        stretto.spawn(known_elsewhere, num_ranks=1)
