"""Compiled kernels on disk: one file each, named by a hash of all it depends on."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["folder", "load", "store"]


def folder() -> Path:
    """Return where kernels are kept; `STRETTO_CACHE_DIR` moves it."""
    chosen = os.environ.get("STRETTO_CACHE_DIR")
    if chosen:
        return Path(chosen) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stretto" / "kernels"


def load(key: str) -> bytes | None:
    """Return what is kept under a key."""
    try:
        return (folder() / f"{key}.cubin").read_bytes() or None
    except OSError:
        return None


def store(key: str, image: bytes) -> None:
    """Keep an image; whoever reads meanwhile finds all of it or nothing.

    A cache that cannot be written costs a compilation, no more.
    """
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place)
        with os.fdopen(handle, "wb") as file:
            file.write(image)
        Path(name).replace(place / f"{key}.cubin")
