"""Whom a process admits to its memory, and what it says of the system's rule."""

from __future__ import annotations

import ctypes
import os

import pytest

from stretto.fabric import across


class Kernel:
    """Remembers whom a process named: the last one counts."""

    def __init__(self):
        self.named = []

    def prctl(self, option, who, *_):
        """Note who was named."""
        assert option == 0x59616D61
        self.named.append(ctypes.c_long(who.value).value)


@pytest.fixture
def kernel(monkeypatch):
    """Stand in for the system, for a process that has admitted nobody."""
    found = Kernel()
    monkeypatch.setattr(across.ctypes, "CDLL", lambda name: found)
    monkeypatch.setattr(across, "_admitted", [])
    return found


def test_siblings_come_in_by_their_launcher(kernel):
    """However many there are: the kernel remembers one name."""
    across.admit()
    across.admit()

    assert [os.getppid()] == kernel.named


def test_a_second_stranger_makes_it_anybodys(kernel, monkeypatch):
    """Else the first would lose what it has."""
    monkeypatch.setattr(across, "_parent", lambda pid: {7: 1, 8: os.getppid()}.get(pid))
    across.admit(8)
    across.admit(7)
    across.admit(9)

    assert [os.getppid(), -1] == kernel.named


@pytest.mark.parametrize(
    ("said", "words"),
    [(None, "same user"), ("1\n", "one launcher"), ("3", "nobody"), ("9", "unknown")],
)
def test_the_rule_is_said_in_words(said, words, monkeypatch, tmp_path):
    """As the system has it."""
    path = tmp_path / "ptrace_scope"
    if said is not None:
        path.write_text(said)
    monkeypatch.setattr(across, "_YAMA", path)

    assert words in across.rule()


def test_memory_of_another_process_is_told_from_ours():
    """A number that somebody else has is found out; no process is said."""
    witness = across.Witness()
    said = witness.dump()

    assert not across.why_not(said)
    assert "another process" in across.why_not({**said, "bytes": "00" * 16})
    assert "No such process" in across.why_not(said, 1 << 22)
