"""The switch from one version to the next, on all ranks of a replica: no I/O.

    leader: what can be had, who has it whole  ->  fetch, and the version of each step
    rank:   fetch, steps, what was pulled      ->  when to pull, into which copy

The leader names the version in each step's message, once all ranks have said that they
have it whole; so no step sees two. A rank pulls into the copy that will not be named
any more, and not before the steps that read it have ended: that is its lease. With one
copy the leader names no steps from the fetch on until all ranks have the new version
whole; when one fails, it stops: half a version is never read.

Events in, actions out; states are values. Messages between the leader and a rank come
in the order in which they were sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = [
    "Action", "Failed", "Fetch", "Fetched", "Leader", "NextStep", "Pull", "RankCopies",
    "Reading",
]  # fmt: skip

V = int
"""A version, as the machines see it: those of one leader grow."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Leader to all ranks: get a version; `keep` may still be named, 0: none."""

    attempt: int
    version: V
    keep: V


@dataclass(frozen=True, slots=True)
class NextStep:
    """Leader to all ranks: the next step, and the version that it reads."""

    number: int
    version: V


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rank to leader: it has what was fetched, whole."""

    rank: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Rank to leader: it did not get it."""

    rank: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Pull:
    """For the rank itself: write a version into a copy now."""

    attempt: int
    version: V
    copy: int


@dataclass(frozen=True, slots=True)
class Reading:
    """For the rank itself: a step may read this copy until it has ended."""

    number: int
    version: V
    copy: int


Action = Fetched | Failed | Pull | Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who decides for a replica which version its steps read."""

    num_ranks: int
    is_single: bool = False
    """Whether ranks have memory for one copy only."""
    current: V = 0
    """The version of the next step."""
    attempt: int = 0
    wanted: V = 0
    """What is being fetched; 0: nothing."""
    ready: frozenset[int] = frozenset()
    steps: int = 0
    has_stopped: bool = False
    """Whether copies are in pieces: no step until a version is whole everywhere."""

    def can_fetch(self, version: V) -> bool:
        """Return whether a version is of use, and nothing else is under way."""
        return not self.wanted and (version > self.current or self.has_stopped)

    def fetch(self, version: V) -> tuple[Leader, Fetch]:
        """Have all ranks get a version."""
        assert self.can_fetch(version), "who asks has looked"
        keep = 0 if self.is_single else self.current
        after = replace(
            self, attempt=self.attempt + 1, wanted=version, ready=frozenset()
        )
        return after, Fetch(after.attempt, version, keep)

    def hear(self, said: Fetched | Failed) -> Leader:
        """Hear what became of a fetch; what is of an earlier one counts for nothing."""
        if said.attempt != self.attempt or not self.wanted:
            return self
        if isinstance(said, Failed):
            return replace(self, wanted=0, has_stopped=self.is_single)
        ready = self.ready | {said.rank}
        if len(ready) < self.num_ranks:
            return replace(self, ready=ready)
        return replace(
            self, current=self.wanted, wanted=0, ready=frozenset(), has_stopped=False
        )

    @property
    def may_step(self) -> bool:
        """Return whether a step may be named now."""
        return not (self.has_stopped or (self.is_single and self.wanted))

    def step(self) -> tuple[Leader, NextStep]:
        """Name the next step."""
        assert self.may_step, "who asks has looked"
        after = replace(self, steps=self.steps + 1)
        return after, NextStep(after.steps, self.current)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCopies:
    """One rank's copies: what is in them, who reads them, what is pulled into them."""

    rank: int
    copies: tuple[V, ...] = (0, -1)
    """The version in each; -1: none that is whole."""
    reading: tuple[tuple[int, V], ...] = ()
    """The steps that were named and have not ended, with their versions."""
    waiting: Fetch | None = None
    """What is to be pulled, once nobody reads the copy that it is for."""
    pulling: Pull | None = None

    def hear(self, said: Fetch | NextStep) -> tuple[RankCopies, tuple[Action, ...]]:
        """Hear the leader."""
        if isinstance(said, NextStep):
            after = replace(self, reading=(*self.reading, (said.number, said.version)))
            copy = self.copies.index(said.version)
            return after, (Reading(said.number, said.version, copy),)
        return replace(self, waiting=said)._go_on()

    def forget(self, version: V) -> tuple[RankCopies, int]:
        """Take a version for none that is whole; return the copy it was in, or -1."""
        if version not in self.copies:
            return self, -1
        copy = self.copies.index(version)
        return replace(self, copies=self._with(copy, -1)), copy

    def ended(self, number: int) -> tuple[RankCopies, tuple[Action, ...]]:
        """Note that a step reads no more."""
        left = tuple(one for one in self.reading if one[0] != number)
        return replace(self, reading=left)._go_on()

    def pulled(
        self, attempt: int, *, well: bool
    ) -> tuple[RankCopies, tuple[Action, ...]]:
        """Note how a pull has ended; what has failed leaves nothing whole."""
        pull = self.pulling
        if pull is None or pull.attempt != attempt:
            return self, ()
        copies = self._with(pull.copy, pull.version if well else -1)
        after, more = replace(self, pulling=None, copies=copies)._go_on()
        kind = Fetched if well else Failed
        return after, (kind(self.rank, attempt), *more)

    def _with(self, copy: int, version: V) -> tuple[V, ...]:
        return tuple(version if i == copy else v for i, v in enumerate(self.copies))

    def _go_on(self) -> tuple[RankCopies, tuple[Action, ...]]:
        """Begin the pull that waits, when its copy is free."""
        fetch = self.waiting
        if fetch is None or self.pulling is not None:
            return self, ()
        if fetch.version in self.copies:
            return replace(self, waiting=None), (Fetched(self.rank, fetch.attempt),)
        copy = self.free(fetch)
        if copy < 0:
            return self, ()
        pull = Pull(fetch.attempt, fetch.version, copy)
        after = replace(self, waiting=None, pulling=pull, copies=self._with(copy, -1))
        return after, (pull,)

    def free(self, fetch: Fetch) -> int:
        """Return the copy that may be written over; -1: none may yet."""
        read = {version for _, version in self.reading}
        for copy, version in enumerate(self.copies):
            if len(self.copies) > 1 and version == fetch.keep:
                continue
            if version not in read:
                return copy
        return -1
