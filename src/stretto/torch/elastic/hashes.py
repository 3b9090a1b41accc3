"""A hash of a tensor's bytes, on the CPU or where it lies: 128 bits, in two passes.

The bytes are words in rows of 1024. What is hashed are the sums of all columns and of
all rows: one word that differs changes both, and words that changed places do, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from stretto.torch.tensors import flat_bytes

_ROW = 1024
_BYTES = 8 * _ROW


def hash_of(tensor: Any) -> str:
    """Return the hash of a tensor's bytes, in row-major order."""
    flat = flat_bytes(tensor)
    whole = flat.numel() // _BYTES * _BYTES
    found = hashlib.blake2b(digest_size=16)
    found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    if whole:
        rows = _words(flat[:whole]).view(-1, _ROW)
        for axis in (0, 1):
            found.update(rows.sum(axis).cpu().numpy().tobytes())
    found.update(flat[whole:].cpu().numpy().tobytes())
    return found.hexdigest()


def _words(flat: Any) -> Any:
    """Return bytes as words; those that do not begin at a word are copied."""
    if flat.data_ptr() % 8:
        flat = flat.clone()
    return flat.view(torch.int64)


def hashes_of(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of each tensor."""
    return {name: hash_of(tensor) for name, tensor in tensors.items()}


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return the names of what differs, or is on one side only."""
    return [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
