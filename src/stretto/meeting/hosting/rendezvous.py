"""The hub's protocol: events in, actions out; who came, who is gone, who is told.

    on(event, now) -> actions

Ranks come (`Hello`) until all are there (`Welcome`) or the deadline names the
absent. Then groups exchange small parts, and whatever breaks is told to everybody
whom it concerns, late comers included. Times are seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from stretto.meeting.faults import (
    Fault,
    left_fault,
    lost_fault,
    name_ranks,
    several_hosts,
)
from stretto.meeting.groups import is_sound
from stretto.meeting.hosting.events import (
    Action,
    Closed,
    Died,
    Drop,
    Event,
    GiveUp,
    Heard,
    NoRoom,
    Send,
    Tick,
    TurnedAway,
)
from stretto.meeting.hosting.gathering import Gathering
from stretto.meeting.messages import (
    Departed,
    Hello,
    Leave,
    Lost,
    Message,
    Offer,
    Report,
    Verdict,
    Welcome,
)
from stretto.meeting.process import is_same_host, is_same_kernel
from stretto.meeting.wire import Descriptor

_MOST_TURNED_AWAY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    link: int
    hello: Hello


class Rendezvous:
    """The state of the hub. It never waits and never fails."""

    def __init__(
        self,
        num_ranks: int,
        *,
        deadline: float,
        timeout_s: float,
        generation: int,
        host_rank: int = -1,
        joins_hosts: bool = False,
        hint: str = "",
    ) -> None:
        self.num_ranks = num_ranks
        self._joins_hosts, self._hint = joins_hosts, hint
        self.generation = generation
        self._deadline = deadline
        self._timeout_s = timeout_s
        self.host_rank = host_rank
        self._present: dict[int, _Present] = {}
        self._pidfds: dict[int, tuple[Descriptor, ...]] = {}
        self._rank_of: dict[int, int] = {}
        self._lost: dict[int, str] = {}
        self._departed: set[int] = set()
        self._over: Fault | None = None
        self._complete = False
        self._turned_away: dict[str, str] = {}
        self._no_room = ""
        """Why nobody can be let in, since the last that was."""
        self._gatherings: dict[str, Gathering] = {}
        self._broken: dict[str, Fault] = {}

    def rank_of(self, link: int) -> int | None:
        """Return the rank that speaks on a link, once it has said so."""
        return self._rank_of.get(link)

    @property
    def fault(self) -> Fault | None:
        """What ended the meeting of everybody, if something did."""
        return self._over

    @property
    def is_settled(self) -> bool:
        """Whether all have come, or never will: nobody is let in any more."""
        return self._complete or self._over is not None

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return self.is_settled and not self._rank_of

    @property
    def next_deadline(self) -> float | None:
        """When the next `Tick` is due."""
        due = [g.deadline for g in self._gatherings.values()]
        if not self.is_settled:
            due.append(self._deadline)
        return min(due, default=None)

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event; return what to do about it, in order."""
        match event:
            case Heard(link=link, message=Hello() as hello, descriptors=held):
                return self._arrive(link, hello, held, now)
            case Heard(link=link) if link not in self._rank_of:
                return [Drop(link=link)]
            case Heard(link=link, message=message, descriptors=held):
                return self._hear(self._rank_of[link], message, held, now)
            case Closed(link=link, why=why):
                rank = self._rank_of.get(link, -1)
                actions = [] if rank < 0 else self._lose(rank, why)
                self._rank_of.pop(link, None)
                return actions
            case Died(rank=rank, how=how):
                return self._lose(rank, how)
            case GiveUp(fault=fault):
                return [] if self.is_settled else self._end(fault)
            case TurnedAway(who=who, why=why):
                self._turn_away(who, why)
                return []
            case NoRoom(why=why):
                self._no_room = why
                return []
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    # -- coming ---------------------------------------------------------------

    def _arrive(
        self, link: int, hello: Hello, held: tuple[Descriptor, ...], now: float
    ) -> list[Action]:
        if self._complete:  # it is for the next generation, which is served elsewhere
            return [Drop(link=link)]
        refusal = self._refusal(hello)
        if refusal is not None:
            if 0 <= hello.rank < self.num_ranks and hello.rank not in self._present:
                self._turn_away(f"rank {hello.rank}", refusal.text)
            return [self._verdict(link, refusal), Drop(link=link)]
        if now + hello.start_s < self._deadline:
            self._deadline, self._timeout_s = now + hello.start_s, hello.within_s
        self._no_room = ""
        self._rank_of[link] = hello.rank
        self._present[hello.rank] = _Present(link=link, hello=hello)
        self._pidfds[hello.rank] = held[:1]
        hosts = {p.hello.host for p in self._present.values()}
        alike = all(is_same_kernel(host, hello.host) for host in hosts)
        if not (alike or self._joins_hosts):
            return self._end(several_hosts(hosts))
        if len(self._present) < self.num_ranks:
            return []
        self._complete = True
        order = [self._present[rank] for rank in range(self.num_ranks)]
        pidfds = tuple(d for r in range(self.num_ranks) for d in self._pidfds[r])
        watched = [r for r in range(self.num_ranks) if self._pidfds[r]]
        self._pidfds.clear()
        places, names = self._hosts(order)
        home = order[max(0, self.host_rank)].hello.host
        near = [p for p in order if not places or is_same_host(p.hello.host, home)]
        complete = len(pidfds) == len(near)
        welcome = Welcome(
            generation=self.generation,
            pids=tuple(p.hello.pid for p in order),
            host_rank=self.host_rank,
            hosts=places,
            names=names,
            watched=tuple(watched) if complete else (),
        )
        held = pidfds if complete else ()
        return [Send(link=p.link, message=welcome, descriptors=held) for p in order]

    def _hosts(self, order: list[_Present]) -> tuple[tuple[int, ...], list[str]]:
        """Return the host of each rank, and their names; () where it is one."""
        tails: dict[str, int] = {}
        names: list[str] = []
        found = []
        for present in order if self._joins_hosts else ():
            name, _, tail = present.hello.host.rpartition("/")
            if tail not in tails:
                names.append(name or tail)
            found.append(tails.setdefault(tail, len(tails)))
        return (tuple(found), names) if len(tails) > 1 else ((), names[:1])

    def _refusal(self, hello: Hello) -> Fault | None:
        refuse = partial(Fault, error="RendezvousError")
        who = f"rank {hello.rank} (pid {hello.pid})"
        if self._over is not None:
            text = f"{who} comes too late: {self._over.text}"
            return Fault(error=self._over.error, text=text, blamed=self._over.blamed)
        if hello.num_ranks != self.num_ranks:
            return refuse(
                text=f"{who} wants {hello.num_ranks} ranks, the others "
                f"{self.num_ranks}; start all ranks with the same number"
            )
        if not 0 <= hello.rank < self.num_ranks:
            return refuse(text=f"{who} is not one of 0 to {self.num_ranks - 1}")
        versions = {p.hello.version for p in self._present.values()}
        if versions - {hello.version}:
            return refuse(
                text=f"{who} runs stretto {hello.version}, the others "
                f"{', '.join(sorted(versions))}; install one version for all"
            )
        if hello.rank in self._lost:
            return refuse(text=f"{who} comes too late: {self._lost[hello.rank]}")
        if hello.rank in self._present:
            pid = self._present[hello.rank].hello.pid
            return refuse(
                text=f"{who} comes, but rank {hello.rank} is already here (pid {pid}); "
                "give each job an address of its own"
            )
        return None

    def _turn_away(self, who: str, why: str) -> None:
        if who in self._turned_away or len(self._turned_away) < _MOST_TURNED_AWAY:
            self._turned_away[who] = why

    # -- meeting --------------------------------------------------------------

    def _hear(
        self, rank: int, message: Message, held: tuple[Descriptor, ...], now: float
    ) -> list[Action]:
        if rank in self._lost or rank in self._departed:
            return []  # its last words have been heard
        match message:
            case Leave(failure=""):
                return self._depart(rank)
            case Leave(failure=failure):
                return self._lose(rank, failure)
            case Offer() | Report() if not self._may_speak(rank, message):
                actions = self._lose(rank, "sent a message that makes no sense")
                return [*actions, Drop(link=self._present[rank].link)]
            case Offer() as offer:
                return self._gather(rank, offer, held, now)
            case Report(group=group, members=members):
                fault = Fault(
                    error=message.error, text=message.text, blamed=message.blamed
                )
                return self._break(group, members, fault)
            case _:
                return [Drop(link=self._present[rank].link)]

    def _may_speak(self, rank: int, message: Offer | Report) -> bool:
        parties = [message.members]
        if isinstance(message, Offer):
            parties.append(message.fate_members)
        sound = all(is_sound(p, self.num_ranks) and rank in p for p in parties)
        return sound and self._complete

    def _gather(
        self, rank: int, offer: Offer, held: tuple[Descriptor, ...], now: float
    ) -> list[Action]:
        link = self._present[rank].link
        if offer.fate in self._broken:
            return [self._verdict(link, self._broken[offer.fate], offer.fate)]
        if lost := [r for r in offer.members if r in self._lost]:
            fault = lost_fault(lost[0], self._lost[lost[0]])
            return [self._verdict(link, fault, offer.fate)]
        gathering = self._gatherings.setdefault(
            offer.group,
            Gathering(
                group=offer.group,
                members=offer.members,
                fate=offer.fate,
                fate_members=offer.fate_members,
                deadline=now + offer.timeout_s,
            ),
        )
        fault_or_none = gathering.add(rank, offer, held, now)
        if fault_or_none is not None:
            members = (*gathering.fate_members, *offer.fate_members)
            return self._break(gathering.fate, members, fault_or_none)
        if gone := self._departed & set(gathering.missing):
            fault = left_fault(min(gone), f"{gathering.tag} of {offer.group}")
            return self._break(gathering.fate, gathering.fate_members, fault)
        if gathering.missing:
            return []
        del self._gatherings[offer.group]
        result, descriptors = gathering.result()
        return [
            Send(link=self._present[r].link, message=result, descriptors=descriptors)
            for r in gathering.members
        ]

    # -- going ----------------------------------------------------------------

    def _depart(self, rank: int) -> list[Action]:
        if rank in self._lost or rank in self._departed:
            return []
        if not self._complete:
            return self._lose(rank, "left before all had come")
        self._departed.add(rank)
        told = [Send(link=li, message=Departed(rank=rank)) for li in self._links()]
        actions: list[Action] = list(told)
        for name, gathering in list(self._gatherings.items()):
            if rank in gathering.missing:
                fault = left_fault(rank, f"{gathering.tag} of {name}")
                actions += self._break(gathering.fate, gathering.fate_members, fault)
        return [*actions, Drop(link=self._present[rank].link)]

    def _lose(self, rank: int, how: str) -> list[Action]:
        if rank in self._lost or rank in self._departed:
            return []
        self._lost[rank] = how
        if self._over is not None:
            return []
        if not self._complete:
            return self._end(lost_fault(rank, how))
        for name, gathering in list(self._gatherings.items()):
            if rank in gathering.members:
                del self._gatherings[name]
        lost = Lost(rank=rank, how=how)
        return [Send(link=link, message=lost) for link in self._links()]

    def _tick(self, now: float) -> list[Action]:
        if not self.is_settled and now >= self._deadline:
            missing = sorted(set(range(self.num_ranks)) - self._present.keys())
            text = (
                f"{name_ranks(missing)} of {self.num_ranks} did not come within "
                f"{self._timeout_s:g} s ({name_ranks(self._present)} did); read the "
                f"logs of the missing, or allow more time with deadline_s{self._hint}"
            )
            away = self._turned_away.items()
            text += "".join(f"; {who} was not let in: {why}" for who, why in away)
            blamed = tuple(missing)
            if self._no_room:
                host = self.host_rank
                text += f"; rank {host}, the host, could let nobody in: {self._no_room}"
                blamed = (host,) if host >= 0 else ()
            return self._end(Fault(error="CollectiveTimeout", text=text, blamed=blamed))
        actions: list[Action] = []
        for gathering in list(self._gatherings.values()):
            if now >= gathering.deadline:
                told = gathering.timeout()
                actions += self._break(gathering.fate, gathering.fate_members, told)
        return actions

    def _end(self, fault: Fault) -> list[Action]:
        """Break the meeting before it was complete; tell those who came."""
        self._over = fault
        self._pidfds.clear()
        links = list(self._links())
        told = [self._verdict(link, fault) for link in links]
        return [*told, *(Drop(link=link) for link in links)]

    def _break(self, group: str, members: Iterable[int], fault: Fault) -> list[Action]:
        """End one group and its parts; the first fault is what everybody hears."""
        fault = self._broken.setdefault(group, fault)
        for name, gathering in list(self._gatherings.items()):
            if group in (name, gathering.fate):
                del self._gatherings[name]
        return [self._verdict(link, fault, group) for link in self._links(members)]

    def _verdict(self, link: int, fault: Fault, group: str = "") -> Send:
        message = Verdict(
            group=group, error=fault.error, text=fault.text, blamed=fault.blamed
        )
        return Send(link=link, message=message)

    def _links(self, members: Iterable[int] | None = None) -> list[int]:
        """Return the links of those members that are still here."""
        gone = self._lost.keys() | self._departed
        chosen = self._present.keys() if members is None else set(members)
        here = sorted(chosen & self._present.keys() - gone)
        return [self._present[rank].link for rank in here]
