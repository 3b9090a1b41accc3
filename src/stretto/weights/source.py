"""A trainer's rank: what it holds of the weights, and the versions it makes of them."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from itertools import accumulate, islice
from typing import Any

from stretto.errors import CallError, TransferTimeout
from stretto.fabric.patience import check_timeout
from stretto.transfer import Engine
from stretto.weights.casts import Cast, Made, made_of
from stretto.weights.copies import Copy
from stretto.weights.manifest import Held
from stretto.weights.member import Member, Who
from stretto.weights.memory import memory_of
from stretto.weights.recent import Looking, Recent
from stretto.weights.tensors import owned
from stretto.weights.version import Version

__all__ = ["Push", "Source"]

_ALIGNED = 256
_LEADER_S = 20.0


class Push:
    """A version that was pushed: who has it, and when it may be written over."""

    def __init__(
        self, source: Source, version: Version, copy: Copy, delta: str
    ) -> None:
        self._source, self.version, self._copy = source, version, copy
        self.delta = delta
        """How much has changed since the version before, or why nobody looked."""

    def __repr__(self) -> str:
        """Return of what it is a version, and which."""
        return f"<Push of {self._source.name!r}, version {self.version}>"

    @property
    def replicas(self) -> dict[str, bool]:
        """Return of each replica whether all its ranks have switched to it, or later.

        Those that have, and are gone since, are among them.
        """
        source = self._source
        with source.changed:
            here = {who.team for who in source.known.values()}
            found: dict[str, bool] = {}
            for (team, _), has in source.had.items():
                found[team] = found.get(team, True) and self.version.is_in(has)
            return {team: has for team, has in found.items() if has or team in here}

    def done(self, at_least: int = 1) -> bool:
        """Return whether all replicas that are known have it, and so many are known."""
        found = self.replicas
        return len(found) >= at_least and all(found.values())

    def wait(self, timeout: float | None = None, *, at_least: int = 1) -> None:
        """Wait until all replicas that are known have switched to it, or a later one.

        And until so many are known: one that comes late is known to nobody before. Who
        is lost is not waited for. TransferTimeout names who has not.
        """
        check_timeout(timeout, f"version {self.version}")
        source = self._source
        with source.changed:
            source.changed.wait_for(
                lambda: self.done(at_least) or source.is_closed, timeout
            )
            if self.done(at_least):
                return
            lacking = sorted(team for team, has in self.replicas.items() if not has)
        few = "any replica" if at_least == 1 else f"{at_least} replicas"
        who = f"replicas {lacking}" if lacking else few
        raise TransferTimeout(
            f"version {self.version}: not within {timeout} s by {who}"
        )

    def end(self, patience: float = 5.0) -> None:
        """Take it back: when this returns nobody reads it, and it may be written over.

        For what was pushed in place: before the optimizer's next step.
        """
        if self._copy.version == self.version:
            self._copy.take_back(patience)
            self._source.tell_offer()


class Source(Member):
    """See `publish`."""

    def __init__(
        self, engine: Engine, name: str, given: Any, *, rank: int, num_ranks: int,
        epoch: str, layouts: Mapping[str, Any], cast: Cast, patience: float,
        fan: int, delta: bool | None,
    ) -> None:  # fmt: skip
        super().__init__(
            engine, name, team="", rank=rank, of=num_ranks, patience=patience
        )
        self._made = [made_of(own, cast) for own in owned(given, layouts)]
        if not isinstance(fan, int) or fan < 0:
            raise CallError(f"fan={fan!r}; want a whole number, 0 for no limit")
        self.fan = 0 if rank else fan  # of several ranks the first says it for all
        self._memory = memory_of(engine, [one.own.array for one in self._made])
        self._epoch, self._counter = epoch, -1
        self._snapshot: Copy | None = None
        self._in_place: Copy | None = None
        self._taken: Version | None = None
        """The version that the snapshot is of, also when it is not offered any more."""
        self._recent = Recent(engine, name, wanted=delta)
        self._refused = self._refused_by = ""
        self.had: dict[tuple[str, int], Version | None] = {}
        """The version that each rank of a replica has said to have."""
        self._words["twice"] = self._twice
        if not self._epoch and rank == 0:
            self._epoch = secrets.token_hex(8)
        if self._epoch:
            Version(self._epoch, 0)  # or it says what is wrong with it
        self.begin()

    @property
    def epoch(self) -> str:
        """Return the epoch of its versions; rank 0 makes it, where none is given."""
        with self.changed:
            if self.changed.wait_for(lambda: self._epoch or self.is_closed, _LEADER_S):
                return self._epoch
        raise CallError(
            f"weights {self.name!r}: source rank {self.rank} knows no epoch; pass "
            "epoch= alike on all ranks, or connect its engine with rank 0's"
        )

    @property
    def version(self) -> Version | None:
        """Return the newest version that was pushed."""
        return None if self._counter < 0 else Version(self._epoch, self._counter)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all its tensors here."""
        return sum(one.own.array.nbytes for one in self._made)

    def about(self) -> dict[str, Any]:
        """Return what others are told of this."""
        return {**super().about(), "epoch": self._epoch}

    def joined(self, who: Who) -> None:
        """Note what a rank of a replica has."""
        if who.team:
            self.had[who.team, who.rank] = who.offers

    def left(self, who: Who) -> None:
        """Forget a rank that is gone, unless it had the newest version before."""
        newest, has = self.version, self.had.get((who.team, who.rank))
        if newest is None or not newest.is_in(has):
            self.had.pop((who.team, who.rank), None)

    def _hello(self, peer: Any, body: Mapping[str, Any]) -> None:
        super()._hello(peer, body)
        who = self.known[peer.identity]
        if who.team:
            if self._refused_by == peer.identity:
                self._refused = ""  # whom it followed is gone
            return
        if who.rank == self.rank:
            self._refused = (
                f"engine {peer.name!r} ({peer.whereabouts}) publishes it too"
            )
        elif who.rank == 0 and not self._epoch:
            self._epoch = Version(str(body["epoch"]), 0).epoch
            for other in self.known.values():
                self._say_hello(other.peer, answer=False)

    def _twice(self, peer: Any, body: Mapping[str, Any]) -> None:
        self._refused_by = peer.identity
        self._refused = (
            f"engine {peer.name!r} follows another source of it: {body['why']!s:.300}"
        )

    # Versions.

    def push(
        self, version: int | None = None, *, wait: bool = False, in_place: bool = False,
        timeout: float | None = None,
    ) -> Push:  # fmt: skip
        """Make a version of what the tensors hold now, and return at once.

        It is copied first, so that training can go on; with `in_place` it is not, and
        the tensors must stay as they are until `Push.end()` has returned. With `wait`
        all replicas have it when this returns.

        Replicas read what is copied as it comes; the sums, by which they know that all
        of it is right, are told last.
        """
        begun = time.monotonic_ns()
        counter = self._next(version)
        copy = self._copy_for(in_place=in_place)
        for other in self.copies:
            other.take_back(self.patience)  # one version of a name at a time
        made = Version(self.epoch, counter)
        looking = self._looking(copy, in_place=in_place)
        with self.changed:
            here = {(who.team, who.rank) for who in self.known.values()}
            self.had = {key: has for key, has in self.had.items() if key in here}
        try:
            self._write(copy, made, looking)
            if looking is not None:
                self._recent.keep(looking, copy.tag, made)
            copy.offer(made, copy.added())
        except BaseException:
            self.tell_early(copy, None)
            self.tell_offer()
            raise
        self._taken = self._taken if in_place else made
        self._counter = counter
        self.tell_early(copy, made)
        self.tell_offer()
        self.record("push", made, begun, self.nbytes)
        push = Push(self, made, copy, self._recent.said)
        if wait:
            push.wait(timeout)
        return push

    def _looking(self, copy: Copy, *, in_place: bool) -> Looking | None:
        """Return what looks for changes of this push, where they are of use."""
        with self.changed:
            far = any(who.team and who.peer.is_far for who in self.known.values())
        base = None if in_place else self._taken
        return self._recent.look(copy.manifest, base, far=far)

    def _write(self, copy: Copy, made: Version, looking: Looking | None) -> None:
        """Write a version, or add up what is there; let it be read as it comes.

        Not where changes are looked for, which are known when all is written. What is
        behind our caller's stream is told of when that has come to it.
        """
        in_place, left = copy is self._in_place, deque[Made]()
        if not in_place:
            left += sorted(self._made, key=lambda one: min(one.numbers))
        self._taken = self._taken if in_place else None
        copy.begin(self._memory.here())
        for far in copy.line.steps:
            while left and copy.line.ends[min(left[0].numbers)] <= far:
                self._make(left.popleft(), looking)
            copy.add(far)
            copy.wait()
            if looking is None:
                if copy.coming is None:
                    copy.open(made, ())
                    self.tell_offer()
                copy.came(copy.line.end if in_place else far)

    def _make(self, one: Made, looking: Looking | None) -> None:
        """Make what is cast of a tensor; see what changes before it is lost."""
        places, memory = one.places, self._memory
        pairs = [(one.own.array, places[0])]
        if one.how is not None:
            old = [] if looking is None else [memory.saved(place) for place in places]
            memory.write(one, places)
            pairs = list(zip(places, old, strict=False))
        for number, (new, before) in zip(one.numbers, pairs, strict=False):
            if looking is not None:
                looking.see(number, partial(memory.changed, new, before))

    def chain(self, peer: Any, base: str, version: Version) -> list[int]:
        """Return the changes by which a peer gets from what it has to a version."""
        if not base or not (peer.is_far or self._recent.wanted):
            return []
        return self._recent.chain(Version.parse(base), version)

    def _next(self, version: int | None) -> int:
        if self.is_closed:
            raise CallError(f"weights {self.name!r}: this source is closed")
        if self._refused:
            raise CallError(f"weights {self.name!r} have two sources: {self._refused}")
        counter = self._counter + 1 if version is None else version
        Version("any", counter)
        if counter <= self._counter:
            raise CallError(
                f"weights {self.name!r}: version {counter} after {self._counter}; "
                "versions of an epoch grow: a trainer that goes back takes a new epoch="
            )
        return counter

    def _copy_for(self, *, in_place: bool) -> Copy:
        if in_place:
            if any(one.how is not None for one in self._made):
                raise CallError(
                    f"weights {self.name!r}: in_place=True of tensors that are cast; "
                    "they are made in a snapshot"
                )
            if self._in_place is None:
                live = [(one.own.held, one.own.array) for one in self._made]
                self._in_place = Copy(
                    self._memory, self.name, "live", live, tell=self.send
                )
                self.copies.append(self._in_place)
            return self._in_place
        if self._snapshot is None:
            self._lay_out()
            parts: list[tuple[Held, Any]] = []
            sources: list[Any] = []
            for one in self._made:
                parts += zip(one.helds, one.places, strict=True)
                plain = one.own.array if one.how is None else None
                sources += [plain] * len(one.places)
            made = Copy(self._memory, self.name, "snap", parts, sources, tell=self.send)
            numbers = iter(made.numbers[i] for i in range(len(parts)))
            for one in self._made:
                one.numbers = tuple(islice(numbers, len(one.places)))
            self._snapshot = made
            self.copies.append(made)
        return self._snapshot

    def _lay_out(self) -> None:
        """Make memory for a snapshot, of one piece."""
        helds = [held for one in self._made for held in one.helds]
        sizes = [held.layout(1).part_bytes for held in helds]
        begins = [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
        room, typed = self._memory.room(begins[-1]), self._memory.typed
        places = (
            typed(room[begin : begin + size], held.dtype, held.extent)
            for held, begin, size in zip(helds, begins, sizes, strict=False)
        )
        for one in self._made:
            one.places = tuple(islice(places, len(one.helds)))

    def close(self) -> None:
        """Take all memory back, and say nothing more."""
        if not self.is_closed:  # a stream is given back once
            super().close()
            self._recent.close()
            self._memory.close()
