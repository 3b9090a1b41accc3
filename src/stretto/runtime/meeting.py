"""A rank's place in the meeting: exchange small parts, and hear of every fault.

One watcher thread a process sleeps in `poll` on the hub's connection, on every
peer's process and on the launcher's; it costs nothing until one of them stirs.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from stretto.errors import CallError, CollectiveTimeout, WireError
from stretto.runtime import membership, messages
from stretto.runtime.groups import Group, divide, world
from stretto.runtime.membership import Membership
from stretto.runtime.messages import (
    Departed,
    Leave,
    Lost,
    Message,
    Offer,
    Result,
    Verdict,
    Welcome,
)
from stretto.runtime.peers import PeerGroup
from stretto.runtime.process import end_process
from stretto.runtime.wire import Connection, Descriptor, Frame, wait_ready

PART_LIMIT = 64 << 10
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
        early: Iterable[Frame] = (),
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.deadline_s = deadline_s
        """How long a rank may keep the others waiting."""
        self._connection = connection
        self._pidfds = {d.number: r for r, d in enumerate(pidfds) if r != rank}
        self._held = tuple(pidfds)
        self._launcher = launcher
        self._membership = Membership(
            host_rank=welcome.host_rank, has_pidfds=bool(pidfds)
        )
        self._groups: dict[str, PeerGroup] = {}
        self._results: dict[str, deque[tuple[Result, tuple[Descriptor, ...]]]]
        self._results = defaultdict(deque)
        self._splits: dict[str, int] = defaultdict(int)
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._closed = False
        self._woken, self._wake = os.pipe()
        self.world = self._open(world(num_ranks))
        self._hear(early)
        self._thread = threading.Thread(
            target=self._run, name="stretto-watch", daemon=True
        )
        self._thread.start()

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
        if self._closed or name not in self._groups:
            raise CallError(f"{tag}: this communicator is closed; connect anew")
        offer = Offer(
            group=name,
            members=peers.group.members,
            tag=tag,
            payload=payload,
            timeout_s=peers.deadline_s,
        )
        _check_size(offer)
        until = time.monotonic() + offer.timeout_s + 1.0  # the hub answers before
        self.say(offer, tuple(Descriptor(os.dup(d)) for d in descriptors))
        waiting = self._results[name]
        with self._news:
            while not waiting and peers.fault is None:
                if not self._news.wait(max(0.0, until - time.monotonic())):
                    break
            if waiting:
                return _unpack(*waiting.popleft())
        if peers.fault is None:
            text = f"rank {self.rank}: {tag}: the rendezvous does not answer"
            raise CollectiveTimeout(text)
        raise peers.fault.to_error()

    def split(self, peers: PeerGroup, color: int | None, key: int) -> PeerGroup | None:
        """Return this rank's group among those of one color, ordered by key."""
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
        return self._open(Group(name=f"{peers.group.name}/{name}", members=chosen))

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
        with self._lock:
            if self._closed:
                return
            self.say(Leave(failure=failure))
            self._closed = True
            os.write(self._wake, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def say(self, message: Message, descriptors: tuple[Descriptor, ...] = ()) -> None:
        """Send a message to the hub; if it has ended, the watcher will notice."""
        with self._lock:
            try:
                self._connection.post(messages.to_body(message), descriptors)
                until = time.monotonic() + 1.0
                while self._connection.is_sending and time.monotonic() < until:
                    wait_ready(self._connection, 0.05)
                    self._connection.flush()
            except (OSError, WireError, ValueError):
                return

    # -- the watcher thread ---------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        hub = self._connection.fileno()
        launcher = -1 if self._launcher is None else self._launcher.number
        for number in {hub, self._woken, launcher, *self._pidfds} - {-1}:
            poll.register(number, select.POLLIN)
        while not self._closed:
            deadline = self._membership.next_deadline
            left_s = None if deadline is None else deadline - time.monotonic()
            stirred = poll.poll(None if left_s is None else max(0.0, left_s) * 1e3 + 1)
            for number, _ in stirred:
                if number == hub and not self._read_hub():
                    poll.unregister(hub)
                elif number in self._pidfds:
                    poll.unregister(number)
                    self._notice(membership.Ended(rank=self._pidfds[number]))
                elif number == launcher:
                    end_process("its launcher has ended")
            self._notice(membership.Tick())
        with self._lock:
            self._connection.close()
            os.close(self._wake)
            os.close(self._woken)

    def _read_hub(self) -> bool:
        """Deal with what the hub says; return False when it has ended."""
        try:
            self._hear(self._connection.receive())
        except (EOFError, OSError, WireError):
            if not self._closed:
                self._notice(membership.HubEnded())
            return False
        return True

    def _hear(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            message, held = messages.from_body(frame.body), frame.descriptors
            match message:
                case Lost() | Departed() | Verdict():
                    self._notice(membership.Heard(message=message))
                case Result(group=group):
                    with self._news:
                        self._results[group].append((message, held))
                        self._news.notify_all()
                case _:
                    pass  # nothing else is for a member

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


def _check_size(offer: Offer) -> None:
    try:
        nbytes = len(repr(messages.to_body(offer)))
    except (TypeError, ValueError) as e:
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
