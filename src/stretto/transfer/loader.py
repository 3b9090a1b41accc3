"""The compiled functions of this room: loaded once, by a process's first engine."""

from __future__ import annotations

import functools
from types import ModuleType

from stretto.fabric.jit.loading import load


@functools.cache
def functions() -> ModuleType:
    """Return what moves bytes and records; MissingExtraError: it cannot be had."""
    (module,) = load("a transfer engine", "stretto.transfer.links.compiled")
    return module
