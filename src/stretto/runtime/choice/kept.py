"""What one process chose or proved, for those that ask the same: its name and place.

A name stands for all that an answer depends on: the question, and the library's own
files as they are now. So nothing that is kept is ever out of date.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from stretto import caches
from stretto._version import __version__
from stretto.program import algorithms
from stretto.program.ir import Program
from stretto.program.lang import Algorithm

KEPT_FROM = 8
"""Ranks from which it is quicker to read what was proved than to prove it."""
_ROOMS = (*("compiler", "executors/sim", "program", "runtime/choice", "topology"),)
"""Those that make plans, prove them, and say what they cost."""


def kept_at(kind: str, *facts: str) -> Path:
    """Return where the answer to a question of a kind is kept."""
    said = repr((_sources(), facts)).encode()
    return caches.folder(kind) / hashlib.sha256(said).hexdigest()[:40]


def are_shipped(some: Iterable[Algorithm]) -> bool:
    """Return whether algorithms come with the library: its sources say what they do."""
    return all(
        one.function.__module__.startswith("stretto.program.algorithms.")
        and algorithms.get(one.name) is one
        for one in some
    )


def said_by(program: Program) -> str:
    """Return what stands for a program of somebody's own: its text, and its lines."""
    lines = repr((program.places, [op.where for op in program.ops]))
    return hashlib.sha256(f"{program}{lines}".encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """Return a hash of where the library lies, and of the state of its files.

    Whatever is written to a file changes its state: the kernel notes when. To read them
    all would take each of many ranks ten times as long.
    """
    home = Path(__file__).parents[2]
    found = hashlib.sha256(f"{__version__} {home}".encode())
    folders = [str(home / room) for room in _ROOMS]
    for folder in folders:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
        for entry in inside:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    folders.append(entry.path)
                continue
            now = entry.stat()
            state = entry.path, now.st_size, now.st_mtime_ns, now.st_ctime_ns
            found.update(repr(state).encode())
    return found.hexdigest()
