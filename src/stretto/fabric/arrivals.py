"""Who may come to a world: until all ranks have, and those who come later; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stretto.fabric.faults import Fault, name_ranks
from stretto.fabric.hosts import is_same_host
from stretto.fabric.messages import RANK, STANDBY, WATCHER, Hello, Welcome

_MOST_TURNED_AWAY = 8


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """Which ranks have come, by when the others must, and who was turned away."""

    num_ranks: int
    deadline: float
    timeout_s: float
    host_rank: int
    stays_open: bool
    hint: str
    admit: Callable[[Hello], str] = lambda hello: ""
    """Returns in words why a member is not let in, or nothing."""
    came_as: dict[int, str] = field(default_factory=dict)
    """The identities of those that came to be ranks."""
    turned_away: dict[str, str] = field(default_factory=dict)
    no_room: str = ""
    """Why nobody can be let in, since the last that was."""

    @property
    def are_complete(self) -> bool:
        """Whether all ranks have come."""
        return len(self.came_as) == self.num_ranks

    def take(self, hello: Hello, now: float) -> None:
        """Take note of who is let in; the shortest deadline is everybody's."""
        self.no_room = ""
        if hello.wish == RANK:
            self.came_as[hello.rank] = hello.identity
            if now + hello.start_s < self.deadline:
                self.deadline, self.timeout_s = now + hello.start_s, hello.within_s

    def refusal(
        self, hello: Hello, others: Mapping[str, Hello], over: Fault | None
    ) -> Fault | None:
        """Return why a member is not let in, if so; a rank's absence shall name it."""
        named = hello.wish if hello.rank < 0 else f"rank {hello.rank}"
        fault = self._refusal(f"{named} (pid {hello.pid})", hello, others, over)
        if fault is not None and self._is_missing(hello.rank):
            self.turn_away(f"rank {hello.rank}", fault.text)
        return fault

    def _is_missing(self, rank: int) -> bool:
        return 0 <= rank < self.num_ranks and rank not in self.came_as

    def _refusal(
        self, who: str, hello: Hello, others: Mapping[str, Hello], over: Fault | None
    ) -> Fault | None:
        refuse = partial(Fault, error="RendezvousError")
        is_rank = hello.wish == RANK
        if over is not None:
            text = f"{who} comes too late: {over.text}"
            return Fault(error=over.error, text=text, blamed=over.blamed)
        if hello.identity in others or not hello.identity:
            return refuse(text=f"{who} has another's identity, or none")
        if not is_rank and not (self.stays_open and hello.wish in (STANDBY, WATCHER)):
            return refuse(
                text=f"{who} comes, but this job takes nobody beside its ranks"
            )
        if why := self.admit(hello):
            return refuse(text=f"{who} is not let in: {why}")
        if is_rank and hello.num_ranks != self.num_ranks:
            return refuse(
                text=f"{who} wants {hello.num_ranks} ranks, the others "
                f"{self.num_ranks}; start all ranks with the same number"
            )
        if is_rank and not 0 <= hello.rank < self.num_ranks:
            return refuse(text=f"{who} is not one of 0 to {self.num_ranks - 1}")
        versions = {other.version for other in others.values()}
        if versions - {hello.version}:
            return refuse(
                text=f"{who} runs stretto {hello.version}, the others "
                f"{', '.join(sorted(versions))}; install one version for all"
            )
        if hello.rank in self.came_as:
            pid = others[self.came_as[hello.rank]].pid
            return refuse(
                text=f"{who} comes, but rank {hello.rank} is already here (pid {pid}); "
                "give each job an address of its own"
            )
        return None

    def turn_away(self, who: str, why: str) -> None:
        """Remember somebody that was not let in, for the verdict on the absent."""
        if who in self.turned_away or len(self.turned_away) < _MOST_TURNED_AWAY:
            self.turned_away[who] = why

    def timeout(self) -> Fault:
        """Return the fault that names the absent, and why they may be."""
        missing = sorted(set(range(self.num_ranks)) - self.came_as.keys())
        text = (
            f"{name_ranks(missing)} of {self.num_ranks} did not come within "
            f"{self.timeout_s:g} s ({name_ranks(self.came_as)} did); read the "
            f"logs of the missing, or allow more time with deadline_s{self.hint}"
        )
        away = self.turned_away.items()
        text += "".join(f"; {who} was not let in: {why}" for who, why in away)
        blamed = tuple(missing)
        if self.no_room:
            host = self.host_rank
            text += f"; rank {host}, the host, could let nobody in: {self.no_room}"
            blamed = (host,) if host >= 0 else ()
        return Fault(error="CollectiveTimeout", text=text, blamed=blamed)


def places(hellos: Sequence[Hello]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the host of each, and their names; () where it is one."""
    tails: dict[str, int] = {}
    names: list[str] = []
    found = []
    for hello in hellos:
        name, _, tail = hello.host.rpartition("/")
        if tail not in tails:
            names.append(name or tail)
        found.append(tails.setdefault(tail, len(tails)))
    return (tuple(found), tuple(names)) if len(tails) > 1 else ((), tuple(names[:1]))


def name_members(
    identities: Iterable[str], order: Sequence[str], members: Mapping[str, Hello]
) -> str:
    """Return the names of members: their ranks in a generation, else who they are."""
    who = tuple(identities)
    ranks = [order.index(i) for i in who if i in order]
    named = [name_ranks(ranks)] if ranks else []
    for identity in who:
        if identity not in order and identity in members:
            hello = members[identity]
            named.append(f"{hello.wish} {identity[:8]} (pid {hello.pid})")
        elif identity not in order:
            named.append(f"a stranger {identity[:8]!r}")
    return " and ".join(named[:4])


def welcome_to(
    order: Sequence[str],
    members: Mapping[str, Hello],
    pidfds: Mapping[str, tuple[Any, ...]],
    *,
    host: str,
    joins_hosts: bool,
    **said: Any,
) -> tuple[Welcome, tuple[Any, ...]]:
    """Return what tells of a generation, with what pidfds have come for it.

    `host` is the identity of the member that hosts the hub, or nothing.
    """
    hellos = [members[identity] for identity in order]
    where, names = places(hellos) if joins_hosts else ((), ())
    home = members[host or order[0]].host
    near = [h for h in hellos if not where or is_same_host(h.host, home)]
    held = tuple(d for i in order for d in pidfds.get(i, ()))
    watched = [r for r, i in enumerate(order) if pidfds.get(i)]
    whole = len(held) == len(near)
    message = Welcome(
        identities=tuple(order),
        pids=tuple(h.pid for h in hellos),
        home=host,
        hosts=where,
        names=names,
        watched=tuple(watched) if whole else (),
        **said,
    )
    return message, held if whole else ()
