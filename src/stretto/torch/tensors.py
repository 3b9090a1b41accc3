"""Tensors as a communicator takes them: contiguous, plain, of types that it knows.

What is not so is copied, or seen as bytes; parts that follow one another in memory are
one block. `read` gives what a call reads, `written` and `divided` what it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from stretto.program.collectives import DTYPES

Tensor = Any

_KNOWN = frozenset(getattr(torch, name) for name in DTYPES if hasattr(torch, name))


def _is_plain(tensor: Tensor) -> bool:
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def bits(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor of a type that ours do not know as its bytes."""
    if tensor.dtype in _KNOWN:
        return tensor
    return tensor.reshape(-1).view(torch.uint8)


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, in row-major order; of one with gaps, a copy's."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def units(tensor: Tensor) -> int:
    """Return how many elements `bits` makes of one."""
    return 1 if tensor.dtype in _KNOWN else int(tensor.element_size())


def read(tensor: Tensor, *, moved: bool = True) -> Tensor:
    """Return a tensor whose memory holds these elements, in order."""
    plain = tensor.detach()
    if not _is_plain(plain):
        plain = plain.resolve_conj().resolve_neg().contiguous()
    return bits(plain) if moved else plain


@contextmanager
def written(tensor: Tensor, *, filled: bool, moved: bool = True) -> Iterator[Tensor]:
    """Give what a call may write to; `tensor` has it afterwards.

    `filled`: the call reads it, too.
    """
    mine = tensor.detach()
    if _is_plain(mine):
        yield bits(mine) if moved else mine
        return
    copy = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
    if filled:
        copy.copy_(mine)
    yield bits(copy) if moved else copy
    mine.copy_(copy)


def rows(tensor: Tensor, n: int) -> Tensor:
    """Return a tensor whose first axis n divides, when its size does."""
    if tensor.dim() and tensor.shape[0] % n == 0:
        return tensor
    return tensor.reshape(-1)


def block(parts: Sequence[Tensor]) -> Tensor | None:
    """Return the memory of parts that follow one another, as one flat tensor."""
    first = parts[0]
    at, size, memory = first.data_ptr(), first.element_size(), first.untyped_storage()
    total = 0
    for part in parts:
        if part.dtype != first.dtype or not _is_plain(part):
            return None
        if part.numel() and part.data_ptr() != at + total * size:
            return None
        if part.untyped_storage().data_ptr() != memory.data_ptr():
            return None
        total += part.numel()
    return first.detach().as_strided((total,), (1,))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the elements of all parts, one after another."""
    whole = block(parts) if len(parts) else None
    if whole is not None:
        return bits(whole)
    return torch.cat([read(part).reshape(-1) for part in parts])


@contextmanager
def divided(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Give a flat tensor; what is written there, the parts have afterwards."""
    whole = block(parts)
    if whole is not None:
        yield bits(whole)
        return
    mine = [part.detach() for part in parts]
    counts = [part.numel() for part in mine]
    whole = torch.empty(sum(counts), dtype=mine[0].dtype, device=mine[0].device)
    yield bits(whole)
    for part, got in zip(mine, whole.split(counts), strict=True):
        part.copy_(got.view(part.shape))
