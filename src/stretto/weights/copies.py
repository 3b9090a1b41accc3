"""A copy of the weights that peers read: offered as a version, held while it is read.

Who wants to read says so, and gets a token, until he gives it back or is gone. The
owner writes over it only when it is taken back: it waits for readers as long as its
patience lasts, then ends the lease, and from then on nothing is read under its token.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.weights.hashes import said_sums
from stretto.weights.manifest import Held, grouped, region_name
from stretto.weights.memory import HostMemory, Summing
from stretto.weights.tensors import flat, lies
from stretto.weights.version import Version

__all__ = ["Copy"]


class Copy:
    """See the module: `tag` tells it from other copies of its owner."""

    def __init__(
        self, memory: HostMemory, name: str, tag: str,
        parts: Sequence[tuple[Held, Any]], sources: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        """Share parts, and the arrays that hold them; some are copied of `sources`."""
        engine = self._engine = memory.engine
        self.tag = tag
        self.version: Version | None = None
        """What can be read now."""
        self.sums: tuple[int, ...] = ()
        self._changed = threading.Condition()
        self._holds: dict[tuple[Any, int], bool] = {}
        self._lease: Any = None
        self.given = [held for held, _ in parts]
        """What it was made of, each as often as it was given."""
        apart = [lies(array) for _, array in parts]
        self.manifest, order = grouped(self.given, apart)
        self.arrays = tuple(flat(parts[i][1]) for i in order)
        """In the order of the manifest."""
        self.sum: Summing = memory.summing(
            self.arrays, sources and [sources[i] for i in order]
        )
        begin, self._regions = 0, []
        for g, group in enumerate(self.manifest.groups):
            some = self.arrays[begin : begin + len(group.names)]
            layout = self.manifest.held[begin].layout(len(some))
            begin += len(some)
            region = engine.share(
                list(some), region_name(name, tag, g), layout, read_only=True
            )
            self._regions.append(region)
        self._text = np.frombuffer(self.manifest.text.encode(), np.uint8)
        told = engine.share(
            self._text, region_name(name, tag, "manifest"), read_only=True
        )
        self._regions.append(told)

    def offer(self, version: Version, sums: Sequence[int]) -> None:
        """Let it be read; what it holds is written, and its sums are known, before."""
        with self._changed:
            if self._lease is None:
                self._lease = self._engine.lease()
            self.sums, self.version = tuple(sums), version

    def dump(self) -> Mapping[str, Any]:
        """Return what peers are told of it."""
        version = self.version
        return {
            "tag": self.tag, "version": "" if version is None else str(version),
            "digest": self.manifest.digest,
        }  # fmt: skip

    def hold(self, peer: Any, number: int, version: Version) -> dict[str, Any] | None:
        """Let a peer read a version until it says that it has; None: it is not here."""
        with self._changed:
            if self.version != version or self._lease is None:
                return None
            self._holds[peer, number] = True
            return {
                **self.dump(), "token": self._lease.token.hex(),
                "sums": said_sums(self.sums),
            }  # fmt: skip

    def release(self, peer: Any, number: int | None = None) -> None:
        """Note that a peer does not read it any more; or, that it is gone."""
        with self._changed:
            for key in list(self._holds):
                if key[0] is peer and number in (None, key[1]):
                    del self._holds[key]
            self._changed.notify_all()

    @property
    def readers(self) -> int:
        """Return how many read it now."""
        return len(self._holds)

    def take_back(self, patience: float) -> None:
        """Take it back: when this returns nobody reads it, or begins to.

        Who is slower than our patience finds it stale, and reads nothing more.
        """
        with self._changed:
            self.version = None
            self._changed.wait_for(lambda: not self._holds, patience)
            self._holds.clear()
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()

    def close(self) -> None:
        """Share it no more."""
        self.take_back(0.0)
        for region in self._regions:
            self._engine.unshare(region)
        self._regions.clear()
