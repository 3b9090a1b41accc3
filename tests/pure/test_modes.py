"""What holds data of a job is for its owner alone."""

import ast
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.pure.trace.test_rings import WORLD, made_calls

import stretto
from stretto import caches, watch
from stretto.trace import record, write
from stretto.trace.process import _Process
from stretto.trace.tables import Recording
from stretto.transfer import Engine
from stretto.transfer.stores.files import Files

SOURCES = Path(stretto.__file__).parent
OPEN = {
    "bench": "what was measured, and tuned: to be shown, and used by others",
    "cli": "what was asked for by name: programs, pictures, pages, metrics",
    "fabric/meeting/join.py": "a lock, in a folder that is private",
    "fabric/address.py": "made with its mode, in a folder that is private",
    "network/jobs/reader.py": "a trace of jobs, to be edited and shared",
}
"""What is written as the umask says, and why."""


@pytest.fixture
def generous():
    """Let everybody read what is made, as some systems do."""
    before = os.umask(0)
    yield
    os.umask(before)


def readable_for_others(folder):
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if stat.S_IMODE(path.lstat().st_mode) & 0o077
    )


class Owner:
    """What stands for a communicator; it can be referred to weakly."""


def test_recordings_are_their_owners(tmp_path, generous, monkeypatch):
    """Files, rings, folders, and what is made of recordings; also over an old file."""
    monkeypatch.setenv("STRETTO_TRACE", str(tmp_path / "run"))
    process, owner = _Process(), Owner()
    made_calls(process.open(owner, WORLD, 1, few=False), 3)
    process.collect()
    (tmp_path / "old.trace").touch(0o666)
    write(tmp_path / "old.trace", Recording())
    watch.write_perfetto(tmp_path / "run.pftrace", Recording())
    with record(tmp_path / "block"):
        pass
    during = readable_for_others(tmp_path)
    process.shut()

    assert [] == during == readable_for_others(tmp_path)


def test_stores_are_their_owners(tmp_path, generous):
    """Pieces, sums and what they are called."""
    with Engine("modes") as engine:
        store = Files(tmp_path / "kept")
        kept = engine.stored(store, "numbers", "N=4096 uint8", piece=1024)
        kept.put(np.ones(4096, np.uint8)).wait(20)
        store.close()
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]

    assert files
    assert [] == [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_private_file_replaces_one_that_was_not(tmp_path, generous):
    """Its mode does not stay."""
    path = tmp_path / "file"
    path.write_text("for all to see")
    with caches.private(path) as file:
        file.write(b"ours")

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert b"ours" == path.read_bytes()


WRITES = {"write_text", "write_bytes"}


def writes(path):
    """Yield the lines in which a module makes files as the umask says."""
    text = path.read_text(encoding="utf-8")
    if not any(word in text for word in ("open(", *WRITES)):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        opens = name == "open" and any(str(m)[:1] in "wxa" for m in modes if m)
        if opens or name in WRITES:
            yield node.lineno


def test_whoever_writes_a_file_has_said_for_whom():
    """A new one asks for a private file, or stands in the list above."""
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if any(writes(path)) and path.parent.name != "caches"
    }

    assert set() == {name for name in found if not name.startswith(tuple(OPEN))}
