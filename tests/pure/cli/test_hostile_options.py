"""Options of every verb, given what nobody means: status 2, a line, no traceback."""

import argparse
from pathlib import Path

import pytest

from stretto import cli
from stretto.cli import run
from stretto.fabric.meeting import watching

HOSTILE = ("-1", "nan", "inf", "1" + "0" * 30, "", "\u0663", "1_0", "+5", "x", "0x10")


def options():
    """Yield the verbs with each option of theirs that takes a number."""
    (verbs,) = (
        action
        for action in cli.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for verb, parser in verbs.choices.items():
        for action in parser._actions:
            if action.option_strings and action.type not in (None, Path):
                yield verb, action.option_strings[-1]


def said(capsys, *argv):
    """Return the status and the last line of what was said."""
    try:
        status = cli.main(list(argv))
    except SystemExit as e:
        status = e.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert not any("Traceback" in line for line in lines)
    return status, lines[-1] if lines else ""


def test_every_verb_has_bounded_numbers_only():
    """None of Python's own types is left, which know no bounds."""
    assert not {t for t in map(type_of, options()) if t in (int, float, complex)}
    assert {"--seed", "--ranks", "--budget"} <= {name for _, name in options()}


def type_of(option):
    """Return what reads an option."""
    verb, name = option
    (verbs,) = (a for a in cli.parser()._actions if a.dest == "command")
    return verbs.choices[verb]._option_string_actions[name].type


@pytest.mark.parametrize(("verb", "name"), list(options()))
def test_hostile_numbers(capsys, verb, name):
    """Refused as they are read, by the option's name."""
    for value in HOSTILE:
        status, line = said(capsys, verb, f"{name}={value}")
        assert 2 == status
        assert name in line


@pytest.mark.parametrize(
    "words",
    [
        ("--size={}",),
        ("--dtype={}",),
        ("--op={}",),
        ("--param={}",),
        ("--param=root={}",),
    ],
)
def test_hostile_words_of_run(capsys, monkeypatch, words):
    """Before any process is started."""

    def none(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(run, "spawn", none)
    for value in (*HOSTILE, "1000T", "0", "\0", "9" * 5000):
        given = [word.format(value) for word in words]
        if given in (["--size=0"], ["--param=root=0"], ["--size=1_0"]):
            continue
        status, line = said(capsys, "run", "reduce", "--ranks=2", *given)
        assert 2 == status, given
        assert "AssertionError" not in line, given


def test_sizes_that_no_machine_holds(capsys):
    """`--size 1T` ended in a traceback of each rank."""
    status, line = said(capsys, "run", "all_reduce", "--size=100T")

    assert 2 == status
    assert "this machine has" in line


@pytest.mark.parametrize("verb", ["show", "verify", "simulate", "bound", "draw"])
@pytest.mark.parametrize("value", [*HOSTILE[3:6], "\0", "9" * 5000])
def test_hostile_targets(capsys, verb, value):
    """What a verb is about, and the sizes of it."""
    status, line = said(capsys, verb, value)

    assert status in (1, 2)
    assert line


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("launch --ranks 0 -- true", "at least one rank is needed"),
        ("cluster trace --jobs 5", "--jobs is an option of another action"),
        ("cluster trace --jbos 5", "did you mean --jobs?"),
        ("elastic drain 1 --job no-such-job", "no job named 'no-such-job'"),
        ("standby --join no-such-job -- true", "no job named 'no-such-job'"),
    ],
)
def test_what_a_stranger_types_is_answered_for_what_it_is(
    capsys, monkeypatch, words, why
):
    """And nothing that only we know is named: other options, sockets, ranks."""
    monkeypatch.setattr(watching, "_LOOK_S", 0.2)
    status, last = said(capsys, *words.split())

    assert status == 2
    assert why in last
    assert "None" not in last
    assert ".sock" not in last


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("--schedule", "x:y"), 2, "schedule word 'y'; known"),
        (("--schedule", "blocks=0"), 2, "blocks=0; want at least 1"),
        (("--schedule", "pull packets"), 2, "want push and staged, or bulk"),
        (("--schedule", "pull bulk zero_copy"), 2, "want --registered, or 'staged'"),
        (("--param", "split=3"), 1, "nobody stores"),
    ],
)
def test_what_no_rank_would_run_starts_none(capsys, words, status, why):
    """Told in a sentence, and not by the tracebacks of those that were started."""
    found = cli.main(
        ["run", "all_reduce/two_shot", "--ranks", "2", "--size", "1K", *words]
    )
    error = capsys.readouterr().err

    assert (status, 1) == (found, len(error.strip().splitlines()))
    assert error.startswith("stretto run: ")
    assert why in error
