"""A copy of the weights that peers read: offered as a version, held while it is read.

Who wants to read says so, and gets a token, until he gives it back or is gone. The
owner writes over it only when it is taken back: it waits for readers as long as its
patience lasts, then ends the lease, and from then on nothing is read under its token.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stretto.weights.early import FAILED, RowLine, nobody
from stretto.weights.hashes import said_sums
from stretto.weights.manifest import Held, grouped, region_name
from stretto.weights.memory import HostMemory
from stretto.weights.tensors import flat, lies
from stretto.weights.version import Version

__all__ = ["Copy"]


class Copy:
    """See the module: `tag` tells it from other copies of its owner."""

    def __init__(
        self, memory: HostMemory, name: str, tag: str,
        parts: Sequence[tuple[Held, Any]], sources: Sequence[Any] | None = None,
        tell: Callable[..., None] = nobody,
    ) -> None:  # fmt: skip
        """Share parts, and the arrays that hold them; some are copied of `sources`.

        Who reads what is coming is told by `tell` how far it is.
        """
        engine = self._engine = memory.engine
        self.tag, self._tell = tag, tell
        self.version: Version | None = None
        """What can be read now."""
        self.coming: Version | None = None
        """What is being written, and can be read as far as it has come."""
        self.via: tuple[str, ...] = ()
        """By which replicas it comes; the source is none."""
        self._far = 0
        self._watchers: list[Any] = []
        self.sums: tuple[int, ...] = ()
        self._changed = threading.Condition()
        self._holds: dict[tuple[Any, int], bool] = {}
        """Who reads, and whether that is early."""
        self._lease: Any = None
        self.given = [held for held, _ in parts]
        """What it was made of, each as often as it was given."""
        apart = [lies(array) for _, array in parts]
        self.manifest, order = grouped(self.given, apart)
        self.numbers = {i: number for number, i in enumerate(order)}
        """Of what it was made of, the place of each in the manifest."""
        self.arrays = tuple(flat(parts[i][1]) for i in order)
        """In the order of the manifest."""
        self._parts = memory.sums(self.arrays, sources and [sources[i] for i in order])
        self._added = 0
        self.line = RowLine(self.manifest)
        begin, self._regions = 0, []
        for g, group in enumerate(self.manifest.groups):
            some = list(self.arrays[begin : begin + len(group)])
            layout = group[0].layout(len(some))
            begin += len(some)
            region = engine.share(
                some, region_name(name, tag, g), layout, read_only=True
            )
            self._regions.append(region)
        self._text = np.frombuffer(self.manifest.text.encode(), np.uint8)
        told = engine.share(
            self._text, region_name(name, tag, "manifest"), read_only=True
        )
        self._regions.append(told)

    def begin(self, stream: int | None) -> None:
        """Begin to add up what it is to hold, behind what a stream was given."""
        self._added = 0
        self._parts.begin(stream)

    def add(self, far: int) -> None:
        """Add up the parts that end before a byte."""
        first, self._added = self._added, bisect_right(self.line.ends, far)
        if first < self._added:
            self._parts.add(first, self._added)

    def wait(self) -> None:
        """Wait until what was added has been read, and copied."""
        self._parts.wait()

    def landed(self, far: int) -> None:
        """Tell who reads meanwhile how far it is, and add that up."""
        self.came(far)
        self.add(far)

    def added(self) -> tuple[int, ...]:
        """Return the sums, once all has been added up."""
        assert self._added == len(self.arrays), "all was added"
        return self._parts.found()

    def offer(self, version: Version, sums: Sequence[int]) -> None:
        """Let it be read; what it holds is written, and its sums are known, before."""
        with self._changed:
            if self._lease is None:
                self._lease = self._engine.lease()
            self.sums, self.version = tuple(sums), version
            self.coming, self._watchers = None, []

    def open(self, version: Version, via: Sequence[str]) -> None:
        """Let be read what is about to come, as far as it has."""
        with self._changed:
            self._lease = self._engine.lease()
            self.coming, self.via, self._far = version, tuple(via), 0

    def came(self, far: int) -> None:
        """Tell who reads meanwhile how far it is; FAILED: it will not come."""
        with self._changed:
            if self.coming is None:
                return
            self._far, token = far, self._lease.token.hex()
            for peer in self._watchers:
                self._tell(peer, "far", token=token, far=far)
            if far == FAILED:
                self.coming, self._watchers = None, []

    def watch(self, peer: Any, token: bytes) -> bool:
        """Tell a peer from now on how far it is; False: the token is not of this."""
        with self._changed:
            if self._lease is None or self._lease.token != token:
                return False
            is_coming = self.coming is not None
            if is_coming:
                self._watchers.append(peer)
            far = self._far if is_coming else FAILED
            if self.version is not None:
                far = self.line.end
            self._tell(peer, "far", token=token.hex(), far=far)
            return True

    @property
    def early(self) -> list[tuple[Any, int]]:
        """Return who reads what has not been switched to, and under which number."""
        with self._changed:
            return [key for key, is_early in self._holds.items() if is_early]

    def hold(self, peer: Any, number: int, version: Version) -> dict[str, Any] | None:
        """Let a peer read a version until it says that it has; None: it is not here."""
        with self._changed:
            is_whole = self.version == version
            if self._lease is None or not (is_whole or self.coming == version):
                return None
            self._holds[peer, number] = not is_whole
            return {
                "tag": self.tag, "digest": self.manifest.digest, "whole": is_whole,
                "token": self._lease.token.hex(),
                "sums": said_sums(self.sums) if is_whole else "",
            }  # fmt: skip

    def release(self, peer: Any, number: int | None = None) -> bool:
        """Note that a peer does not read it any more, or is gone; False: it did not."""
        with self._changed:
            ended = [k for k in self._holds if k[0] is peer and number in (None, k[1])]
            for key in ended:
                del self._holds[key]
            if number is None:
                self._watchers = [one for one in self._watchers if one is not peer]
            self._changed.notify_all()
            return bool(ended)

    @property
    def readers(self) -> int:
        """Return how many read it now."""
        return len(self._holds)

    def take_back(self, patience: float) -> None:
        """Take it back: when this returns nobody reads it, or begins to.

        Who is slower than our patience finds it stale, and reads nothing more.
        """
        self.came(FAILED)
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
