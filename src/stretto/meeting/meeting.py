"""A rank's place in the meeting: exchange small parts, and hear of every fault.

One watcher thread a process sleeps in `poll` on the hub's connection, on every
peer's process and on the launcher's; it costs nothing until one of them stirs.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from stretto.errors import (
    CallError,
    CollectiveTimeout,
    SharedMemoryError,
    WireError,
    is_interruption,
)
from stretto.meeting import membership, messages
from stretto.meeting.forks import forget_in_children
from stretto.meeting.groups import Group, divide, world
from stretto.meeting.membership import Membership
from stretto.meeting.messages import (
    Departed,
    Leave,
    Lost,
    Message,
    Offer,
    Result,
    Verdict,
    Welcome,
)
from stretto.meeting.peers import PeerGroup
from stretto.meeting.process import end_process, most_descriptors, start_thread
from stretto.meeting.wire import (
    LONGEST_WAIT_S,
    Connection,
    Descriptor,
    Frame,
    Refused,
    encode,
    wait_ready,
)

PART_LIMIT = 1 << 20
"""Bytes of JSON that one rank may put into an exchange."""


class Meeting:
    """Everything between a rank and the others that is not a collective."""

    def __init__(
        self,
        connection: Connection,
        *,
        rank: int,
        num_ranks: int,
        welcome: Welcome,
        pidfds: Sequence[Descriptor] = (),
        launcher: Descriptor | None = None,
        deadline_s: float = 30.0,
        early: Iterable[Frame | Refused] = (),
    ) -> None:
        self.generation = welcome.generation
        """Larger than that of every earlier meeting of this name on this host."""
        self.hosts = welcome.hosts
        """The host of each rank; empty: all are on one."""
        self.host_names = tuple(map(str, welcome.names))
        self.secret, self.towards = b"", ""
        """What all ranks know, and a host that the others are reached by: for hops."""
        self.on_end: Callable[[], None] = lambda: None
        """Called once, when all that it held has been given back."""
        self.rank = rank
        self.num_ranks = num_ranks
        self.deadline_s = deadline_s
        """How long a rank may keep the others waiting."""
        self._connection = connection
        watched = zip(welcome.watched, pidfds, strict=True)
        self._pidfds = {d.number: r for r, d in watched if r != rank}
        self._held: tuple[Descriptor, ...] = tuple(pidfds)
        self._launcher = launcher
        self._membership = Membership(
            host_rank=welcome.host_rank,
            has_pidfds=welcome.host_rank in (-1, *welcome.watched),
        )
        self._groups: dict[str, PeerGroup] = {}
        self._results: dict[str, deque[tuple[Result, tuple[Descriptor, ...]]]]
        self._results = defaultdict(deque)
        self._splits: dict[str, int] = defaultdict(int)
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._closed = self.is_over = False
        self._is_forked = False
        self._woken, self._wake = map(Descriptor, os.pipe())
        forget_in_children(self)
        self.world = self._open(world(num_ranks))
        self._hear(early)
        self._thread = threading.Thread(
            target=self._run, name="stretto-watch", daemon=True
        )
        try:
            start_thread(self._thread)
        except BaseException:
            self._wake.close()
            self._woken.close()
            self._held, self._launcher, self._closed = (), None, True
            raise

    # -- for groups -------------------------------------------------------------

    def _open(self, group: Group) -> PeerGroup:
        """Return a new group, which may be broken from birth."""
        with self._lock:
            peers = self._groups[group.name] = PeerGroup(group, self)
            for rank in self._membership.departed:
                peers.mark_departed(rank)
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
            members=peers.group.members,
            fate=peers.group.fate.name,
            fate_members=peers.group.fate.members,
            tag=tag,
            payload=payload,
            timeout_s=peers.deadline_s,
        )
        _check_size(offer)
        until = time.monotonic() + offer.timeout_s + 1.0  # the hub answers before
        self.say(offer, _copies(peers, tag, descriptors))
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
                return _unpack(*waiting.popleft())
        if peers.fault is None:
            text = f"rank {self.rank}: {tag}: the rendezvous does not answer"
            raise CollectiveTimeout(text)
        raise peers.fault.to_error()

    def split(self, peers: PeerGroup, color: int | None, key: int) -> PeerGroup | None:
        """Return this rank's group among those of one color, ordered by key."""
        for name, number in (("color", color), ("key", key)):
            if number is None and name == "color":
                continue
            if type(number) is not int or abs(number) >= 1 << 63:
                none = " or None" if name == "color" else ""
                raise CallError(
                    f"rank {self.rank}: split: {name}={str(number)[:40]!r}; want a "
                    f"whole number{none}"
                )
        nth = self._splits[peers.group.name]
        self._splits[peers.group.name] += 1
        parts = self.exchange(peers, "split", {"color": color, "key": key})
        votes = [(said["color"], said["key"]) for said, _ in parts]
        chosen = divide(peers.group, nth, votes).get(self.rank)
        return None if chosen is None else self._open(chosen)

    def subgroup(
        self, peers: PeerGroup, name: str, members: Sequence[int]
    ) -> PeerGroup:
        """Return a group of some members, which nobody else hears of."""
        chosen = tuple(peers.group.members[i] for i in members)
        group = Group(
            name=f"{peers.group.name}/{name}", members=chosen, part_of=peers.group
        )
        return self._open(group)

    def leave(self, peers: PeerGroup) -> None:
        """Forget a group; with the last one, leave the meeting."""
        with self._lock:
            known = self._groups.pop(peers.group.name, None)
            self._membership.groups.pop(peers.group.name, None)
            self._results.pop(peers.group.name, None)
        if known is not None and not self._groups:
            self.close()

    # -- ending -----------------------------------------------------------------

    def close(self, failure: str = "") -> None:
        """Leave: in order, or because of a failure, in words that follow "rank 1"."""
        if self._is_forked:
            return
        with self._lock:
            if self._closed:
                return
            self.say(Leave(failure=failure))
            self._closed = True
            os.write(self._wake.number, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def forget(self) -> None:
        """Close what a forked child has of it: the parent goes on without the child."""
        self._is_forked = self._closed = True
        self.on_end = lambda: None
        self._connection.close()
        for held in (*self._held, self._launcher, self._wake, self._woken):
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
            self._wake.close()
            self._woken.close()
            self._held, self._launcher = (), None
            self._pidfds.clear()
            self.is_over = True
        self.on_end()

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

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            self._give_back()

    def _watch(self) -> None:
        poll = select.poll()
        hub = self._connection.fileno()
        launcher = -1 if self._launcher is None else self._launcher.number
        for number in {hub, self._woken.number, launcher, *self._pidfds} - {-1}:
            poll.register(number, select.POLLIN)
        while not self._closed:
            deadline = self._membership.next_deadline
            left_s = math.inf if deadline is None else deadline - time.monotonic()
            left_s = min(max(0.0, left_s), LONGEST_WAIT_S)
            stirred = poll.poll(left_s * 1e3 + 1)
            for number, _ in stirred:
                if number == hub and not self._read_hub():
                    poll.unregister(hub)
                elif number in self._pidfds:
                    poll.unregister(number)
                    self._notice(membership.Ended(rank=self._pidfds[number]))
                elif number == launcher:
                    end_process("its launcher has ended")
            self._notice(membership.Tick())

    def _read_hub(self) -> bool:
        """Deal with what the hub says; return False when it has ended."""
        try:
            if self._hear(self._connection.receive()):
                return True
        except (EOFError, OSError):
            pass
        if not self._closed:
            self._notice(membership.HubEnded())
        return False

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
                case Lost() | Departed() | Verdict():
                    self._notice(membership.Heard(message=message))
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
            self._notice(membership.Heard(message=Lost(rank=self.rank, how=how)))

    def _notice(self, event: membership.Event) -> None:
        with self._news:
            for action in self._membership.on(event, time.monotonic()):
                match action:
                    case membership.Break(group=group, fault=fault):
                        if group in self._groups:
                            self._groups[group].break_(fault)
                    case membership.Mark(rank=rank):
                        for peers in self._groups.values():
                            peers.mark_departed(rank)
            self._news.notify_all()


def _copies(
    peers: PeerGroup, tag: str, descriptors: Sequence[int]
) -> tuple[Descriptor, ...]:
    """Return duplicates; without room for them this rank gives up, and says so."""
    try:
        return tuple(Descriptor(os.dup(d)) for d in descriptors)
    except OSError as e:
        if is_interruption(e):
            raise
        why = f"{tag}: cannot pass a file descriptor: {e.strerror}"
        peers.abandon(f"gave up in {why}")
        raise SharedMemoryError(f"{why}; {most_descriptors()}") from e


def _check_size(offer: Offer) -> None:
    try:
        nbytes = len(encode(messages.to_body(offer)))
    except (TypeError, ValueError, RecursionError) as e:
        raise CallError(f"{offer.tag}: the payload is not JSON: {e}") from e
    if nbytes > PART_LIMIT:
        raise CallError(
            f"{offer.tag}: a part of {nbytes} bytes; at most {PART_LIMIT} are taken"
        )


def _unpack(
    result: Result, held: tuple[Descriptor, ...]
) -> list[tuple[Any, tuple[Descriptor, ...]]]:
    parts, first = [], 0
    for payload, count in zip(result.payloads, result.counts, strict=True):
        parts.append((payload, held[first : first + count]))
        first += count
    return parts
