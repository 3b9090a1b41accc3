"""A rank's state, moved to who takes a place: by engines of `stretto.transfer`.

Who has it gives each tensor a name, who comes gets them, straight into its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stretto import caches
from stretto.errors import MembershipError
from stretto.torch.elastic.hashes import differences, hashes_of
from stretto.torch.tensors import flat_bytes
from stretto.transfer import Engine

_CONNECT_S, _MOVE_S = 30.0, 600.0


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A state as it was at a step, in this process's memory."""

    tensors: dict[str, Any]
    said: dict[str, Any]
    """Its layout, its values and the hash of each tensor: what can be sent as JSON."""

    @classmethod
    def of(cls, tensors: Mapping[str, Any], said: Mapping[str, Any]) -> Snapshot:
        """Copy tensors."""
        copied = {n: t.to("cpu", copy=True) for n, t in tensors.items()}
        return cls(tensors=copied, said=dict(said))

    @classmethod
    def blank(cls, said: Mapping[str, Any]) -> Snapshot:
        """Return one with room for what another has."""
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, kind.removeprefix("torch.")))
            for name, shape, kind in said["layout"]
        }
        return cls(tensors=tensors, said=dict(said))

    @classmethod
    def read(cls, path: str) -> Snapshot:
        """Return what `write` has written."""
        found = torch.load(path, weights_only=True)
        tensors = found["tensors"]
        layout = [[n, list(t.shape), str(t.dtype)] for n, t in tensors.items()]
        hashes = found.get("hashes") or hashes_of(tensors)
        said = {"layout": layout, "values": found["values"], "hashes": hashes}
        return cls(tensors=tensors, said=said)

    def write(self, path: str) -> None:
        """Write it to a file: whole, or not at all."""
        said = {name: self.said[name] for name in ("values", "hashes")}
        part = f"{path}.{os.getpid()}.part"
        with caches.private(part) as file:
            torch.save({"tensors": self.tensors, **said}, file)
        Path(part).replace(path)

    def check(self, whose: str) -> None:
        """Compare what came with what was sent."""
        odd = differences(hashes_of(self.tensors), self.said["hashes"])
        if odd:
            raise MembershipError(
                f"{whose} came otherwise than it was: {odd[0]} and {len(odd) - 1} "
                "other tensors differ; nobody may go on from here"
            )


class StateMover:
    """This process's engine for states."""

    def __init__(
        self, name: str, job: str = "", listen: str = "", secret: bytes = b""
    ) -> None:
        """Begin it; `listen`: the address at which other hosts reach it."""
        more: dict[str, Any] = {"job": job}
        if listen:
            more |= {"listen": listen, "secret": secret or None}
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
                    flat_bytes(tensor), f"{tag}/{name}", read_only=True
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
            flat = flat_bytes(tensor)
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
