"""The hub's protocol: who is there (`World`), and what groups of them exchange; no I/O.

    on(event, now) -> actions

Groups exchange small parts, and whatever breaks one is told to everybody whom it
concerns, late comers included. A group's ranks are those of the generation that it was
made in. Times are seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stretto.fabric.events import (
    Action,
    Descriptor,
    Drop,
    Event,
    Heard,
    Send,
)
from stretto.fabric.faults import Fault, left_fault, left_out_fault, lost_fault
from stretto.fabric.generations import said_fault
from stretto.fabric.meeting.groups import is_sound
from stretto.fabric.meeting.hosting.gathering import Gathering
from stretto.fabric.meeting.messages import Offer, Report
from stretto.fabric.messages import Departed, Verdict
from stretto.fabric.world import World


class Rendezvous:
    """The state of the hub. It never waits and never fails."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.generation, self.host_rank = world.generation, world.host_rank
        self._gatherings: dict[str, Gathering] = {}
        self._broken: dict[str, Fault] = {}
        self.rank_of = self.world.rank_of
        self.settle: Callable[[str, Fault], Fault] = lambda group, fault: fault
        """Returns the first verdict on a group, where others may have found one."""

    @property
    def fault(self) -> Fault | None:
        """What ended the meeting of everybody, if something did."""
        return self.world.over

    @property
    def is_settled(self) -> bool:
        """Whether nobody is let in any more."""
        return self.world.is_settled

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return self.world.is_finished

    @property
    def next_deadline(self) -> float | None:
        """When the next `Tick` is due."""
        due = [g.deadline for g in self._gatherings.values()]
        if (first := self.world.next_deadline) is not None:
            due.append(first)
        return min(due, default=None)

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event; return what to do about it, in order."""
        match event:
            case Heard(link=link, message=Offer() | Report() as said, descriptors=held):
                identity = self.world.identity_of(link)
                if identity is None:
                    return [Drop(link=link)]
                return self._hear(identity, link, said, held, now)
            case _:
                gone, generation = len(self.world.gone), self.world.generation
                actions = self.world.on(event, now)
                for identity in list(self.world.gone)[gone:]:
                    actions += self._without(identity)
                if self.world.generation != generation:
                    self._renew()
                return actions + self._overdue(now)

    def _hear(
        self,
        identity: str,
        link: int,
        message: Offer | Report,
        held: tuple[Descriptor, ...],
        now: float,
    ) -> list[Action]:
        if identity in self.world.gone:
            return []  # its last words have been heard
        roster = self.world.generations.rosters.get(message.generation, ())
        parties = [message.members]
        if isinstance(message, Offer):
            parties.append(message.fate_members)
        rank = roster.index(identity) if identity in roster else -1
        if not all(is_sound(p, len(roster)) and rank in p for p in parties):
            how = "sent a message that makes no sense"
            return [*self.world.lose(identity, how), Drop(link=link)]
        if isinstance(message, Offer):
            return self._gather(rank, link, message, held, now)
        fault = Fault(error=message.error, text=message.text, blamed=message.blamed)
        return self._break(message.group, message.generation, message.members, fault)

    # -- meeting --------------------------------------------------------------

    def _gather(
        self,
        rank: int,
        link: int,
        offer: Offer,
        held: tuple[Descriptor, ...],
        now: float,
    ) -> list[Action]:
        if offer.fate in self._broken:
            return [self._verdict(link, self._broken[offer.fate], offer.fate)]
        gone = self._gone(offer.members, offer.generation)
        lost = [] if offer.survives else [r for r, how in gone.items() if how]
        if lost:
            return [self._verdict(link, lost_fault(lost[0], gone[lost[0]]), offer.fate)]
        left_out = self.world.generations.left_out
        out = left_out(offer.fate_members, offer.generation)
        if out and not offer.survives:
            return [self._verdict(link, left_out_fault(out), offer.fate)]
        gathering = self._gatherings.setdefault(
            offer.group,
            Gathering(
                group=offer.group,
                generation=offer.generation,
                members=offer.members,
                fate=offer.fate,
                fate_members=offer.fate_members,
                deadline=now + offer.timeout_s,
                survives=offer.survives,
            ),
        )
        fault_or_none = gathering.add(rank, offer, held, now)
        if fault_or_none is not None:
            return self._fail(gathering, fault_or_none, offer.fate_members)
        absent = gone.keys() & set(gathering.missing)
        if absent and not gathering.survives:
            text = f"{gathering.tag} of {offer.group}"
            return self._fail(gathering, self._left(min(absent), gathering, text))
        return self._finish(gathering)

    def _gone(self, members: Iterable[int], generation: int) -> dict[int, str]:
        """Return which members of a generation are gone, and how."""
        members = tuple(members)
        identities = self.world.generations.identities(members, generation)
        gone = self.world.gone
        who = zip(members, identities, strict=True)
        return {rank: gone[i] for rank, i in who if i in gone}

    def _left(self, rank: int, gathering: Gathering, text: str) -> Fault:
        """Return the fault of a member that left before it came to an exchange."""
        (who,) = self.world.generations.identities([rank], gathering.generation)
        said = self.world.farewells.get(who)
        after = said_fault(said) if isinstance(said, Departed) and said.error else None
        return left_fault(rank, text, after=after)

    def _finish(self, gathering: Gathering) -> list[Action]:
        """End an exchange once all have come that it waits for."""
        waits = set(gathering.missing)
        if gathering.survives:
            waits -= self._gone(gathering.members, gathering.generation).keys()
        if waits:
            return []
        del self._gatherings[gathering.group]
        result, descriptors = gathering.result()
        return [
            Send(link=to, message=result, descriptors=descriptors)
            for to in self._links(gathering.members, gathering.generation)
        ]

    # -- going ----------------------------------------------------------------

    def _without(self, identity: str) -> list[Action]:
        """End what waits for a member that is gone; of a loss all have been told."""
        actions: list[Action] = []
        how = self.world.gone[identity]
        for name, gathering in list(self._gatherings.items()):
            order = self.world.generations.rosters[gathering.generation]
            rank = order.index(identity) if identity in order else -1
            if gathering.survives:
                actions += self._finish(gathering) if rank in gathering.missing else []
            elif how and rank in gathering.members:
                self._gatherings.pop(name, None)
            elif not how and rank in gathering.missing:
                text = f"{gathering.tag} of {name}"
                actions += self._fail(gathering, self._left(rank, gathering, text))
        return actions

    def _renew(self) -> None:
        """Forget what members wait for in groups that a new generation has ended."""
        left_out = self.world.generations.left_out
        for name, gathering in list(self._gatherings.items()):
            out = left_out(gathering.fate_members, gathering.generation)
            if out and not gathering.survives:
                del self._gatherings[name]

    def _overdue(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for gathering in list(self._gatherings.values()):
            if now >= gathering.deadline:
                actions += self._fail(gathering, gathering.timeout())
        return actions

    def _fail(
        self, gathering: Gathering, fault: Fault, others: tuple[int, ...] = ()
    ) -> list[Action]:
        """End what breaks with an exchange."""
        members = (*gathering.fate_members, *others)
        return self._break(gathering.fate, gathering.generation, members, fault)

    def _break(
        self, group: str, generation: int, members: Iterable[int], fault: Fault
    ) -> list[Action]:
        """End one group and its parts; the first fault is what everybody hears."""
        if group not in self._broken:
            self._broken[group] = self.settle(group, fault)
        fault = self._broken[group]
        for name, gathering in list(self._gatherings.items()):
            if group in (name, gathering.fate):
                del self._gatherings[name]
        return [
            self._verdict(link, fault, group)
            for link in self._links(members, generation)
        ]

    def _verdict(self, link: int, fault: Fault, group: str) -> Send:
        message = Verdict(
            group=group, error=fault.error, text=fault.text, blamed=fault.blamed
        )
        return Send(link=link, message=message)

    def _links(self, members: Iterable[int], generation: int) -> list[int]:
        """Return the links of those members that are still here."""
        chosen = sorted(set(members))
        return self.world.links(self.world.generations.identities(chosen, generation))
