"""Read a version: from all ranks of a source, by a plan that is proved and kept."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from stretto.errors import CallError, TransferCancelled
from stretto.program.collectives import storage
from stretto.transfer import Engine
from stretto.weights.boxes import Box, volume
from stretto.weights.changes import BlockMap, BoxTarget, NewElements, Put
from stretto.weights.copies import Copy
from stretto.weights.cover import Read, There, Wanted, cover
from stretto.weights.early import Following, RowLine, nobody
from stretto.weights.manifest import Held, Manifest, region_name
from stretto.weights.names import Names, Part, spec_of
from stretto.weights.tensors import Own, flat, lies
from stretto.weights.version import Version

__all__ = ["From", "Origin", "Puller", "parts_here", "wanted_of"]

CONNECT_S = 10.0
_MOST_KEPT = 8
_PIECES, _LEAST_PIECE, _WHOLE = 64, 256 << 10, 1 << 62
"""From another host a version is read in about so many pieces, of no fewer bytes, which
are handed on one by one. Within a host there is no wire to win, but between GPUs."""
_AHEAD = 16
"""Pieces under way at once, so that the first are soon handed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class From:
    """One rank of a source, as one is told of it: where it is, and what it grants."""

    identity: str
    metadata: Mapping[str, str]
    tag: str
    digest: str
    token: bytes
    whole: bool
    """Whether it has switched to it, or reads it itself meanwhile."""
    sums: str
    changes: tuple[int, ...] = ()
    """By which changes one gets there from what one has; none: it is read whole."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> From:
        """Return it from a message; CallError and such: that makes no sense."""
        return cls(
            identity=str(said["identity"]),
            metadata={str(k): str(v) for k, v in dict(said["metadata"]).items()},
            tag=str(said["tag"]), digest=str(said["digest"]),
            token=bytes.fromhex(str(said["token"])), sums=str(said["sums"]),
            whole=said["whole"] is True, changes=tuple(map(int, said["changes"])),
        )  # fmt: skip

    def dump(self) -> dict[str, Any]:
        """Return it as a message."""
        return {**asdict(self), "token": self.token.hex()}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a version comes from."""

    ranks: tuple[From, ...] = ()
    via: tuple[str, ...] = ()
    """By which replicas it comes; the source is none."""
    base: Version | None = None
    """Since which version changes are enough, if that is here."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Origin:
        """Return it from a message; CallError and such: that makes no sense."""
        ranks, base = tuple(map(From.of, said["source"])), str(said["base"])
        via = tuple(map(str, said["via"]))
        return cls(ranks, via, Version.parse(base) if base else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Get:
    """Tensors of one group, alike, from one rank: one transfer."""

    rank: int
    group: int
    box: Box
    reads: tuple[Read, ...]
    """Of each tensor, in the order of the group."""
    need: int
    """How far the rank that it is read from must be."""


class Puller:
    """What a rank wants, and the plans by which it has been read so far."""

    def __init__(
        self, engine: Engine, name: str, wanted: Sequence[Wanted], *, turn: int,
        following: Following | None = None,
    ) -> None:  # fmt: skip
        """Want some tensors; alone, without `following`, from who has them whole."""
        self._engine, self._name, self._turn = engine, name, turn
        self._following = following or Following(threading.Condition(), nobody)
        self.wanted = tuple(wanted)
        nbytes = sum(
            storage(w.dtype).itemsize * math.prod(w.shape) for w in self.wanted
        )
        self.near = _WHOLE
        """Bytes that are read at once within a host, at most."""
        self._far = max(_LEAST_PIECE, nbytes // _PIECES)
        self._manifests: dict[str, Manifest] = {}
        self.unread: tuple[str, ...] = ()
        """Tensors of the source of which nothing comes here: forgotten buffers, say."""
        self._plans: dict[tuple[str, ...], tuple[There, tuple[_Get, ...]]] = {}
        self._begun: list[Any] = []
        self._has_stopped = False

    def _peers(self, source: Sequence[From]) -> list[tuple[Any, From]]:
        """Return the peers that are a source's ranks; connect with who is none yet."""
        found = []
        for one in source:
            peer = self._engine.peers.get(one.identity)
            if peer is None:
                peer = self._engine.connect(one.metadata).wait(CONNECT_S)
            found.append((peer, one))
        return found

    def manifest(self, peer: Any, one: From) -> Manifest:
        """Return what a peer holds; it is read once."""
        if one.digest not in self._manifests:
            name = region_name(self._name, one.tag, "manifest")
            text = peer.region(name).wait(CONNECT_S)
            data = np.zeros(text.nbytes, np.uint8)
            text.get(data, deadline=CONNECT_S).wait(CONNECT_S)
            made = Manifest.parse(data.tobytes().decode())
            if made.digest != one.digest:
                raise CallError(f"engine {peer.name!r} has another manifest than said")
            self._manifests[one.digest] = made
        return self._manifests[one.digest]

    def _plan(
        self, pairs: Sequence[tuple[Any, From]], most: int
    ) -> tuple[There, tuple[_Get, ...]]:
        """Return what is to be read, proved; LayoutError names what does not fit."""
        manifests = [self.manifest(peer, one) for peer, one in pairs]
        key = (str(most), *(m.digest for m in manifests))
        if key not in self._plans:
            there = There(manifests)
            reads = cover(self.wanted, there, turn=self._turn, most=most)
            while len(self._plans) >= _MOST_KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = there, tuple(_gets(reads, there, most))
            read = {name for one in self.wanted for name in one.spec.sources()}
            self.unread = tuple(sorted(set(there.shapes) - read))
        return self._plans[key]

    def there(self, source: Sequence[From]) -> There:
        """Return what a source holds; it fits what is wanted, or that is raised."""
        pairs = self._peers(source)
        return self._plan(pairs, self._most(pairs))[0]

    def _most(self, pairs: Sequence[tuple[Any, From]]) -> int:
        """Return the bytes of a piece in which it is worth it to read, at most."""
        return self._far if any(peer.is_far for peer, _ in pairs) else self.near

    def pull(
        self, source: Sequence[From], into: Mapping[str, Any], deadline: float,
        stream: int | None = None, onto: Copy | None = None,
    ) -> There:  # fmt: skip
        """Read all of it into arrays, by name; whatever goes wrong is raised.

        What lies on a GPU is read by a `stream` of ours. `onto` is told how far it is.
        """
        pairs = self._peers(source)
        there, gets = self._plan(pairs, self._most(pairs))
        early = [(p, one.token) for p, one in pairs if not one.whole]
        self._begun = []
        try:
            for peer, token in early:
                self._following.watch(peer, token)
            if onto is not None:  # in the order in which it is handed on
                gets = tuple(sorted(gets, key=lambda get: _begins(get, onto.line)))
            self._move(pairs, gets, into, deadline, stream, onto)
        finally:
            for transfer in self._begun:  # nothing is written once this has returned
                transfer.cancel()
            for peer, token in early:
                self._following.forget(peer, token)
        return there

    def update(
        self, source: Sequence[From], into: Mapping[str, Any], deadline: float, put: Put
    ) -> int:
        """Put in place what has changed since what lies in arrays; return the bytes."""
        pairs, nbytes = self._peers(source), 0
        there, gets = self._plan(pairs, _WHOLE)
        for rank, (peer, one) in enumerate(pairs):
            some = [get for get in gets if get.rank == rank]
            manifest = there.manifests[rank]
            targets, blocks = list(_targets(some, manifest, into)), BlockMap(manifest)
            for counter in one.changes if targets else ():
                name = region_name(self._name, one.tag, f"changes/{counter}")
                region = peer.region(name).wait(CONNECT_S)
                fetch = partial(self._fetch, region, one, deadline)
                nbytes += NewElements(blocks, region.nbytes, fetch, put).write(targets)
        return nbytes

    def _fetch(
        self, region: Any, one: From, deadline: float, begin: int, end: int
    ) -> Any:
        self._check()
        data = np.zeros(end - begin, np.uint8)
        got = region[begin:end].get(data, lease=one.token, deadline=deadline)
        self._begun = [got]
        try:
            self._check()  # who stopped before it was there did not cancel it
            got.wait(deadline)
        finally:
            got.cancel()
        return data

    def _move(
        self, pairs: Sequence[tuple[Any, From]], gets: Sequence[_Get],
        into: Mapping[str, Any], deadline: float, stream: int | None, onto: Copy | None,
    ) -> None:  # fmt: skip
        """Read as soon as can be read; say how far all before has come."""
        waiting, under_way = deque(gets), deque[list[Any]]()
        most = len(gets) if self._most(pairs) == _WHOLE else _AHEAD
        while waiting or under_way:
            self._check()  # what began after `stop` looked is cancelled by `pull`
            if waiting and len(under_way) < most:
                get = waiting[0]
                peer, one = pairs[get.rank]
                if not (one.whole or under_way):
                    self._following.wait(
                        peer, one.token, get.need, deadline, self._check
                    )
                if one.whole or self._following.has(peer, one.token, get.need):
                    waiting.popleft()
                    some = self._begin(peer, one, get, into, deadline, stream)
                    self._begun += some
                    under_way.append(some)
                    continue
            for transfer in under_way.popleft():
                transfer.wait(deadline)
            if onto is not None:
                ahead = len(gets) - len(waiting) - len(under_way)
                rest = gets[ahead:]
                onto.landed(_begins(rest[0], onto.line) if rest else onto.line.end)

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
        views = [_view(into[r.name], r.at, r.tile.new_axes) for r in get.reads]
        found, begin = [], get.reads[0].index
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


def _gets(reads: Sequence[Read], there: There, most: int) -> list[_Get]:
    """Return reads as few transfers: neighbours of a group go at once, up to `most`."""
    alike: dict[Any, list[Read]] = {}
    for read in reads:
        alike.setdefault((read.rank, read.group, read.box), []).append(read)
    lines = [RowLine(manifest) for manifest in there.manifests]
    found = []
    for (rank, group, box), some in alike.items():
        held = there.manifests[rank].groups[group][0]
        nbytes = storage(held.dtype).itemsize * volume(box)
        layers: list[list[Read]] = []
        for read in sorted(some, key=lambda r: r.index):
            for run in layers:
                is_next = run[-1].index + 1 == read.index
                if is_next and (len(run) + 1) * nbytes <= most:
                    run.append(read)
                    break
            else:
                layers.append([read])
        for run in layers:
            line = lines[rank]
            need = max(line.span(r.tile.source, held.box, box)[1] for r in run)
            found.append(
                _Get(rank=rank, group=group, box=box, reads=tuple(run), need=need)
            )
    return found


def _targets(
    gets: Sequence[_Get], manifest: Manifest, into: Mapping[str, Any]
) -> Iterator[BoxTarget]:
    """Yield where the parts of one rank go, each with its number there."""
    firsts = [0, *itertools.accumulate(map(len, manifest.groups))]
    for get in gets:
        held = manifest.groups[get.group][0].box
        for read in get.reads:
            view = _view(into[read.name], read.at, read.tile.new_axes)
            yield BoxTarget(firsts[get.group] + read.index, held, get.box, view)


def _begins(get: _Get, line: RowLine) -> int:
    """Return where a read begins in the line of what lies here."""
    tiles = [read.tile for read in get.reads]
    return min(line.span(tile.source, tile.box, get.box)[0] for tile in tiles)


def parts_here(
    wanted: Sequence[Wanted], there: There, into: Mapping[str, Any]
) -> list[tuple[Held, Any]]:
    """Return what lies here as parts of the source's tensors, for who reads from us."""
    found = []
    for one in wanted:
        for tile in one.spec.tiles(there.shapes)[1]:
            shape = there.shapes[tile.source]
            held = Held(name=tile.source, shape=shape, box=tile.box, dtype=one.dtype)
            found.append((held, _view(into[one.name], tile.at, tile.new_axes)))
    return found


def wanted_of(own: Own, names: Names, how: Mapping[str, Any]) -> Wanted:
    """Return where a tensor here comes from; a shard by itself from the same part."""
    spec = spec_of(names, own.name, **how)
    if spec == Part(own.name) and own.held.extent != own.held.shape:
        spec = Part(own.name, box=own.held.box)
    shape = tuple(own.array.shape)
    return Wanted(name=own.name, shape=shape, dtype=own.held.dtype, spec=spec)
