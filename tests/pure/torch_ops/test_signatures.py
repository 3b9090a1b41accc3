"""Classes for serving engines can be called as the engines' own were, as recorded."""

import importlib
import inspect
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

RECORDED = json.loads((Path(__file__).parent / "signatures.json").read_text())
METHODS = [
    (path, name, text)
    for path, one in RECORDED["classes"].items()
    for name, texts in one["methods"].items()
    for text in texts
]


def found(path):
    """Return a class by its path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def recorded(text):
    """Return the signature of a recorded text."""
    scope = {}
    exec(f"def call{text}: pass", scope)
    return inspect.signature(scope["call"])


def calls(signature):
    """Return the ways in which callers may write a call: (args, options)."""
    wanted = list(signature.parameters.values())
    required = [p for p in wanted if p.default is p.empty]
    positional = [p for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD]
    keyword = {p.name: object() for p in wanted if p.kind is p.KEYWORD_ONLY}
    needed = {p.name: object() for p in required if p.name in keyword}
    few = [object() for p in required if p.name not in keyword]
    names = {p.name: object() for p in positional[1:]} | keyword
    yield few, needed
    yield [object() for _ in positional], keyword
    yield [object()], names


@pytest.mark.parametrize(("path", "name", "text"), METHODS)
def test_every_recorded_call_is_accepted(path, name, text):
    """With what is required, with everything in its place, with everything by name."""
    method = getattr(found(path), name)

    for args, options in calls(recorded(text)):
        inspect.signature(method).bind(*args, **options)


@pytest.mark.parametrize("path", RECORDED["classes"])
def test_a_record_says_where_it_was_read(path):
    """File, and commits or releases: so that it can be read again."""
    one = RECORDED["classes"][path]

    assert one["source"].count("/") > 1
    assert all(len(commit) == 40 for commit in one["commits"])
    assert one["commits"] or one["releases"]


def test_a_missing_argument_would_be_found():
    """The check binds calls; it does not only compare names."""
    *_, (args, options) = calls(recorded("(self, inp, more)"))

    with pytest.raises(TypeError, match="more"):
        inspect.signature(lambda self, inp: None).bind(*args, **options)
