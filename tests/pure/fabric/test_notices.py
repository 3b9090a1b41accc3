"""What is said of a process does not depend on anybody who listens."""

import io
import sys

import pytest

from stretto.fabric.notices import notify


class Gone(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text):
        """Fail, as a pipe does."""
        raise BrokenPipeError(32, "Broken pipe")


def closed():
    """Return a stream that is closed."""
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [lambda: None, Gone, closed])
def test_a_notice_that_nobody_can_have_is_none(monkeypatch, make):
    """A daemon has no standard error, and a reader may be gone."""
    monkeypatch.setattr(sys, "stderr", make())
    notify("compiling")


def test_a_notice_is_one_line(capsys):
    """It says whose it is."""
    notify("compiling")
    assert "stretto: compiling\n" == capsys.readouterr().err
