"""Buffers of models, as they were when a step began: statistics of batches, say.

A forward pass writes into a buffer, or puts another tensor in its place; both are
undone with the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class KeptBuffers:
    """What the buffers of some models were."""

    def __init__(self, models: Iterable[Any]) -> None:
        """Keep nothing yet. A module without buffers has none later."""
        modules = [part for one in models for part in one.modules()]
        self._owners = [part._buffers for part in modules if part._buffers]
        self._there: list[dict[str, Any]] = []
        """What was in each module, by name: the very tensors."""
        self._buffers: list[Any] = []
        self._copies: list[Any] = []

    def keep(self) -> None:
        """Keep all of them as they are now."""
        if not self._owners:
            return
        self._there = [dict(owner) for owner in self._owners]
        now = [b for one in self._there for b in one.values() if b is not None]
        same = [id(b) for b in now] == [id(b) for b in self._buffers]
        self._buffers = now
        if not same:
            self._copies = [b.detach().clone() for b in now]
        elif now:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, now)

    def put_back(self) -> None:
        """Have all of them be as they were kept; nothing, if nothing was."""
        for owner, there in zip(self._owners, self._there, strict=False):
            owner.clear()
            owner.update(there)
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._copies)
