"""Commands without standard streams, or with names of files that are empty."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from stretto import cli
from stretto.cli.options import below

COMMANDS = {
    ("verify", "all_reduce/ring", "--ranks", "2,3"): 0,
    ("verify", "all_reduce/nosuch"): 2,
    ("simulate", "all_reduce/ring", "--machine", "h200x2", "--size", "4K"): 0,
}
STARTED = """
import os, subprocess, sys
from stretto import cli
for number in map(int, sys.argv[1].split(",")):
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)
status = cli.main(sys.argv[2:])
for stream in (sys.stdin, sys.stdout, sys.stderr):
    assert stream is not None
assert all(os.fstat(number) for number in (0, 1, 2))
assert not subprocess.run([sys.executable, "-c", "import os; os.fstat(2)"]).returncode
sys.exit(status)
"""


@pytest.mark.parametrize("closed", ["2", "0,1,2"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_status_is_the_same_without_standard_streams(closed, words):
    """Nothing is said then, and what a command starts has streams, too."""
    given = [sys.executable, "-c", STARTED, closed, *words]
    ended = subprocess.run(given, capture_output=True, text=True, check=False)

    assert COMMANDS[words] == ended.returncode, ended.stderr
    assert "Traceback" not in ended.stderr


def files():
    """Yield the words of each verb or action, with each argument that names a file."""
    waiting = [([], cli.parser())]
    while waiting:
        words, parser = waiting.pop()
        waiting += [([*words, word], inner) for word, inner in below(parser).items()]
        for action in parser._actions:
            name = str(action.metavar)
            if action.type is Path or name.partition(".")[0] in ("FILE", "JOBS", "RUN"):
                yield words, action


@pytest.mark.parametrize(
    ("words", "action"),
    [pytest.param(w, a, id=f"{' '.join(w)} {a.dest}") for w, a in files()],
)
def test_an_empty_name_is_no_file(stretto, monkeypatch, tmp_path, words, action):
    """It is not as if none were given, whatever a shell's variable was to be."""
    monkeypatch.chdir(tmp_path)
    given = [f"{action.option_strings[-1]}="] if action.option_strings else [""]
    status, _, err = stretto(*words, *given)

    assert 2 == status
    assert "want the name of a file" in err
    assert not list(tmp_path.iterdir())


def test_files_are_found_in_the_parsers():
    """Verbs that write files, and actions, are among those that are tried."""
    found = {(" ".join(words), action.dest) for words, action in files()}
    assert {("synth", "output"), ("show", "svg"), ("simulate", "trace")} <= found
    assert {("cluster run", "file"), ("trace report", "perfetto")} <= found
    assert all(isinstance(action, argparse.Action) for _, action in files())
