"""How far a command is, on a terminal and in a log."""

import io
import sys
from types import SimpleNamespace

import pytest

from stretto.cli import output
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


def test_a_log_hears_of_long_work_only_now_and_then(monkeypatch):
    """Nothing of what is over soon; after ten seconds a line, and then another ten."""
    clock = SimpleNamespace(monotonic=lambda: seconds)
    seconds = 100.0
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(output, "time", clock)
    with Progress(1) as progress:
        for seconds in (100.5, 109.9, 110.1, 115.0, 120.5):
            progress.step(f"[3/4] all_reduce at {seconds}")

    told = sys.stderr.getvalue().splitlines()
    assert told == [f"{bar(2, 4)} all_reduce at {s}" for s in (110.1, 120.5)]


def test_what_is_done_within_a_step_is_said_and_not_counted(monkeypatch):
    """The bar stands where the step has put it."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(2) as progress:
        progress.step("all_reduce")
        progress.within("proving it")

        progress.step("all_gather")

    for done, what in ((0, "all_reduce"), (0, "proving it"), (1, "all_gather")):
        assert f"{bar(done, 2)} {what}" in sys.stderr.getvalue()
