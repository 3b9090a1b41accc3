"""A rank's place in the meeting: exchange small parts, and hear of every fault.

One thread a process, of a loop, watches the hub's connection, every peer's process
and the launcher's; it costs nothing until one of them stirs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from stretto.errors import (
    CallError,
    CollectiveTimeout,
    CommunicatorBroken,
    WireError,
    is_interruption,
)
from stretto.fabric import view
from stretto.fabric.forks import forget_in_children
from stretto.fabric.loop import LONGEST_WAIT_S, Loop
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.groups import Group, Roster, check_votes, divide, part_of
from stretto.fabric.meeting.membership import Break, MarkDeparted, Membership
from stretto.fabric.meeting.messages import Offer, Result
from stretto.fabric.meeting.parts import check_size, copies, unpack
from stretto.fabric.meeting.peers import PeerGroup
from stretto.fabric.meeting.standing import Processes, Standing
from stretto.fabric.messages import Leave, Lost, Message, Verdict, Welcome
from stretto.fabric.process import end_process
from stretto.fabric.view import WorldView
from stretto.fabric.wire import (
    Connection,
    Descriptor,
    Frame,
    Refused,
    wait_ready,
)


class Meeting:
    """Everything between a rank and the others that is not a collective."""

    def __init__(
        self,
        connection: Connection,
        *,
        identity: str,
        welcome: Welcome,
        pidfds: Sequence[Descriptor] = (),
        launcher: Descriptor | None = None,
        deadline_s: float = 30.0,
        early: Iterable[Frame | Refused] = (),
    ) -> None:
        self.secret, self.towards = b"", ""
        """What all ranks know, and a host that the others are reached by: for hops."""
        self.on_end: Callable[[], None] = lambda: None
        """Called once, when all that it held has been given back."""
        self.deadline_s = deadline_s
        """How long a rank may keep the others waiting."""
        self.is_held = False
        """Whether this process stays when its last group is closed: to stand by."""
        self._connection, self._launcher = connection, launcher
        self._membership = Membership(view=WorldView(welcome=welcome))
        self._worlds: dict[int, PeerGroup] = {}
        self._groups: dict[str, PeerGroup] = {}
        self._results: dict[str, deque[tuple[Result, tuple[Descriptor, ...]]]]
        self._results = defaultdict(deque)
        self._splits: dict[str, int] = defaultdict(int)
        self._surveys: dict[str, int] = defaultdict(int)
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._closed = self.is_over = self._is_forked = False
        self._loop = Loop("stretto-watch")
        forget_in_children(self)
        processes = Processes(self._loop, self._has_ended)
        self.standing = Standing(
            identity, self._membership, self._news, self.say, processes
        )
        self.standing.begin(welcome, tuple(pidfds))
        if self.standing.is_rank:
            self.current()
        self._hear(early)
        try:
            self._watch()
        except BaseException:
            self._loop.close()
            self.standing.close()
            self._launcher, self._closed = None, True
            raise

    # -- generations --------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's rank, in the last generation that it is in; -1 before."""
        return self.standing.roster.rank

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.standing.identities)

    @property
    def generation(self) -> int:
        """Larger than that of every earlier meeting of this name on this host."""
        return self.standing.generation

    @property
    def world(self) -> PeerGroup:
        """The group of all ranks of the first generation that this process is in."""
        if not self._worlds:
            raise CallError("this process stands by; it has no group before it is one")
        return next(iter(self._worlds.values()))

    def current(self) -> PeerGroup:
        """Return the group of all ranks of this generation."""
        with self._lock:
            number = self.generation
            if not self.standing.is_rank:
                text = "this process is no rank of the generation that has begun"
                raise CommunicatorBroken(text)
            if number not in self._worlds:
                group = self.standing.world()
                self._worlds[number] = self._open(group, self.standing.roster)
            return self._worlds[number]

    # -- for groups -------------------------------------------------------------

    def _open(self, group: Group, roster: Roster) -> PeerGroup:
        """Return a new group, which may be broken from birth."""
        with self._lock:
            self.standing.parting = None  # it goes on
            peers = self._groups[group.name] = PeerGroup(group, self, roster)
            for rank, after in self._membership.departed(group).items():
                peers.mark_departed(rank, after)
            if (fault := self._membership.join(group)) is not None:
                peers.break_(fault)
        return peers

    def exchange(
        self,
        peers: PeerGroup,
        tag: str,
        payload: Any = None,
        descriptors: Sequence[int] = (),
    ) -> list[tuple[Any, tuple[Descriptor, ...]]]:
        """Give a part, return everybody's in the group's order.

        `payload` is small and JSON can write it. File descriptors are duplicated;
        everybody gets their own. All members must call with the same `tag`.
        """
        name = peers.group.name
        self._refuse_children(tag)
        if self._closed or name not in self._groups:
            raise CallError(f"{tag}: this communicator is closed; connect anew")
        offer = Offer(
            group=name,
            generation=peers.group.generation,
            members=peers.group.members,
            fate=peers.group.fate.name,
            fate_members=peers.group.fate.members,
            tag=tag,
            payload=payload,
            timeout_s=peers.deadline_s,
            survives=peers.group.survives,
        )
        check_size(offer)
        until = time.monotonic() + offer.timeout_s + 1.0  # the hub answers before
        self.say(offer, copies(peers, tag, descriptors))
        waiting = self._results[name]
        with self._lock:  # and not by the condition, which a handler may leave locked
            while not waiting and peers.fault is None:
                if (gone := self._membership.hub_fault(tag)) is not None:
                    peers.break_(gone)  # nothing can be exchanged any more
                    break
                left_s = max(0.0, until - time.monotonic())
                if not self._news.wait(min(left_s, LONGEST_WAIT_S)) and not left_s:
                    break
            if waiting:
                return unpack(*waiting.popleft())
        if peers.fault is None:
            text = f"rank {peers.roster.rank}: {tag}: the rendezvous does not answer"
            raise CollectiveTimeout(text)
        raise peers.fault.to_error()

    def survey(
        self, peers: PeerGroup, tag: str, payload: Any
    ) -> list[tuple[Any, tuple[Descriptor, ...]]]:
        """Exchange parts among those of a group that are left; None for who is gone.

        Also when it is broken: all who are left hear the same.
        """
        name = peers.group.name
        nth, self._surveys[name] = self._surveys[name], self._surveys[name] + 1
        mine = replace(peers.group, name=f"{name}!{nth}", part_of=None, survives=True)
        found = self._open(mine, peers.roster)
        found.deadline_s = self.deadline_s  # some may just have left
        try:
            return self.exchange(found, tag, payload)
        finally:
            self._forget_group(mine.name)

    def renew(self, peers: PeerGroup, group: Group) -> None:
        """Make a group another one, of the generation that there is."""
        with self._lock:
            if group.part_of is None:
                self._worlds[group.generation] = peers
            self._forget_group(peers.group.name)
            self.standing.parting = None
            peers.seat(group, self.standing.roster)
            self._groups[group.name] = peers
            if (fault := self._membership.join(group)) is not None:
                peers.break_(fault)

    def split(self, peers: PeerGroup, color: int | None, key: int) -> PeerGroup | None:
        """Return this rank's group among those of one color, ordered by key."""
        check_votes(self.rank, color, key)
        nth = self._splits[peers.group.name]
        self._splits[peers.group.name] += 1
        parts = self.exchange(peers, "split", {"color": color, "key": key})
        votes = [(said["color"], said["key"]) for said, _ in parts]
        chosen = divide(peers.group, nth, votes).get(peers.roster.rank)
        return None if chosen is None else self._open(chosen, peers.roster)

    def subgroup(
        self, peers: PeerGroup, name: str, members: Sequence[int], *, apart: bool
    ) -> PeerGroup:
        """Return a group of some members, which nobody else hears of."""
        group = part_of(peers.group, name, members, apart=apart)
        return self._open(group, peers.roster)

    def leave(self, peers: PeerGroup) -> None:
        """Forget a group; with the last one, leave the meeting."""
        if peers.fault is not None:
            fate = peers.group.fate.name
            self.standing.parting = self.standing.settle(fate, peers.fault)
        known = self._forget_group(peers.group.name)
        self._worlds = {g: p for g, p in self._worlds.items() if p is not peers}
        if known is not None and not self._groups and not self.is_held:
            self.close()

    def _forget_group(self, name: str) -> PeerGroup | None:
        with self._lock:
            self._membership.groups.pop(name, None)
            self._results.pop(name, None)
            return self._groups.pop(name, None)

    # -- ending -----------------------------------------------------------------

    def close(self, failure: str = "") -> None:
        """Leave: in order, or because of a failure, in words that follow "rank 1"."""
        if self._is_forked:
            return
        with self._lock:
            if self._closed:
                return
            self.say(self.standing.leave(failure))
            self._closed = True
            self._loop.stop()
        self._loop.join(1.0)

    def forget(self) -> None:
        """Close what a forked child has of it: the parent goes on without the child."""
        self._is_forked = self._closed = True
        self.on_end = lambda: None
        self._connection.close()
        self.standing.last_words.close()
        for held in (*self.standing.processes.held, self._launcher):
            if held is not None:
                with suppress(OSError):
                    held.close()
        for peers in self._groups.values():
            peers.disown()

    def _refuse_children(self, what: str) -> None:
        if self._is_forked:
            raise CallError(
                f"{what}: pid {os.getpid()} was forked from rank {self.rank}, and is "
                "no rank itself; call from the process that connected, or start "
                "processes with spawn"
            )

    def _give_back(self) -> None:
        """Close everything; the thread's last act."""
        with self._lock:
            self._closed = True
            self._connection.close()
            self._launcher = None
            self.standing.close()
            self.is_over = True
            self._news.notify_all()
        self.on_end()

    def soon(self, call: Callable[[], None], within_s: float) -> None:
        """Call something in the watcher thread, in a while."""
        self._loop.at(time.monotonic() + within_s, call)

    def say(self, message: Message, descriptors: tuple[Descriptor, ...] = ()) -> None:
        """Send a message to the hub; if it has ended, the watcher will notice."""
        if self._is_forked or self._closed:
            return
        with self._lock:
            try:
                self._connection.post(messages.to_body(message), descriptors)
                until = time.monotonic() + 1.0
                while self._connection.is_sending and time.monotonic() < until:
                    wait_ready(self._connection, 0.05)
                    self._connection.flush()
            except (OSError, WireError, ValueError) as e:
                if is_interruption(e):
                    raise

    # -- the watcher thread ---------------------------------------------------

    def _watch(self) -> None:
        watch = self._loop.watch
        watch(self._connection, self._read_hub, fault=lambda error: self._hub_ended())
        if self._launcher is not None:
            gone = partial(end_process, "its launcher has ended")
            watch(self._launcher.number, gone)
        self._loop.start(last=self._give_back)

    def _read_hub(self) -> None:
        """Deal with what the hub says, or with its end."""
        try:
            if self._hear(self._connection.receive()):
                return
        except (EOFError, OSError):
            pass
        self._hub_ended()

    def _hub_ended(self) -> None:
        self._loop.unwatch(self._connection)
        if not self._closed:
            self._notice(view.HubEnded())

    def _has_ended(self, identity: str) -> None:
        self._notice(view.Ended(identity=identity))

    def _hear(self, frames: Iterable[Frame | Refused]) -> bool:
        """Deal with what came; return whether all of it could be read."""
        for frame in frames:
            message = messages.read(frame)
            if isinstance(frame, Refused) or isinstance(message, Refused):
                assert isinstance(message, Refused)
                self._cannot_read(message)
                return False
            held = frame.descriptors
            match message:
                case Verdict():
                    with self._lock:
                        self._do(self.standing.judge(message))
                case message if isinstance(message, view.News):
                    self._notice(view.Heard(message=message), held)
                case Result(group=group):
                    with self._news:
                        self._results[group].append((message, held))
                        self._news.notify_all()
                case _:
                    pass  # nothing else is for a member
        return True

    def _cannot_read(self, refused: Refused) -> None:
        """Break with all, for want of descriptors; without blame, who knows why."""
        if refused.is_ours:
            how = f"cannot hear what the rendezvous says: {refused.why}"
            self.say(Leave(failure=how))
            lost = Lost(identity=self.standing.identity, how=how)
            self._notice(view.Heard(message=lost))

    def _notice(self, event: view.Event, held: tuple[Descriptor, ...] = ()) -> None:
        is_late = isinstance(event, view.Tick) and not self.standing.hub_ended
        if is_late and wait_ready(self._connection, 0.0):
            self._read_hub()  # its word may have come meanwhile
        with self._lock:
            self._do(self.standing.notice(event, held))

    def _do(self, actions: Iterable[Break | MarkDeparted]) -> None:
        with self._news:
            for action in actions:
                match action:
                    case Break(group=group, fault=fault):
                        if group in self._groups:
                            self._groups[group].break_(fault)
                    case MarkDeparted(group=group, rank=rank, after=after):
                        if group in self._groups:
                            self._groups[group].mark_departed(rank, after)
            self._news.notify_all()
            due = self.standing.next_deadline
        if due is not None:
            self._loop.at(due, partial(self._notice, view.Tick()))
