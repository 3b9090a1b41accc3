"""What is compiled is compiled anew when anything that went into it changes."""

from pathlib import Path

import pytest

import stretto
from stretto.executors.cpu.running import loaded
from stretto.fabric.jit import loading
from stretto.fabric.jit.sources import imported_by, sources_of

pytest.importorskip("numba")
SRC = Path(stretto.__file__).parent


def test_what_other_rooms_give_counts():
    """Constants and functions of theirs are compiled into a file's functions."""
    links = imported_by(SRC / "transfer" / "links" / "compiled.py")
    quick = imported_by(SRC / "transfer" / "links" / "quick.py")
    cpu = imported_by(SRC / "executors" / "cpu" / "running" / "interpreter.py")

    assert SRC / "transfer" / "copying" / "compiled.py" in links
    assert SRC / "fabric" / "hop" / "__init__.py" in quick
    assert SRC / "trace" / "rings.py" in cpu


def test_a_change_far_away_is_another_hash(monkeypatch):
    """Of a file that is imported by one that is imported."""
    file = str(SRC / "transfer" / "links" / "compiled.py")
    sources_of.cache_clear()
    before, read = sources_of(file), Path.read_bytes

    def changed(path):
        return read(path) + (
            b"#" if path == SRC / "fabric" / "hop" / "fields.py" else b""
        )

    monkeypatch.setattr(Path, "read_bytes", changed)
    sources_of.cache_clear()
    after = sources_of(file)
    sources_of.cache_clear()

    assert before != after


@pytest.mark.parametrize(
    "file",
    [
        "executors/cpu/words.py",
        "executors/cpu/running/kernels.py",
        "fabric/jit/kept.py",
    ],
)
def test_a_change_is_another_mark_that_all_was_compiled(monkeypatch, file):
    """So nobody takes what was compiled of other files for what these say."""
    before, read = name(), Path.read_bytes

    def changed(path):
        return read(path) + (b"#" if path == SRC / file else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    after = name()
    monkeypatch.undo()
    loading._name.cache_clear()
    sources_of.cache_clear()

    assert before != after


def name():
    loading._name.cache_clear()
    sources_of.cache_clear()
    return loading._name(loaded._MODULES)
