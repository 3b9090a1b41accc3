"""A rank's state, moved to who takes a place: by engines of `stretto.transfer`.

Who has it gives each tensor a name, who comes gets them, straight into its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from stretto.transfer import Engine

_CONNECT_S, _MOVE_S = 30.0, 600.0


class StateMover:
    """This process's engine for states."""

    def __init__(self, name: str, listen: str = "", secret: bytes = b"") -> None:
        """Begin it; `listen`: the address at which other hosts reach it."""
        more: dict[str, Any] = {}
        if listen:
            more = {"listen": listen, "secret": secret or None}
        self._engine = Engine(f"elastic-{name}-{os.getpid()}", **more)
        self._shared: list[Any] = []

    @property
    def metadata(self) -> dict[str, str]:
        """What another needs to reach it."""
        return dict(self._engine.metadata)

    def offer(self, tensors: Mapping[str, Any], tag: str) -> None:
        """Let others get tensors, under their names and a tag, until `withdraw`."""
        for name, tensor in tensors.items():
            if tensor.numel():
                region = self._engine.share(
                    _bytes_of(tensor), f"{tag}/{name}", read_only=True
                )
                self._shared.append(region)

    def withdraw(self) -> None:
        """Take back what was offered."""
        shared, self._shared = self._shared, []
        for region in shared:
            self._engine.unshare(region)

    def take(
        self, metadata: Mapping[str, str], tensors: Mapping[str, Any], tag: str
    ) -> None:
        """Get what another offers into tensors of the same names."""
        peer = self._engine.connect(metadata).wait(_CONNECT_S)
        begun, staged = [], []
        for name, tensor in tensors.items():
            if not tensor.numel():
                continue
            flat = _bytes_of(tensor)
            if flat.data_ptr() != tensor.data_ptr():
                staged.append((tensor, flat))
            region = peer.region(f"{tag}/{name}").wait(_CONNECT_S)
            begun.append(region.get(flat))
        for one in begun:
            one.wait(_MOVE_S)
        for tensor, flat in staged:
            tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))

    def close(self) -> None:
        """End it."""
        self._engine.close()


def _bytes_of(tensor: Any) -> Any:
    """Return a tensor's bytes; of one that is not contiguous, a copy's."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
