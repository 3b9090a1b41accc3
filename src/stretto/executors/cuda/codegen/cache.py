"""Compiled kernels on disk: one file each, named by a hash of all it depends on."""

from __future__ import annotations

from pathlib import Path

from stretto import caches


def folder() -> Path:
    """Return where kernels are kept; `STRETTO_CACHE_DIR` moves it."""
    return caches.folder("cubins")


def load(key: str) -> bytes | None:
    """Return what is kept under a key, when it is what was stored."""
    return caches.load(folder() / f"{key}.cubin")


def store(key: str, image: bytes) -> None:
    """Keep an image; a cache that cannot be written costs a compilation, no more."""
    caches.store(folder() / f"{key}.cubin", image)
