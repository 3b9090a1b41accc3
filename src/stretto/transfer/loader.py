"""The compiled functions, loaded beside everything else: Python's serve until then.

Importing Numba takes half a second, in which an engine would do nothing. So a thread
does it, and the functions change over in the midst of use: both kinds work on the same
memory, and Python's hand on to the compiled ones under the lock that they share.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from types import ModuleType

__all__ = ["LOCK", "current", "load", "missing", "start"]

LOCK = threading.RLock()
"""Held by Python's functions, and while the compiled ones come into use."""
_turn = threading.Lock()
_loaded: list[ModuleType] = []
_LATER_S = 0.2
"""What is done at once when a process starts is not held up by the import."""
_COMPILED = "stretto.transfer.links.compiled"


@functools.cache
def missing() -> str:
    """Return why there are no compiled functions here, or nothing."""
    if os.environ.get("STRETTO_TRANSFER_LOOPS") == "numpy":
        return "STRETTO_TRANSFER_LOOPS=numpy asks for NumPy's"
    if os.uname().sysname != "Linux":
        return "they are for Linux"
    try:
        import numba
    except ImportError as e:
        return f"{e}: pip install 'stretto[cpu]'"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else ""


def current() -> ModuleType | None:
    """Return the compiled functions, once they are there."""
    return _loaded[0] if _loaded else None


def load() -> ModuleType | None:
    """Return the compiled functions when they are there; None: they cannot be."""
    with _turn:
        if not _loaded and not missing():
            module = importlib.import_module(_COMPILED)
            with LOCK:
                _loaded.append(module)
    return current()


def _renew() -> None:
    """Begin anew in a forked child: the thread that held the locks is not there."""
    global LOCK, _turn
    LOCK, _turn = threading.RLock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def start() -> None:
    """Load them in a thread of their own."""
    if not _loaded:
        thread = threading.Timer(_LATER_S, load)
        thread.name, thread.daemon = "stretto-transfer-load", True
        thread.start()
