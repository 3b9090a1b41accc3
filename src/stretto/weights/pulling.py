"""Read a version: from all ranks of a source, by a plan that is proved and kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.errors import CallError, TransferCancelled
from stretto.transfer import Engine
from stretto.weights.boxes import Box
from stretto.weights.cover import Read, There, Wanted, cover, tiles_here
from stretto.weights.manifest import Held, Manifest, region_name
from stretto.weights.names import Names, Part, spec_of
from stretto.weights.tensors import Own, flat, lies

__all__ = ["From", "Puller", "parts_here", "wanted_of"]

CONNECT_S = 10.0
_MOST_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class From:
    """One rank of a source, as one is told of it: where it is, and what it grants."""

    identity: str
    metadata: Mapping[str, str]
    tag: str
    digest: str
    token: bytes
    sums: str

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> From:
        """Return it from a message; CallError and such: that makes no sense."""
        return cls(
            identity=str(said["identity"]),
            metadata={str(k): str(v) for k, v in dict(said["metadata"]).items()},
            tag=str(said["tag"]), digest=str(said["digest"]),
            token=bytes.fromhex(str(said["token"])), sums=str(said["sums"]),
        )  # fmt: skip

    def dump(self) -> dict[str, Any]:
        """Return it as a message."""
        return {
            "identity": self.identity, "metadata": dict(self.metadata),
            "tag": self.tag, "digest": self.digest, "token": self.token.hex(),
            "sums": self.sums,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Get:
    """Tensors of one group, alike, from one rank: one transfer."""

    rank: int
    group: int
    first: int
    box: Box
    places: tuple[tuple[str, Box, tuple[int, ...]], ...]
    """Of each tensor, in the order of the group, where it goes."""


class Puller:
    """What a rank wants, and the plans by which it has been read so far."""

    def __init__(
        self, engine: Engine, name: str, wanted: Sequence[Wanted], *, turn: int
    ) -> None:
        self._engine, self._name, self._turn = engine, name, turn
        self.wanted = tuple(wanted)
        self._manifests: dict[str, Manifest] = {}
        self.unread: tuple[str, ...] = ()
        """Tensors of the source of which nothing comes here: forgotten buffers, say."""
        self._plans: dict[tuple[str, ...], tuple[There, tuple[_Get, ...]]] = {}
        self._begun: list[Any] = []
        self._has_stopped = False

    def peers(self, source: Sequence[From], timeout: float = CONNECT_S) -> list[Any]:
        """Return the peers that are a source's ranks; connect with who is none yet."""
        found = []
        for one in source:
            peer = self._engine.peers.get(one.identity)
            if peer is None:
                peer = self._engine.connect(one.metadata).wait(timeout)
            found.append(peer)
        return found

    def manifest(self, peer: Any, one: From, timeout: float = CONNECT_S) -> Manifest:
        """Return what a peer holds; it is read once."""
        if one.digest not in self._manifests:
            region = peer.region(region_name(self._name, one.tag, "manifest"))
            text = region.wait(timeout)
            data = np.zeros(text.nbytes, np.uint8)
            text.get(data, deadline=timeout).wait(timeout)
            made = Manifest.parse(data.tobytes().decode())
            if made.digest != one.digest:
                raise CallError(f"engine {peer.name!r} has another manifest than said")
            self._manifests[one.digest] = made
        return self._manifests[one.digest]

    def plan(self, manifests: Sequence[Manifest]) -> tuple[There, tuple[_Get, ...]]:
        """Return what is to be read, proved; LayoutError names what does not fit."""
        key = tuple(m.digest for m in manifests)
        if key not in self._plans:
            there = There(manifests)
            reads = cover(self.wanted, there, turn=self._turn)
            while len(self._plans) >= _MOST_KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = there, tuple(_gets(reads))
            read = {name for one in self.wanted for name in one.spec.sources()}
            self.unread = tuple(sorted(set(there.shapes) - read))
        return self._plans[key]

    def pull(
        self, source: Sequence[From], into: Mapping[str, Any], deadline: float,
        stream: int | None = None,
    ) -> There:  # fmt: skip
        """Read all of it into arrays, by name; whatever goes wrong is raised.

        What lies on a GPU is read by a `stream` of ours.
        """
        peers = self.peers(source)
        pairs = list(zip(peers, source, strict=True))
        there, gets = self.plan([self.manifest(p, one) for p, one in pairs])
        self._begun = begun = []
        try:
            for get in gets:
                self._check()
                peer, one = pairs[get.rank]
                begun += self._begin(peer, one, get, into, deadline, stream)
            self._check()  # what began after `stop` looked is cancelled below
            for transfer in begun:
                transfer.wait(deadline)
        finally:
            for transfer in begun:  # nothing is written once this has returned
                transfer.cancel()
        return there

    def stop(self) -> None:
        """Read nothing more; what is under way is cancelled."""
        self._has_stopped = True
        for transfer in list(self._begun):
            transfer.cancel()

    def _check(self) -> None:
        if self._has_stopped:
            raise TransferCancelled(f"weights {self._name!r}: closed")

    def _begin(
        self, peer: Any, one: From, get: _Get, into: Mapping[str, Any], deadline: float,
        stream: int | None,
    ) -> list[Any]:  # fmt: skip
        region = peer.region(region_name(self._name, one.tag, get.group))
        picks = {f"D{i}": ends for i, ends in enumerate(get.box)}
        views = [_view(into[name], at, new) for name, at, new in get.places]
        found, begin = [], get.first
        for _, alike in itertools.groupby(views, lies):
            some = list(alike)
            ends = begin, begin + len(some)
            begin += len(some)
            view = region.wait(CONNECT_S).only(N=ends, **picks)
            how = {"lease": one.token, "deadline": deadline, "stream": stream}
            found.append(view.get(some, **how))
        return found


def _view(array: Any, at: Box, new_axes: Sequence[int]) -> Any:
    """Return a box of an array, without the axes that the source does not have."""
    index = tuple(
        start if axis in new_axes else slice(start, stop)
        for axis, (start, stop) in enumerate(at)
    )
    return flat(array[(*index, ...)])


def _gets(reads: Sequence[Read]) -> list[_Get]:
    """Return reads as few transfers: neighbours of a group go at once."""
    alike: dict[Any, list[Read]] = {}
    for read in reads:
        alike.setdefault((read.rank, read.group, read.box), []).append(read)
    found = []
    for (rank, group, box), some in alike.items():
        layers: list[list[Read]] = []
        for read in sorted(some, key=lambda r: r.index):
            for run in layers:
                if run[-1].index + 1 == read.index:
                    run.append(read)
                    break
            else:
                layers.append([read])
        for run in layers:
            places = tuple((r.name, r.at, r.new_axes) for r in run)
            found.append(
                _Get(rank=rank, group=group, first=run[0].index, box=box, places=places)
            )
    return found


def parts_here(
    wanted: Sequence[Wanted], there: There, into: Mapping[str, Any]
) -> list[tuple[Held, Any]]:
    """Return what lies here as parts of the source's tensors, for who reads from us."""
    return [
        (held, _view(into[name], tile.at, tile.new_axes))
        for name, tile, held in tiles_here(wanted, there)
    ]


def wanted_of(own: Own, names: Names, how: Mapping[str, Any]) -> Wanted:
    """Return where a tensor here comes from; a shard by itself from the same part."""
    spec = spec_of(names, own.name, **how)
    if spec == Part(own.name):
        spec = Part(own.name, box=own.held.box)
        if own.held.extent == own.held.shape:
            spec = Part(own.name)
    shape = tuple(own.array.shape)
    return Wanted(name=own.name, shape=shape, dtype=own.held.dtype, spec=spec)
