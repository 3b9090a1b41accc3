"""Who is there: the hub's side of a world, which puts all that happens in one order.

    on(event, now) -> actions

Members come (`Hello`) with an identity for life and a wish: to be rank r of n, to stand
by, or to watch. Generation one begins when all n ranks have come (`Welcome`), or the
deadline names the absent. Where the world stays open, a member may then propose other
ranks for the next generation: who shall be in it is asked (`Prepare`), and when all are
ready one message to everybody begins it. A failure, a loss or the deadline abandons the
proposal instead, with one verdict. Whatever becomes of a member is told to all others.

Times are seconds of any clock, links are any numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from stretto.fabric.arrivals import Arrivals, name_members, welcome_to
from stretto.fabric.events import (
    Action,
    Closed,
    Descriptor,
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
from stretto.fabric.faults import Fault, lost_fault, several_hosts
from stretto.fabric.generations import Change, Generations, abandoned, ended_by
from stretto.fabric.hosts import is_same_kernel
from stretto.fabric.messages import (
    RANK,
    STANDBY,
    WATCHER,
    Came,
    Departed,
    Errand,
    Hello,
    Leave,
    Lost,
    Message,
    Propose,
    Ready,
    Say,
    Welcome,
)


class World:
    """The members of a world and its generations. It never waits and never fails."""

    def __init__(
        self,
        num_ranks: int,
        *,
        deadline: float,
        timeout_s: float,
        generation: int,
        host_rank: int = -1,
        joins_hosts: bool = False,
        stays_open: bool = False,
        hint: str = "",
        admit: Callable[[Hello], str] = lambda hello: "",
        says: Mapping[str, Any] | None = None,
        on_ask: Callable[[Errand], None] = lambda asked: None,
    ) -> None:
        self.num_ranks, self.generation = num_ranks, generation
        """How many ranks the first generation has; and which generation it is."""
        self.host_rank = host_rank
        self.generations = Generations()
        self.gone: dict[str, str] = {}
        """How members were lost, first things first; nothing for who left in order."""
        self.farewells: dict[str, Lost | Departed] = {}
        """What was told of those."""
        self.on_ask = on_ask
        """Told what somebody asks of members."""
        self.over: Fault | None = None
        """What ended the world of everybody, if something did."""
        self._joins_hosts, self._stays_open = joins_hosts, stays_open
        self._arrivals = Arrivals(
            num_ranks=num_ranks,
            deadline=deadline,
            timeout_s=timeout_s,
            host_rank=host_rank,
            stays_open=stays_open,
            hint=hint,
            admit=admit,
        )
        self._members: dict[str, Hello] = {}
        self._link_of: dict[str, int] = {}
        self._identity_of: dict[int, str] = {}
        self._pidfds: dict[str, tuple[Descriptor, ...]] = {}
        self.facts = {"": dict(says or {})}
        """What members say of themselves; under no identity, what the host says."""
        self._change: Change | None = None
        self._attempts = 0

    def identity_of(self, link: int) -> str | None:
        """Return the member that speaks on a link, once it has said so."""
        return self._identity_of.get(link)

    def rank_of(self, link: int) -> int | None:
        """Return the rank that who speaks on a link came to be; -1 for none."""
        identity = self._identity_of.get(link)
        return None if identity is None else self._members[identity].rank

    def links(self, identities: Iterable[str] | None = None) -> list[int]:
        """Return the links of those that are still here: all, unless told whose."""
        chosen = self._members if identities is None else identities
        here = [i for i in chosen if i in self._members and i not in self.gone]
        return [self._link_of[i] for i in here]

    @property
    def pids(self) -> list[int]:
        """The processes of this generation's ranks."""
        return [self._members[identity].pid for identity in self._order]

    @property
    def is_complete(self) -> bool:
        """Whether the first generation has begun."""
        return bool(self.generations.rosters)

    @property
    def is_settled(self) -> bool:
        """Whether nobody is let in any more."""
        return self.over is not None or (self.is_complete and not self._stays_open)

    @property
    def is_finished(self) -> bool:
        """Whether nobody is left to serve."""
        return (self.is_complete or self.over is not None) and not self._identity_of

    @property
    def next_deadline(self) -> float | None:
        """When the next `Tick` is due."""
        if self._change is not None:
            return self._change.deadline
        return self._arrivals.deadline if self._waits else None

    @property
    def _waits(self) -> bool:
        return not self.is_complete and self.over is None

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event; return what to do about it, in order."""
        match event:
            case Heard(link=link, message=Hello() as hello, descriptors=held):
                return self._arrive(link, hello, held, now)
            case Heard(link=link) if link not in self._identity_of:
                return [Drop(link=link)]
            case Heard(link=link, message=message, descriptors=held):
                return self._hear(self._identity_of[link], message, held, now)
            case Closed(link=link, why=why):
                identity = self._identity_of.get(link)
                actions = [] if identity is None else self.lose(identity, why)
                self._identity_of.pop(link, None)
                return actions
            case Died(rank=rank, how=how):
                if rank in self._arrivals.came_as:
                    return self.lose(self._arrivals.came_as[rank], how)
                return self._end(lost_fault(rank, how)) if self._waits else []
            case GiveUp(fault=fault):
                return self._end(fault) if self._waits else []
            case TurnedAway(who=who, why=why):
                self._arrivals.turn_away(who, why)
            case NoRoom(why=why):
                self._arrivals.no_room = why
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)
        return []

    # -- coming ---------------------------------------------------------------

    def _arrive(
        self, link: int, hello: Hello, held: tuple[Descriptor, ...], now: float
    ) -> list[Action]:
        if self.is_complete and self.is_settled and self.over is None:
            return [Drop(link=link)]  # it is for the next world, served elsewhere
        refusal = self._arrivals.refusal(hello, self._members, self.over)
        hosts = {hello.host, *(m.host for m in self._members.values())}
        alike = all(is_same_kernel(host, hello.host) for host in hosts)
        if refusal is None and not (alike or self._joins_hosts):
            refusal = several_hosts(hosts)
            # A rank that cannot be one ends it for all: they would wait in vain for it.
            if not self.is_complete and hello.wish == RANK:
                self._take(link, hello, held, now)
                return self._end(refusal)
        if refusal is not None:
            said = ended_by(refusal)
            return [Send(link=link, message=said), Drop(link=link)]
        told: list[Action] = []
        if hello.wish == STANDBY and self.is_complete:
            told = self._tell_all(Came(identity=hello.identity))
        self._take(link, hello, held, now)
        if self.is_complete:
            return [*told, Send(link=link, message=self._welcome()[0])]
        if not self._arrivals.are_complete:
            return []
        came_as = self._arrivals.came_as
        return self._begin(tuple(came_as[r] for r in range(self.num_ranks)))

    def _take(
        self, link: int, hello: Hello, held: tuple[Descriptor, ...], now: float
    ) -> None:
        self._identity_of[link] = hello.identity
        self._link_of[hello.identity] = link
        self._members[hello.identity] = hello
        self._arrivals.take(hello, now)
        self._pidfds[hello.identity] = held[:1] if hello.wish == RANK else ()

    # -- generations ------------------------------------------------------------

    def _begin(self, order: tuple[str, ...], *, is_fresh: bool = False) -> list[Action]:
        """Begin a generation, by one message to everybody."""
        self.generation += self.is_complete
        self.generations.begin(self.generation, order, is_fresh=is_fresh)
        welcome, held = self._welcome(is_fresh=is_fresh)
        # They travel once. A hub that kept them would need n descriptors for ever.
        self._pidfds.clear()
        inside = set(self.links(order))
        return [
            Send(link=li, message=welcome, descriptors=held if li in inside else ())
            for li in self.links()
        ]

    def _welcome(
        self, *, is_fresh: bool = False
    ) -> tuple[Welcome, tuple[Descriptor, ...]]:
        """Return what tells of this generation, with what pidfds have come for it."""
        return welcome_to(
            self._order,
            self._members,
            self._pidfds,
            host=self._arrivals.came_as.get(self.host_rank, ""),
            joins_hosts=self._joins_hosts,
            generation=self.generation,
            since=min(self.generations.rosters),
            standbys=self._standbys(),
            facts={i: f for i, f in self.facts.items() if f and i not in self.gone},
            is_fresh=is_fresh,
            stays_open=self._stays_open,
        )

    @property
    def _order(self) -> tuple[str, ...]:
        """The identities of this generation's ranks."""
        return self.generations.newest

    def _standbys(self) -> tuple[str, ...]:
        here = self._members.items() if self._stays_open else ()
        may = (i for i, one in here if one.wish != WATCHER)
        return tuple(i for i in may if i not in {*self.gone, *self._order})

    def _propose(self, identity: str, wanted: Propose, now: float) -> list[Action]:
        order, change = wanted.identities, self._change
        if change is not None and change.is_for(wanted):
            return []  # several survivors want the same: all hear what becomes of it
        text = ""
        if not self._stays_open:
            text = "the ranks of this job stay as they came"
        elif wanted.generation != self.generation + 1:
            text = "another generation has begun meanwhile; look, and propose anew"
        elif change is not None:
            text = f"{self._names(change.order)} are proposed already; wait for that"
        elif not order or len(set(order)) < len(order):
            text = "want at least one member, and each once"
        else:
            free = {*self._order, *self._standbys()}
            odd = [i for i in order if i in self.gone or i not in free]
            why = next((self.gone[i] for i in odd if self.gone.get(i)), "not here")
            text = f"{self._names(odd)}: {why}" if odd else ""
        if text:
            refused = Fault(error="RendezvousError", text=f"not proposed: {text}")
            told = abandoned(wanted, refused)
            return [Send(link=self._link_of[identity], message=told)]
        self._attempts += 1
        self._change = Change(
            wanted=wanted, attempt=self._attempts, deadline=now + wanted.timeout_s
        )
        return self._tell_all(self._change.prepare())

    def _agree(
        self, identity: str, ready: Ready, held: tuple[Descriptor, ...]
    ) -> list[Action]:
        change = self._change
        # One to an earlier proposal of the same ranks may still be under way.
        known = change is not None and ready.attempt == change.attempt
        if change is None or not known or identity not in change.order:
            return []  # it was abandoned meanwhile
        if ready.failure:
            text = f"{self._names([identity])} {ready.failure}"
            return self._abandon(Fault(error="RendezvousError", text=text))
        change.ready.add(identity)
        self._pidfds[identity] = held[:1]
        if change.missing:
            return []
        self._change = None
        return self._begin(change.order, is_fresh=change.wanted.is_fresh)

    def _abandon(self, fault: Fault) -> list[Action]:
        """Give a proposal up, with one verdict for everybody."""
        assert self._change is not None
        told = abandoned(self._change.wanted, fault)
        self._change = None
        self._pidfds.clear()
        return self._tell_all(told)

    def _names(self, identities: Iterable[str]) -> str:
        return name_members(identities, self._order, self._members)

    # -- going ------------------------------------------------------------------

    def _hear(
        self, identity: str, message: Message, held: tuple[Descriptor, ...], now: float
    ) -> list[Action]:
        if identity in self.gone:
            return []  # its last words have been heard
        match message:
            case Leave(failure=how) as said:
                return self.lose(identity, how) if how else self._depart(identity, said)
            case Say(said=facts):
                self.facts[identity] = facts
                return self._tell_all(Say(identity=identity, said=facts))
            case Errand(verb=verb, about=about, said=facts):
                asked = Errand(verb=verb, about=about, said=facts, sender=identity)
                self.on_ask(asked)
                return self._tell_all(asked)
            case Propose() if self.is_complete:
                return self._propose(identity, message, now)
            case Ready() if self.is_complete:
                return self._agree(identity, message, held)
            case _:
                return [Drop(link=self._link_of[identity])]

    def _tell_all(self, message: Message) -> list[Action]:
        """Tell something to all who have been welcomed."""
        links = self.links() if self.is_complete else []
        return [Send(link=li, message=message) for li in links]

    def _depart(self, identity: str, said: Leave) -> list[Action]:
        if not self.is_complete:
            return self.lose(identity, "left before all had come")
        self.gone[identity] = ""
        text = f"{self._names([identity])} left while it was prepared"
        told = self.farewells[identity] = said.told_of(identity)
        actions = self._tell_gone(told, identity, Fault(error="PeerLost", text=text))
        return [*actions, Drop(link=self._link_of[identity])]

    def lose(self, identity: str, how: str) -> list[Action]:
        """Take note that a member is lost, unless it is gone already."""
        if identity in self.gone:
            return []
        self.gone[identity] = how
        if self.over is not None:
            return []
        if not self.is_complete:
            rank = self._members[identity].rank
            return self._end(lost_fault(rank, how)) if rank >= 0 else []
        text = f"{self._names([identity])} {how}, while it was prepared"
        told = Lost(identity=identity, how=how)
        return self._tell_gone(told, identity, Fault(error="PeerLost", text=text))

    def _tell_gone(
        self, told: Lost | Departed, identity: str, why: Fault
    ) -> list[Action]:
        """Tell that a member is gone, and what that ends."""
        # The loss comes first, then what it ends: all hear both in this order.
        actions = self._tell_all(told)
        if self._change is not None and identity in self._change.order:
            actions += self._abandon(why)
        order = self._order
        # Who stands by cannot begin anything: nobody has the state of the job any more.
        if not self.links(order) and self.links():
            text = f"all ranks are gone, the last of them {self._names([identity])}"
            actions += self._end(Fault(error="PeerLost", text=f"{text}; start anew"))
        return actions

    def _tick(self, now: float) -> list[Action]:
        if self._change is not None and now >= self._change.deadline:
            text = f"{self._names(self._change.missing)} did not prepare in time"
            return self._abandon(Fault(error="CollectiveTimeout", text=text))
        due = self.next_deadline
        return self._end(self._arrivals.timeout()) if due and now >= due else []

    def _end(self, fault: Fault) -> list[Action]:
        """End the world for all; tell those who are here."""
        self.over = fault
        self._pidfds.clear()
        links = self.links()
        told = [Send(link=link, message=ended_by(fault)) for link in links]
        return [*told, *(Drop(link=link) for link in links)]
