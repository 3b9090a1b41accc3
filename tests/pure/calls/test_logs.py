"""What was chosen is logged, once per kind, when somebody asks."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stretto.executors import Call
from stretto.runtime.calls import choosing, logs
from stretto.runtime.calls.choosing import LaunchKind
from stretto.runtime.choice import Question
from stretto.runtime.choice.measured import Measured

KIND = LaunchKind(
    Question(executor="cpu", collective="all_reduce", num_ranks=4, nbytes=4096),
    Call(dtype="float32", counts=(1024,)),
    "all_reduce/ring push bulk",
)


class Session:
    """Binds nothing."""

    def prepare(self, plan, call):
        return plan, call


@pytest.fixture
def ask(monkeypatch):
    """Set STRETTO_LOG as if the process began with it; clean up the logger."""
    logger = logging.getLogger("stretto")
    before = logger.level, logger.handlers[:]

    def ask(text):
        monkeypatch.setenv("STRETTO_LOG", text)
        logs.logger.cache_clear()

    yield ask
    logs.logger.cache_clear()
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


def prepare(rank=0, kind=KIND):
    calls = SimpleNamespace(
        rank=rank, _selectors={}, _sessions={}, _profiles=Measured(), _ahead=None
    )
    choosing.prepare(calls, kind, Session())


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ("info", 1), ("INFO", 1), ("debug", 2)]
)
def test_what_served_a_kind_is_said(ask, caplog, text, lines):
    """Algorithm, schedule, memory and executor: by rank 0, or by all at debug."""
    ask(text)
    prepare(rank=0)
    prepare(rank=3)

    assert lines == len(caplog.records)
    if lines:
        assert (
            "rank 0 of 4: all_reduce of 4096 bytes, float32 sum, on cpu, arrays "
            "staged, in place: all_reduce/ring push bulk staged (pinned)"
        ) == caplog.records[0].getMessage()


def test_a_program_that_logs_needs_no_variable(ask, caplog):
    """The logger is Python's: its level may be set as any other's."""
    ask("")
    with caplog.at_level(logging.INFO, "stretto"):
        prepare(kind=KIND._replace(pin=None))

    assert "(chosen)" in caplog.text


def test_a_level_that_nobody_knows_is_said(ask, caplog):
    """And nothing fails for it."""
    ask("loud")
    with pytest.warns(RuntimeWarning, match="STRETTO_LOG='loud'; want info or debug"):
        prepare()

    assert not caplog.records


def test_invariant_bits_are_said(ask, caplog):
    """After what was chosen, and only where they are asked for."""
    ask("info")
    kept = KIND._replace(asked=replace(KIND.asked, bits="invariant"), pin=None)
    prepare(kind=kept)
    prepare()

    assert caplog.messages[0].endswith("(chosen, bits invariant)")
    assert caplog.messages[1].endswith("(pinned)")
