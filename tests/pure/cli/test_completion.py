"""What shells are told of the command line."""

import shutil
import subprocess

import pytest

from stretto import cli

ASK = """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _stretto; echo "${COMPREPLY[*]}"; }
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["si"], "simulate"),
        (["simulate", "--mach"], "--machine"),
        (["simulate", "--machine", "h200x"], "h200x2 h200x4 h200x8"),
        (["show", "all_gather/r"], "all_gather/rails all_gather/recursive"),
        (["cluster", "ru"], "run"),
        (["trace", "at"], "attach"),
        (["trace", "report", "--insp"], "--inspector"),
        (["cluster", "run", "--sched"], "--scheduler"),
        (["completion", ""], "bash zsh fish"),
        (["bench", "--trace-of-nothing"], ""),
    ],
)
def test_bash_completes_words_options_and_values(stretto, words, found):
    """The function itself is asked, as bash does at the tab key."""
    script = stretto("completion", "bash")[1] + ASK
    line = " ".join(f"'{word}'" for word in ["stretto", *words])

    done = subprocess.run(
        ["bash", "-c", f"{script}\nask {line}"], capture_output=True, text=True
    )

    assert "" == done.stderr
    assert found in done.stdout
    assert bool(found) == bool(done.stdout.strip())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_is_known_to_every_shell(stretto, shell):
    """Those that `stretto --help` lists."""
    status, out, _ = stretto("completion", shell)

    assert 0 == status
    assert all(f"{verb}" in out for verb in cli.commands())


def test_a_shell_that_is_not_known_is_refused(capsys):
    """With those that are."""
    with pytest.raises(SystemExit):
        cli.main(["completion", "zhs"])

    assert capsys.readouterr().err.endswith("; did you mean zsh?\n")
