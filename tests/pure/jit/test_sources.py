"""What is compiled is compiled anew when anything that went into it changes."""

from pathlib import Path

import pytest

import stretto
from stretto.executors.cpu.running import beside
from stretto.jit import atomics

SRC = Path(stretto.__file__).parent


def test_what_other_rooms_give_counts():
    """Constants and functions of theirs are compiled into a file's functions."""
    links = atomics._imported(SRC / "transfer" / "links" / "compiled.py")
    quick = atomics._imported(SRC / "transfer" / "links" / "quick.py")
    cpu = atomics._imported(SRC / "executors" / "cpu" / "running" / "interpreter.py")

    assert SRC / "transfer" / "copying" / "compiled.py" in links
    assert SRC / "hop" / "__init__.py" in quick
    assert SRC / "trace" / "rings.py" in cpu


def test_a_change_far_away_is_another_hash(monkeypatch):
    """Of a file that is imported by one that is imported."""
    file = str(SRC / "transfer" / "links" / "compiled.py")
    atomics._sources.cache_clear()
    before, read = atomics._sources(file), Path.read_bytes

    def changed(path):
        return read(path) + (b"#" if path == SRC / "hop" / "fields.py" else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    atomics._sources.cache_clear()
    after = atomics._sources(file)
    atomics._sources.cache_clear()

    assert before != after


@pytest.mark.parametrize(
    "file",
    ["executors/cpu/words.py", "executors/cpu/running/kernels.py", "jit/kept.py"],
)
def test_a_change_is_another_mark_that_all_was_compiled(monkeypatch, file):
    """So nobody takes what was compiled of other files for what these say."""
    beside._mark.cache_clear()
    before, read = beside._mark(), Path.read_bytes

    def changed(path):
        return read(path) + (b"#" if path == SRC / file else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    beside._mark.cache_clear()
    after = beside._mark()
    beside._mark.cache_clear()

    assert before != after
