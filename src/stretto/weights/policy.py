"""A replica's rank: tensors that are one version, whole, for each step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from stretto.errors import (
    CallError,
    EngineLost,
    StrettoError,
    TransferTimeout,
)
from stretto.fabric.patience import check_deadline, check_timeout
from stretto.transfer import Engine
from stretto.weights.buffers import Buffers
from stretto.weights.early import Following
from stretto.weights.leading import Leads
from stretto.weights.member import Mate, Who, fault_of
from stretto.weights.names import Names
from stretto.weights.pulling import Origin, Puller, wanted_of
from stretto.weights.switch import (
    Action,
    Failed,
    Fetch,
    Fetched,
    NextStep,
    Pull,
    RankCopies,
    Reading,
)
from stretto.weights.tensors import owned, require_writable
from stretto.weights.version import Version

__all__ = ["Policy"]

_AHEAD = 16
"""Steps that rank 0 may begin before another rank has ended the first of them."""


class Policy(Mate):
    """See `subscribe`."""

    def __init__(
        self, engine: Engine, name: str, into: Any, *, names: Names,
        how: Mapping[str, Any], layouts: Mapping[str, Any] | None, replica: str,
        rank: int, num_ranks: int, copies: int, memory: int | None,
        start: Version | None, patience: float, deadline: float,
    ) -> None:  # fmt: skip
        super().__init__(
            engine, name, team=replica, rank=rank, of=num_ranks, patience=patience
        )
        if copies not in (1, 2):
            raise CallError(f"copies={copies!r}; want 1 or 2")
        check_deadline(deadline, f"weights {name!r}", "deadline")
        if start is not None and not isinstance(start, Version):
            raise CallError(f"start={start!r:.80}; want a stretto.weights.Version")
        own = owned(into, layouts)
        require_writable(own)
        self._deadline = deadline
        wanted = [wanted_of(one, names, how) for one in own]
        following = Following(self.changed, self.send)
        self.puller = Puller(engine, name, wanted, turn=rank, following=following)
        self._buffers = Buffers(
            self, own, into, count=copies, memory=memory, start=start
        )
        self._state = RankCopies(rank=rank, copies=(0, -1)[:copies])
        self._origins: dict[int, Origin] = {}
        self._versions: dict[int, Version | None] = {0: start}
        self._runs: deque[Reading] = deque()
        self._ended: dict[int, int] = {}
        """Of each other rank, the last step of which the leader knows that it ended."""
        self._current, self._live = start, 0
        self.fault = None
        self._broken: StrettoError | None = None
        self._lead = None if rank else Leads(self, is_single=copies == 1, start=start)
        said = {
            "fetch": self._fetch, "step": self._step_named, "current": self._now,
            "wrong": self._wrong,
        }  # fmt: skip
        self._words |= {w: partial(self._of_leader, do) for w, do in said.items()}
        self._words["far"] = following.hear
        if self._lead is not None:
            told = {
                "ready": self._lead.reported, "failed": self._lead.not_read,
                "ended": self._has_ended,
            }  # fmt: skip
            self._words |= {w: partial(self._of_rank, do) for w, do in told.items()}
            self._words["held"] = self._lead.held
        self.begin()

    # What users see.

    @property
    def version(self) -> Version | None:
        """Return the version that the next step reads, as far as this rank knows."""
        return self._current if self._lead is None else self._lead.current

    @property
    def lag(self) -> int | None:
        """Return how many versions newer one is to be had; None: that is not known."""
        with self.changed:
            version, lead = self.version, self._lead
            known = [who.offers for who in self.known.values()]
            ages = [
                version.behind(one)
                for one in (known if lead is None else [lead.newest()])
                if one and version and one.epoch == version.epoch
            ]
            return max(ages, default=None)

    @property
    def tensors(self) -> dict[str, Any]:
        """Return the tensors of the step that runs, or of the last one."""
        return self._buffers.given[self._live]

    @property
    def both(self) -> tuple[dict[str, Any], ...]:
        """Return the tensors of each copy: a CUDA graph is captured for each of them.

        The step that runs reads those at `live`.
        """
        return tuple(self._buffers.given)

    @property
    def unread(self) -> tuple[str, ...]:
        """Return tensors of the source of which nothing comes here: forgotten, say."""
        return self.puller.unread

    @property
    def live(self) -> int:
        """Return which copy of `both` the step that runs reads, or the last one."""
        return self._live

    def adopt(self, epoch: str) -> None:
        """Follow a trainer that began anew: its versions count as newer than ours."""
        if self._lead is None:
            raise CallError("adopt: of a replica its rank 0 decides; ask there")
        with self.changed:
            self._lead.adopt(epoch)

    def wait(
        self, version: Version | int | None = None, timeout: float | None = None
    ) -> Version:
        """Wait until steps read a version, or a later one; any, when none is named.

        What does not fit is raised at once, as is a foreign epoch.
        """
        check_timeout(timeout, f"weights {self.name!r}")
        with self.changed:
            found = self.changed.wait_for(lambda: self._reached(version), timeout)
            if found is None:
                raise self._late(version, timeout)
            return found

    def _reached(self, version: Version | int | None) -> Version | None:
        """Return what steps read, if that is enough; raise what keeps it away."""
        self._check()
        found = self.version
        if found is not None and found.reaches(version):
            return found
        if isinstance(self.fault, CallError):
            raise self.fault
        if self._lead is not None:
            self._lead.check_foreign()
        return None

    def _late(self, version: Any, timeout: float | None) -> TransferTimeout:
        what = "a version" if version is None else f"version {version}"
        lacking = sorted({*range(self.of)} - {self.rank, *self.mates()})
        about = f"; ranks {lacking} of {self.team!r} have not come" if lacking else ""
        if all(who.team for who in self.known.values()):
            about += "; no source has come: connect its engine"
        if self.fault is not None:
            about += f"; {self.fault}"
        return TransferTimeout(
            f"weights {self.name!r}: {what} not within {timeout} s{about}"
        )

    @contextmanager
    def step(self, timeout: float | None = None) -> Iterator[Version]:
        """Read one version for a step: the same on all ranks of the replica.

        Rank 0 begins a step, and names its version to the others, which wait for that
        here, each for as many steps as rank 0 begins.
        """
        check_timeout(timeout, f"weights {self.name!r}")
        with self.changed:
            run = self.changed.wait_for(self._next_run, timeout)
        if run is None:
            raise TransferTimeout(
                f"weights {self.name!r}: rank {self.rank} of {self.team!r}: no step "
                f"within {timeout} s"
            )
        self._turn_to(run.copy)
        version = self._versions[run.version]
        assert version is not None, "a step names a version"
        try:
            yield version
        finally:
            self._buffers.memory.ended(run.copy)
            with self.changed:
                self._state, actions = self._state.ended(run.number)
                self._act(actions)
                if self._lead is None and run.number % (_AHEAD // 2) == 0:
                    self._tell_leader("ended", number=run.number)

    def _next_run(self) -> Reading | None:
        """Return the step that begins now, if one may; as rank 0 name it first."""
        if not self._runs or self.is_closed:
            self._check()
            if self._lead is None or not self._may_begin(self._lead):
                return None
            step = self._lead.step()
            self.tell_ranks("step", number=step.number, v=step.version)
        return self._runs.popleft()  # it was named, whoever is gone since

    def _may_begin(self, lead: Leads) -> bool:
        """Return whether a step may begin now, or what keeps it is to be said."""
        slowest = min((self._ended.get(r, 0) for r in range(1, self.of)), default=0)
        is_near = self.of == 1 or lead.state.steps - slowest < _AHEAD
        return lead.state.has_stopped or (lead.state.may_step and is_near)

    def _turn_to(self, copy: int) -> None:
        """Let a module's parameters be those of a copy."""
        if copy != self._live:
            self._live = copy
            self._buffers.turn_to(copy)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self.is_closed:
            raise CallError(f"weights {self.name!r}: this policy is closed")

    # The replica.

    def _tell_leader(self, word: str, **body: Any) -> None:
        if self._lead is not None:
            self._words[word](None, body)
            return
        leader = self.mates().get(0)
        if leader is not None:
            self.send(leader.peer, word, **body)

    def _of_leader(self, do: Callable[[Any], None], peer: Any, body: Any) -> None:
        """Do what this replica's leader says, and nobody else; None is this rank."""
        who = None if peer is None else self.known.get(peer.identity)
        if peer is not None and (who is None or (who.team, who.rank) != (self.team, 0)):
            raise ValueError("it leads no replica of ours")
        do(body)

    def _of_rank(self, do: Callable[[int, Any], None], peer: Any, body: Any) -> None:
        """Do what one of this replica's ranks says; None is this one."""
        who = None if peer is None else self.known[peer.identity]
        if who is not None and who.team != self.team:
            raise ValueError("it is of another replica")
        do(self.rank if who is None else who.rank, body)

    def joined(self, who: Who) -> None:
        """Look whether there is something new."""
        if self.has_twin(who):
            return
        if self._lead is not None:
            self._lead.forgive(who.team)
            self._lead.consider()

    def left(self, who: Who) -> None:
        """Be of no use without a rank of ours; go on without anybody else."""
        self.ask_twin(who)
        if who.team == self.team:
            self._broken = EngineLost(
                f"weights {self.name!r}: rank {who.rank} of replica {self.team!r} is "
                f"gone ({who.peer.lost or 'it closed'}); start all its ranks anew"
            )
        elif self._lead is not None:
            self._lead.left(who)

    # What the leader hears.

    def _has_ended(self, rank: int, body: Mapping[str, Any]) -> None:
        self._ended[rank] = int(body["number"])

    # What a rank hears of its leader.

    def _fetch(self, body: Mapping[str, Any]) -> None:
        fetch = Fetch(int(body["attempt"]), int(body["v"]), int(body["keep"]))
        self._origins = {fetch.attempt: Origin.of(body)}
        self._versions[fetch.version] = Version.parse(str(body["version"]))
        self._hear(fetch)

    def _wrong(self, body: Mapping[str, Any]) -> None:
        """Forget what has other sums than were pushed."""
        self._state, copy = self._state.forget(int(body["v"]))
        if copy >= 0:
            self._buffers.withdraw(copy)

    def _step_named(self, body: Mapping[str, Any]) -> None:
        self._hear(NextStep(int(body["number"]), int(body["v"])))

    def _hear(self, said: Fetch | NextStep) -> None:
        self._state, actions = self._state.hear(said)
        self._act(actions)

    def _now(self, body: Mapping[str, Any]) -> None:
        """Let others read what the replica has switched to."""
        number = int(body["v"])
        self.record("switch", body["version"], time.monotonic_ns(), 0)
        self._current = Version.parse(str(body["version"]))
        kept = set(self._state.copies) | {number}
        kept |= {v for _, v in self._state.reading}
        self._versions = {v: x for v, x in self._versions.items() if v in kept}
        self._buffers.offer(self._state.copies.index(number), self._current)
        self.tell_offer()

    # What is to be done.

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Pull():
                    origin = self._origins.get(action.attempt, Origin())
                    self.engine.loop.apart(partial(self._pull, action, origin))
                case Reading():
                    self._runs.append(action)
                case Fetched():
                    self._report(action.attempt)
                case Failed():
                    why, is_ours = str(self.fault), isinstance(self.fault, CallError)
                    self._tell_leader(
                        "failed", attempt=action.attempt, why=why, is_ours=is_ours
                    )

    def _report(self, attempt: int) -> None:
        """Tell the leader what has arrived."""
        copy = self._state.copies.index(max(self._state.copies))
        self._tell_leader("ready", attempt=attempt, **self._buffers.report(copy))

    def _pull(self, pull: Pull, origin: Origin) -> None:
        """Write a version into a copy, in a thread of its own."""
        begun, nbytes = time.monotonic_ns(), self._buffers.nbytes
        version = self._versions.get(pull.version)

        def read() -> None:
            nonlocal nbytes
            assert version is not None, "it was named with the fetch"
            nbytes = self._buffers.pull(pull.copy, origin, self._deadline, version)

        error = fault_of(read)
        self.record("pull", version, begun, nbytes, failed=bool(error))
        with self.changed:
            if error is not None:
                self.fault = error
            if self.is_over:
                return
            self._state, actions = self._state.pulled(pull.attempt, well=error is None)
            self._act(actions)
            self.changed.notify_all()

    def close(self) -> None:
        """Take all memory back: nothing is written there once this has returned."""
        self._buffers.stop()
        super().close()
