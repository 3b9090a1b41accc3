"""A replica rank's memory: one copy or two, what comes in, and who reads there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.errors import CallError, TransferCancelled
from stretto.weights.copies import Copy
from stretto.weights.cover import There
from stretto.weights.hashes import said_sums
from stretto.weights.member import Mate
from stretto.weights.memory import memory_of
from stretto.weights.pulling import From, Origin, parts_here
from stretto.weights.tensors import Own, emptied, named_tensors, owned
from stretto.weights.version import Version

__all__ = ["Buffers"]


class Buffers:
    """See the module; `into` is what the caller gave, tensors or a module."""

    def __init__(
        self, owner: Mate, own: Sequence[Own], into: Any, *, count: int,
        memory: int | None, start: Version | None,
    ) -> None:  # fmt: skip
        self._owner, self._own = owner, tuple(own)
        self._module = into if hasattr(into, "named_parameters") else None
        need = (count - 1) * self.nbytes
        if memory is not None and not isinstance(memory, int):
            raise CallError(f"memory={memory!r:.80}; want a whole number of bytes")
        if memory is not None and need > memory:
            raise CallError(
                f"weights {owner.name!r}: a second copy takes {need} bytes, and "
                f"memory={memory} are to be had; pass copies=1, which pauses for a "
                "switch"
            )
        self._empty = emptied(into, own)
        given = {one.name: one.given for one in own}
        self.given: list[dict[str, Any]] = [given | self._empty]
        """Of each copy the tensors that users see."""
        self._arrays = [{one.name: one.array for one in own}]
        self.memory = memory_of(owner.engine, [one.array for one in own])
        owner.puller.near = self.memory.piece
        if count == 2:
            self._second()
        self._shared: list[Copy | None] = [None] * count
        self._cut_as: list[There | None] = [None] * count
        """Of each copy whose tensors its parts are those of."""
        self._sums: list[tuple[int, ...]] = [()] * count
        self._told: set[str] = set()
        self._lies: list[Version | None] = [start, None][:count]
        """Of each copy the version that it is, from its first byte to its last."""
        self._turn = threading.Lock()
        """Held while a version comes: closing waits for it."""
        self._has_stopped = False

    def _second(self) -> None:
        """Make memory for a second copy: of the same library, on the same device."""
        owner = self._owner
        if any(hasattr(p, "placements") for p in self._parameters().values()):
            raise CallError(
                f"weights {owner.name!r}: a module of DTensors, whose memory is not "
                "exchanged; pass copies=1"
            )
        made: dict[str, Any] = {}
        for own in self._own:
            if isinstance(own.given, np.ndarray):
                size = own.array.nbytes
                room = owner.engine.arena(size)[:size].view(own.array.dtype)
                made[own.name] = room.reshape(own.array.shape)
            else:
                made[own.name] = own.given.clone()
        self.given.append(made | self._empty)
        self._arrays.append({one.name: one.array for one in owned(made)})

    def _parameters(self) -> dict[str, Any]:
        """Return a module's parameters and buffers that are ours."""
        if self._module is None:
            return {}
        ours = {own.name for own in self._own}
        return {n: p for n, p in named_tensors(self._module) if n in ours}

    @property
    def nbytes(self) -> int:
        """Return the bytes of one copy."""
        return sum(own.array.nbytes for own in self._own)

    def turn_to(self, copy: int) -> None:
        """Let a module's parameters be those of a copy."""
        for name, parameter in self._parameters().items():
            parameter.data = self.given[copy][name]

    def pull(self, copy: int, origin: Origin, deadline: float, version: Version) -> int:
        """Write a version into a copy, and return the bytes read.

        No step reads there meanwhile. Other replicas do as far as it has come. What
        has changed since what lies here is enough, if the source knows that.
        """
        with self._turn:
            if self._has_stopped:
                raise TransferCancelled(f"weights {self._owner.name!r}: closed")
            shared, old = self._ready(copy, origin.ranks), self._old(origin)
            self._lies[copy] = None
            if old < 0:
                shared.open(version, origin.via)
                self._owner.tell_offer()
            try:
                return self._pull(copy, origin.ranks, deadline, shared, old)
            except BaseException:
                self.withdraw(copy)
                raise

    def _old(self, origin: Origin) -> int:
        """Return in which copy lies what changes lead on from; -1: read it whole."""
        has_changes = all(one.changes for one in origin.ranks)
        if origin.base is None or origin.base not in self._lies or not has_changes:
            return -1
        return self._lies.index(origin.base)

    def stop(self) -> None:
        """Cut off what comes, and give back what a GPU has for it.

        Who is still on the way to a peer is waited for as long as our patience lasts.
        """
        self._owner.puller.stop()
        if self._turn.acquire(timeout=self._owner.patience):
            if not self._has_stopped:
                self.memory.close()
            self._has_stopped = True
            self._turn.release()

    def _ready(self, copy: int, source: Sequence[From]) -> Copy:
        """Return what peers read of a copy: nobody does, and it fits what comes."""
        owner, shared, into = self._owner, self._shared[copy], self._arrays[copy]
        if shared is not None:
            shared.take_back(owner.patience)
        there = owner.puller.there(source)
        if shared is None or self._cut_as[copy] is not there:
            parts = parts_here(owner.puller.wanted, there, into)
            if shared is not None and [held for held, _ in parts] != shared.given:
                owner.copies.remove(shared)
                shared.close()
                shared = None
            if shared is None:
                tag = f"{owner.team}.{copy}"
                shared = Copy(self.memory, owner.name, tag, parts, tell=owner.send)
                with owner.changed:
                    self._shared[copy] = shared
                    owner.copies.append(shared)
            self._cut_as[copy] = there
        return shared

    def _pull(
        self, copy: int, source: Sequence[From], deadline: float, shared: Copy,
        old: int,
    ) -> int:  # fmt: skip
        memory, into, nbytes = self.memory, self._arrays[copy], self.nbytes
        puller = self._owner.puller
        memory.wait_read(copy)
        try:
            shared.begin(memory.adding)
            if old < 0:
                puller.pull(source, into, deadline, memory.stream, shared)
            else:
                with memory.writing():
                    for name, array in into.items() if old != copy else ():
                        memory.carry(array, self._arrays[old][name])
                    nbytes = puller.update(source, into, deadline, memory.put)
        finally:
            memory.wait_written()
        shared.add(shared.line.end)
        self._sums[copy] = shared.added()
        return nbytes

    def withdraw(self, copy: int) -> None:
        """Tell who reads what was to come into a copy that it will not."""
        self._owner.tell_early(self._in(copy), None)
        self._owner.tell_offer()

    def report(self, copy: int) -> dict[str, str]:
        """Return what the leader is told of what has come."""
        manifest = self._in(copy).manifest
        text = "" if manifest.digest in self._told else manifest.text
        self._told.add(manifest.digest)
        sums = said_sums(self._sums[copy])
        return {"digest": manifest.digest, "manifest": text, "sums": sums}

    def offer(self, copy: int, version: Version) -> None:
        """Let others read what the replica has switched to."""
        self._lies[copy] = version
        self._in(copy).offer(version, self._sums[copy])
        self._owner.tell_early(self._in(copy), version)

    def _in(self, copy: int) -> Copy:
        shared = self._shared[copy]
        assert shared is not None, "it was made when it came"
        return shared
