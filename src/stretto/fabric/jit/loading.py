"""Load compiled loops; who finds none kept compiles them, and says so.

Loading takes half a second, compiling ten to thirty, once for a processor: of several
processes one compiles a function, and the others load it (kept.py).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from stretto import caches
from stretto.errors import MissingExtraError
from stretto.fabric.jit import missing, require
from stretto.fabric.jit.sources import sources_of
from stretto.fabric.notices import notify


def are_kept(*names: str) -> bool:
    """Return whether nothing is to be compiled for these modules: they load at once."""
    if missing() or all(name in sys.modules for name in names):
        return True
    try:
        return caches.load(_mark(names, "whole")) is not None
    except ImportError:  # `load` says it
        return True


def load(what: str, *names: str) -> list[ModuleType]:
    """Import modules of compiled functions, for `what`; say it if that takes long.

    MissingExtraError: nothing can be compiled here.
    """
    require(what)
    if all(name in sys.modules for name in names):  # or it is being imported: wait
        return [importlib.import_module(name) for name in names]
    try:
        kept = are_kept(*names)
        if not kept:
            _say(_mark(names, "said"))
        found = [importlib.import_module(name) for name in names]
    except ImportError as e:  # one that does not fit this Python, or this NumPy
        raise MissingExtraError(
            f"{what} needs what Numba compiles, and Numba cannot be used here ({e}): "
            "pip install --upgrade 'stretto[cpu]'"
        ) from e
    if not kept:
        caches.store(_mark(names, "whole"), b"kept")
    return found


def _mark(names: tuple[str, ...], word: str) -> Path:
    return caches.folder("compiled") / f"{word}-{_name(names)}"


@functools.cache
def _name(names: tuple[str, ...]) -> str:
    """Return a name for modules of these sources, by this compiler, here."""
    from numba.core.registry import cpu_target

    from stretto.fabric.jit.kept import here

    specs = [importlib.util.find_spec(name) for name in names]
    texts = [sources_of(spec.origin) for spec in specs if spec and spec.origin]
    said = texts, here(cpu_target.target_context)
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _say(mark: Path) -> None:
    """Say that compiling takes its time: once for what is kept, not once a rank."""
    try:
        mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.touch(mode=0o600, exist_ok=False)
    except OSError:
        return
    notify(
        "compiling its loops for this processor: 10 to 30 s, once (kept in "
        f"{mark.parent})"
    )
