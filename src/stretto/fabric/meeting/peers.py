"""The ranks of a communicator, as executors see them: exchange, health, faults.

`broken` is one word for spin loops: 0 while the group is whole, 1 once it is not. The
meeting's watcher thread writes it; reading it costs a load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CommunicationError, StrettoError
from stretto.fabric.faults import Fault, left_fault, lost_fault
from stretto.fabric.meeting.groups import Group, Roster, part_of
from stretto.fabric.meeting.messages import Report
from stretto.fabric.meeting.standing import Standing
from stretto.fabric.messages import Message
from stretto.fabric.wire import Descriptor

VERDICT_S = 1.0
"""How long the hub may take to make one fault everybody's."""
DEPARTED_S = 2.0
"""The deadline of waits once a member has closed: it will send nothing more."""


class MeetingServices(Protocol):
    """What a group needs of the meeting that it belongs to."""

    deadline_s: float
    secret: bytes
    towards: str
    standing: Standing

    def say(self, message: Message) -> None:
        """Send a message to the hub; never fails and never waits long."""

    def exchange(
        self,
        peers: PeerGroup,
        tag: str,
        payload: Any,
        descriptors: Sequence[int] = (),
    ) -> list[tuple[Any, tuple[Descriptor, ...]]]:
        """Give a part, return everybody's."""

    def split(self, peers: PeerGroup, color: int | None, key: int) -> PeerGroup | None:
        """Return this rank's new group."""

    def subgroup(
        self, peers: PeerGroup, name: str, members: Sequence[int], *, apart: bool
    ) -> PeerGroup:
        """Return a group of some members, which nobody else hears of."""

    def survey(
        self, peers: PeerGroup, tag: str, payload: Any
    ) -> list[tuple[Any, tuple[Descriptor, ...]]]:
        """Exchange parts among those that are left."""

    def renew(self, peers: PeerGroup, group: Group) -> None:
        """Make a group another one, of the generation that there is."""

    def leave(self, peers: PeerGroup) -> None:
        """Forget a group; with the last one, leave the meeting."""


class PeerGroup:
    """One group's `executors.Group`: its ranks are numbered from 0."""

    def __init__(self, group: Group, host: MeetingServices, roster: Roster) -> None:
        self.calling = ""
        """The method of a communicator that exchanges happen for, if it says so."""
        self.only_transfers = self.opens_late = False
        """Whether two ranks send and receive here, and do nothing else."""
        self.most_ranks = 0
        """How many ranks there is room for, where it may be renewed; 0: it may not."""
        self.deadline_s, self._asked_s = host.deadline_s, 0.0
        """How long a wait may last without progress."""
        self.on_break: list[Callable[[], None]] = []
        """Called once, in the watcher thread, when the group breaks: wake sleepers."""
        self.on_exchange: list[Callable[[int, str], None]] = []
        """Called with the number and the name of every exchange that begins: who waits
        in a collective for this rank then sees that it is elsewhere."""
        self._host = host
        self._cell: NDArray[np.int64] = np.zeros(1, np.int64)
        self._departed: dict[int, Fault | None] = {}
        self._fault: Fault | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.seat(group, roster)

    def seat(self, group: Group, roster: Roster) -> None:
        """Be another group, whole again: of the ranks of another generation."""
        with self._lock:
            self.group, self.roster = group, roster
            self.rank = group.index(roster.rank)
            self.num_ranks = len(group.members)
            self._exchanges = 0
            self.deadline_s = max(self.deadline_s, self._asked_s)
            self._departed.clear()
            self._fault = None
            self._ended.clear()
            self._cell[0] = 0

    @property
    def hosts(self) -> tuple[int, ...]:
        """Return the host of each rank; empty where all are on one."""
        hosts = self.roster.hosts
        found = tuple(hosts[r] for r in self.group.members) if hosts else ()
        return found if len(set(found)) > 1 else ()

    @property
    def identity(self) -> tuple[str, tuple[int, ...], int]:
        """Return its name, its world ranks, and of which generation they are.

        Of what may be renewed: of the world's first, in which it has the same name.
        """
        group = self.group
        if self.most_ranks:
            name = "/".join(["world", *group.name.split("/")[1:]])
            return name, group.members, self.standing.since
        return group.name, group.members, group.generation

    @property
    def standing(self) -> Standing:
        """Return what this process is in each generation of the world."""
        return self._host.standing

    def renew(self) -> None:
        """Become the group of all ranks of the generation that there is."""
        self._host.renew(self, self.standing.world())

    def renew_part(self, whole: PeerGroup, name: str, members: Sequence[int]) -> None:
        """Become the group of some ranks of another that was renewed."""
        self._host.renew(self, part_of(whole.group, name, members))

    def survey(self, tag: str, payload: Mapping[str, Any]) -> list[Any]:
        """Return everybody's part, None for who is gone; of a broken group, too.

        All who are left call it, and get the same.
        """
        return [said for said, _ in self._host.survey(self, tag, payload)]

    @property
    def secret(self) -> bytes:
        """Return what all ranks of the job know, where they met over TCP."""
        return self._host.secret

    @property
    def towards(self) -> str:
        """Return a host that the other hosts are reached by."""
        return self._host.towards

    @property
    def broken(self) -> NDArray[np.int64]:
        """One int64, non-zero once the group is broken."""
        return self._cell

    @property
    def fault(self) -> Fault | None:
        """Why the group is broken; None while it is whole."""
        return self._fault

    def exchange(
        self,
        payload: Mapping[str, Any],
        fds: Sequence[int] = (),
        *,
        tag: str = "",
    ) -> list[tuple[Any, tuple[int, ...]]]:
        """Give everybody's payload and descriptors to everybody (collective).

        The descriptors that come are the caller's to close.
        """
        self.check()
        tag = tag or self.calling or "exchange"
        self._tell_of_exchange(tag)
        parts = self._host.exchange(self, tag, payload, fds)
        return [(said, tuple(d.take() for d in held)) for said, held in parts]

    def split(self, color: int | None, key: int = 0) -> PeerGroup | None:
        """Return the group of those with this color, ordered by key (collective)."""
        self.check()
        self._tell_of_exchange("split")
        return self._host.split(self, color, key)

    def subgroup(
        self, name: str, members: Sequence[int], *, apart: bool = False
    ) -> PeerGroup:
        """Return the group of some ranks of this one, in that order.

        Only they call it, with the same name; nothing is exchanged. It breaks with this
        one; one that is `apart` does not, and is made of a broken one, too.
        """
        if not apart:
            self.check()
        return self._host.subgroup(self, name, members, apart=apart)

    def close(self) -> None:
        """Leave the group; with its last group a process leaves the meeting."""
        self._host.leave(self)
        self.on_break.clear()
        self.on_exchange.clear()

    def _tell_of_exchange(self, tag: str) -> None:
        self._exchanges += 1
        for tell in self.on_exchange:
            tell(self._exchanges, tag)

    def abandon(self, how: str, error: BaseException | None = None) -> None:
        """Break the group because this rank gives up; `how` follows "rank 1".

        An `error` that blames others, of a group that lies in this one, say, is what
        is wrong here, too.
        """
        if isinstance(error, CommunicationError) and error.blamed:
            self.declare(Fault.of(error))
        elif self._fault is None:
            rank, fate = self.roster.rank, self.group.fate
            self._settle(lost_fault(rank, how, fate.name_ranks([rank])))

    def lose(self, rank: int, how: str, where: str = "") -> StrettoError:
        """Break the group because a rank cannot be reached; `how` follows "rank 1"."""
        world = self.group.members[rank]
        if self._fault is None:
            name = self.group.name_ranks([world])
            if world in self._departed:
                after = self._departed[world]
                self._settle(left_fault(world, where, name, after))
            else:
                self._settle(lost_fault(world, f"{self._on(world)}{how}", name))
        return self.fail((rank,), where)

    def declare(self, fault: Fault) -> None:
        """Break the group on every rank, for a reason of this one's."""
        if self._fault is None:
            self._settle(fault)

    def _on(self, world: int) -> str:
        roster = self.roster
        hosts, names = roster.hosts, roster.host_names
        return f"on {names[hosts[world]]} " if hosts else ""

    def check(self) -> None:
        """Raise why the group is broken, if it is."""
        if self._fault is not None:
            raise self._fault.to_error()

    def fail(
        self,
        waiting_for: Sequence[int],
        where: str,
        *,
        mismatch: str = "",
        refused: str = "",
    ) -> StrettoError:
        """Break the group on every rank; return the error that says why.

        The first fault that reaches the hub is everybody's.
        """
        if self._fault is None:
            mine = self._judge(waiting_for, where, mismatch)
            if refused:
                mine = Fault(error="CallError", text=refused)
            self._settle(mine)
        fault = self._fault
        assert fault is not None
        if where and where not in fault.text and fault.error != "CollectiveMismatch":
            return replace(fault, text=f"{fault.text} [{where}]").to_error()
        return fault.to_error()  # a mismatch says of every rank where it is

    def _settle(self, fault: Fault) -> None:
        """Report a fault, and wait for the hub to say whose was the first.

        A hub that hangs says nothing. Then the others of this host are asked.
        """
        fate = self.group.fate
        report = Report(
            group=fate.name,
            generation=fate.generation,
            members=fate.members,
            error=fault.error,
            text=fault.text,
            blamed=fault.blamed,
        )
        self._host.say(report)
        if not self._ended.wait(VERDICT_S):
            self.break_(self.standing.settle(fate.name, fault))

    def _judge(self, waiting_for: Sequence[int], where: str, mismatch: str) -> Fault:
        if mismatch:
            text = f"ranks called different things: {mismatch}. All must call the same"
            return Fault(error="CollectiveMismatch", text=text)
        blamed = tuple(self.group.members[r] for r in waiting_for)
        if self._departed:
            gone = min(self._departed.keys() & set(blamed) or self._departed)
            name, after = self.group.name_ranks([gone]), self._departed[gone]
            return left_fault(gone, where, name, after)
        if not waiting_for:
            return Fault(error="CommunicatorBroken", text=where)
        text = (
            f"{self.group.name_ranks(blamed)} did not come within "
            f"{self.deadline_s:g} s: {where}. See what they do, or allow more time "
            "with deadline_s"
        )
        return Fault(error="CollectiveTimeout", text=text, blamed=blamed)

    def disown(self) -> None:
        """Break the view of a forked child; it says nothing to anybody."""
        text = (
            f"this process was forked from rank {self.roster.rank} and is no rank "
            "itself; call from the process that connected, or use spawn"
        )
        self._lock = threading.Lock()  # the parent's other threads may hold the old
        self._ended = threading.Event()
        self.break_(Fault(error="CommunicatorBroken", text=text))

    # -- the watcher thread's side ----------------------------------------------

    def break_(self, fault: Fault) -> None:
        """Break this rank's view of the group; the first fault stays."""
        with self._lock:
            if self._fault is not None:
                return
            self._fault = fault
            self._cell[0] = 1
        self._ended.set()
        for wake in list(self.on_break):
            wake()

    def mark_departed(self, rank: int, after: Fault | None = None) -> None:
        """Note that a rank closed in order: what it sent is there, no more comes."""
        if rank in self.group.members:
            self._departed[rank] = after
            self._asked_s = max(self._asked_s, self.deadline_s)
            self.deadline_s = min(self.deadline_s, DEPARTED_S)
