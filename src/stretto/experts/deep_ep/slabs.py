"""Slabs of DeepEP's low-latency mode: room for every token, at each expert.

Rows arrive by expert, one after the other (layout "expert"); here they are laid out as
E x room x hidden, and gathered from there. On a GPU sizes are not known to the host:
whole slabs are indexed there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["gathered", "packed_exponents", "spread"]


def spread(sent: Any, rows: Tensor, slabs: Tensor) -> None:
    """Lay rows of a dispatch out in slabs; what is behind an expert's is anything."""
    room, wide = slabs.shape[1], slabs.shape[2]
    if not rows.is_cuda:
        for e, (start, count) in enumerate(_parts(sent)):
            slabs[e, :count] = rows[start : start + count]
        return
    lines = sent.starts[:-1, None] + torch.arange(room, device=rows.device)
    lines = lines.clamp(max=rows.shape[0] - 1).view(-1)
    slabs.copy_(rows[lines].view(-1, room, wide))


def gathered(sent: Any, slabs: Tensor) -> Tensor:
    """Return rows as a combine takes them, of slabs."""
    room, wide = slabs.shape[1], slabs.shape[2]
    if not slabs.is_cuda:
        parts = [slabs[e, :count] for e, (_, count) in enumerate(_parts(sent))]
        return torch.cat(parts)
    lines = torch.arange(sent.rows.shape[0], device=slabs.device)
    owner = torch.searchsorted(sent.starts[1:], lines, right=True)
    owner = owner.clamp(max=slabs.shape[0] - 1)
    places = (lines - sent.starts[owner]).clamp(max=room - 1)
    return slabs.view(-1, wide)[owner * room + places]


def _parts(sent: Any) -> list[tuple[int, int]]:
    """Return where each expert's rows begin, and how many there are."""
    return list(zip(sent.starts.tolist(), sent.counts.tolist(), strict=False))


def packed_exponents(scales: Tensor) -> Tensor:
    """Return scales that are powers of two as bytes, four in a word (UE8M0)."""
    exponents = (scales.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    return exponents.view(torch.int32)
