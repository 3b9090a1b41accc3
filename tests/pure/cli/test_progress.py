"""How far a command is, on a terminal."""

import io
import sys

import pytest

from stretto.cli.output import Progress, bar


class Terminal(io.StringIO):
    """Says that somebody is watching."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(0, 2, "[" + "-" * 24), (1, 2, "[" + "#" * 12 + "-"), (9, 2, "[" + "#" * 24)],
)
def test_a_bar_is_as_full_as_the_work_is_done(done, total, shown):
    """In numbers, too; more than all is all."""
    assert bar(done, total).startswith(shown)
    assert bar(done, total).endswith(f"] {done}/{total}")


def test_who_says_how_far_it_is_is_believed(monkeypatch):
    """Ranks know; the command that started them does not."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(1) as progress:
        progress.step("[3/4] all_reduce 64")

    assert bar(2, 4) + " all_reduce 64" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\r\x1b[K")
