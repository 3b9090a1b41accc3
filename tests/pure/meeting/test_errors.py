"""Errors go from process to process as what they are, with all that they say."""

import ast
import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stretto
from stretto import errors
from stretto.errors import CollectiveTimeout, StrettoError, reading

KINDS = sorted(
    (one for one in vars(errors).values() if isinstance(one, type)),
    key=lambda one: one.__name__,
)
KINDS = [one for one in KINDS if issubclass(one, StrettoError)]
FAMILY = re.compile(rb"(?m)^\s*class \w+\(")
"""What a module with a class of a family has."""


def made(kind):
    """Return an error with all that an error of ours may have."""
    error = kind("rank 1: got this; want that").at("a.py:3")
    error.add_note("and a note")
    error.blamed, error.rank = (1, 2), 3
    return error


def same(one, other):
    """Whether they say the same."""
    assert type(one) is type(other)
    assert (one.args, vars(one), str(one)) == (other.args, vars(other), str(other))
    assert one.__notes__ == other.__notes__


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_pickled_and_copied_as_what_it_is(kind):
    """Its class, text, place, attributes and notes."""
    error = made(kind)

    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        same(error, pickle.loads(pickle.dumps(error, protocol)))
    same(error, copy.copy(error))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_both_families_is_pickled_as_one(kind):
    """PyTorch's spawn pickles what a rank raised: it was two classes of one name."""
    faults = pytest.importorskip("stretto.torch.faults")
    error = faults.as_torch(made(kind))
    assert type(error) is not kind

    again = pickle.loads(pickle.dumps(error))

    same(error, again)
    assert isinstance(again, kind)
    assert isinstance(again, RuntimeError)


_READ = """
import pickle, sys
error = pickle.load(sys.stdin.buffer)
print(type(error).__name__, isinstance(error, RuntimeError), error, error.blamed)
"""


def test_a_fresh_process_reads_an_error_of_both_families():
    """One that has imported nothing of ours before."""
    faults = pytest.importorskip("stretto.torch.faults")
    data = pickle.dumps(faults.as_torch(made(CollectiveTimeout)))

    said = subprocess.run(
        [sys.executable, "-c", _READ], input=data, capture_output=True, check=True
    ).stdout.decode()

    assert said.startswith("CollectiveTimeout True ")
    assert said.rstrip().endswith("want that (1, 2)")


def test_no_two_errors_have_one_name():
    """Whoever reads a name knows which is meant, in all the library."""
    classes = [
        node
        for path in Path(stretto.__file__).parent.rglob("*.py")
        if FAMILY.search(path.read_bytes())
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef)
    ]
    known = {"Exception", "BaseException", "RuntimeError", "StrettoError"}
    found = []
    while more := [
        c
        for c in classes
        if c not in found and known & {getattr(b, "id", "") for b in c.bases}
    ]:
        found += more
        known |= {c.name for c in more}
    names = [c.name for c in found]
    assert {kind.__name__ for kind in KINDS} <= set(names)
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    "error", [KeyError("x"), StopIteration(), RecursionError(), OverflowError("a\nb")]
)
def test_what_a_text_does_to_its_reader_is_one_error_of_ours(error):
    """In one line, with what was read and what is wanted."""
    with (
        pytest.raises(errors.ParseError, match=r"a file: .*; want a text") as caught,
        reading(errors.ParseError, "a file", "a text"),
    ):
        raise error
    assert "\n" not in str(caught.value)
