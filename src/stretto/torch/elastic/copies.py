"""Copies of states, at neighbours and in files; and from where who comes takes its own.

What only a lost rank had is taken from a copy of an earlier step. Then all go back to
that step, each to its own copy: so every rank keeps one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto import caches
from stretto.errors import MembershipError
from stretto.torch.elastic.moving import Snapshot, StateMover
from stretto.torch.elastic.state import State

LEAVER, FILE = -1, -2
"""In place of a rank that gives a state: who has left the place, and a checkpoint."""
_FILES = 2
Exchange = Callable[[Mapping[str, Any]], list[Any]]


@dataclass(slots=True)
class StateCopies:
    """What one rank keeps: its own state, and those of ranks that it is a keeper of."""

    state: State
    mover: StateMover
    job: int
    """Its number: nobody goes back to checkpoints of an earlier one."""
    mine: dict[int, Snapshot] = field(default_factory=dict)
    """By step."""
    held: dict[tuple[int, int], Snapshot] = field(default_factory=dict)
    """By rank and step."""
    is_wanted: bool = True
    """Whether ranks have changed since the last: on all alike."""
    _last: int = -1
    _num_ranks: int = 0

    @property
    def is_due(self) -> bool:
        """Whether all ranks copy their states now, before this step."""
        state = self.state
        if not state.copies or state.num_ranks < 2:
            return False
        regular = state.step % state.every == 0 and state.step != self._last
        return self.is_wanted or regular

    def copy(self, hosts: Sequence[int], exchange: Exchange, tag: str) -> None:
        """Keep this rank's state, and have its keepers keep it (collective).

        What was kept before goes when all have the new ones.
        """
        step, me = self.state.step, self.state.rank
        mine = self.mine[step] = self.state.snapshot()
        try:
            self.mover.offer(mine.tensors, f"{tag}/{me}")
            said = exchange({"engine": self.mover.metadata, **mine.said})
            for rank in range(len(said)):
                if me in keepers_of(rank, hosts, len(said), self.state.copies):
                    theirs = Snapshot.blank(said[rank])
                    engine = said[rank]["engine"]
                    self.mover.take(engine, theirs.tensors, f"{tag}/{rank}")
                    theirs.check(f"the copy of rank {rank}")
                    self.held[rank, step] = theirs
            exchange({"kept": step})
        finally:
            self.mover.withdraw()
        self.mine = {step: mine}
        self.held = {key: one for key, one in self.held.items() if key[1] == step}
        self._last, self._num_ranks, self.is_wanted = step, len(said), False

    def save(self) -> None:
        """Write a checkpoint of this rank, where one is due; the last two stay."""
        state = self.state
        often = state.checkpoint_every
        if not often or state.step % often or state.step in self.files():
            return
        state.snapshot().write(f"{state.path}.{state.step}")
        before, now = self.files(), [*self.files(), state.step][-_FILES:]
        part = Path(f"{state.path}.steps.part")
        with caches.private(part) as file:
            file.write(" ".join(map(str, (self.job, *now))).encode())
        part.replace(f"{state.path}.steps")
        for step in {*before} - {*now}:
            Path(f"{state.path}.{step}").unlink(missing_ok=True)

    def files(self) -> list[int]:
        """Return of which steps this job has checkpoints of this rank's place."""
        if not self.state.checkpoint_every:
            return []
        try:
            job, *said = Path(f"{self.state.path}.steps").read_text().split()
        except (FileNotFoundError, ValueError):
            return []
        return [int(step) for step in said] if job == str(self.job) else []

    def at(self, step: int) -> Snapshot:
        """Return this rank's own state of a step: a copy, or from a checkpoint."""
        if step in self.mine:
            return self.mine[step]
        found = Snapshot.read(f"{self.state.path}.{step}")
        found.check("the checkpoint")
        return found

    def to_give(self, rank: int, step: int) -> Snapshot:
        """Return what a rank that comes gets: its state of a step, or a replica's."""
        return self.held.get((rank, step)) or self.mine[step]

    def told(self) -> dict[str, Any]:
        """Return what the others need to know to choose."""
        if self._num_ranks != self.state.num_ranks:
            self.forget()  # they are not numbered as before
        held = [list(key) for key in self.held]
        return {"own": [*self.mine], "held": held, "files": self.files()}

    def forget(self) -> None:
        """Keep nothing: this process is no rank any more, or its number another's."""
        self.mine, self.held, self.is_wanted = {}, {}, True


def keepers_of(
    rank: int, hosts: Sequence[int], num_ranks: int, copies: int
) -> list[int]:
    """Return who keeps copies of a rank: those that follow it, of other hosts first."""
    others = [(rank + d) % num_ranks for d in range(1, num_ranks)]
    if hosts:
        others.sort(key=lambda q: hosts[q] == hosts[rank])
    return others[:copies]


@dataclass(frozen=True, slots=True)
class Restoring:
    """From where those who came take their states."""

    step: int | None
    """To which all go back; None: to none, for who is left has all parts."""
    sources: dict[int, int]
    """By who comes: a rank, or `LEAVER`, or `FILE`."""


def choose(gives: Sequence[Mapping[str, Any]]) -> Restoring:
    """Return from where states come, by what all ranks say: the same on all.

    From who has left the place, or a replica; where a part has neither, from the newest
    copies that all have, at neighbours; and only then from the newest checkpoints.
    """
    comers = [r for r, one in enumerate(gives) if one["comes"]]
    whole = [r for r, one in enumerate(gives) if not one["comes"]]
    left = [one["leaver"] for one in gives if one.get("leaver") is not None]
    newest = max((gives[r]["step"] for r in whole), default=max(left, default=-1))
    now = {}
    for r in comers:
        alike = [q for q in whole if gives[q]["part"] == gives[r]["part"]]
        if gives[r].get("leaver") == newest:
            now[r] = LEAVER
        elif alike:
            now[r] = alike[0]
    if len(now) == len(comers):
        return Restoring(None, now)
    known = {s for one in gives for s in (*one.get("own", ()), *one.get("files", ()))}
    for with_files in (False, True):
        for step in sorted(known, reverse=True):
            found = _at(step, gives, comers, whole, with_files=with_files)
            if found is not None:
                return Restoring(step, found)
    rank = next(r for r in comers if r not in now)
    raise MembershipError(
        f"nobody is left who has the part of rank {rank} ({gives[rank]['part']}), or a "
        "copy of it: want replicas of each part (HSDP), State(copies=1) or "
        "State(checkpoint_every=...), or begin anew from a checkpoint"
    )


def _at(
    step: int,
    gives: Sequence[Mapping[str, Any]],
    comers: Sequence[int],
    whole: Sequence[int],
    *,
    with_files: bool,
) -> dict[int, int] | None:
    """Return who gives each its state of a step; None: some part of it is nowhere."""
    own = {r: {*one.get("own", ())} for r, one in enumerate(gives)}
    files = {r: {*one.get("files", ())} for r, one in enumerate(gives)}
    if any(step not in own[q] | (files[q] if with_files else set()) for q in whole):
        return None
    found = {}
    for r in comers:
        alike = [q for q in whole if gives[q]["part"] == gives[r]["part"]]
        replicas = [q for q in alike if step in own[q]]
        keepers = [q for q in whole if [r, step] in gives[q].get("held", [])]
        if replicas or keepers:
            found[r] = (replicas or keepers)[0]
        elif with_files and step in files[r]:
            found[r] = FILE
        else:
            return None
    return found
