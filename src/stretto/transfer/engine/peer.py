"""Another engine: its memory, the link to it, and what is under way with it."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import (
    CallError,
    EngineLost,
    TransferError,
    UnknownNameError,
)
from stretto.meeting.wire import Connection, Descriptor, Frame, Refused
from stretto.transfer import loader
from stretto.transfer.engine.exchange import Exchange
from stretto.transfer.links.link import Link, notice
from stretto.transfer.links.words import NUM_MARKS
from stretto.transfer.memory.board import PeerBoard
from stretto.transfer.memory.mapping import Shared
from stretto.transfer.memory.region import Region, untold
from stretto.transfer.ports import EngineLike
from stretto.transfer.ways.pending import Pending
from stretto.transfer.ways.transfer import Transfer, failure

__all__ = ["Peer"]

_MOST_OPEN = 4096
_MOST_NOTES = 256
_MOST_ARENAS = 4096
_LOOK_S = 0.0002
_PART_S = 1.0
"""How long what a peer said before it ended may take to be here, or to be sent."""


class Peer(Exchange):
    """What `engine.connect(...)` gives: `peer["kv"]` is its memory of that name."""

    def __init__(
        self, engine: EngineLike, name: str, link: Link, connection: Connection, *,
        is_first: bool, pid: int = 0, pidfd: Descriptor | None = None,
        board: Shared | None = None, reaches: bool = False, why_not: str = "",
        address: str = "", identity: str = "", meeting: str = "",
    ) -> None:  # fmt: skip
        super().__init__(engine, name, link, int(is_first))
        self._connection = connection
        self.pid, self._pidfd, self.address = pid, pidfd, address
        self._has_died = False
        self.identity, self.meeting = identity, meeting
        """What tells it from all other engines; and this connection from others."""
        self.board = None if board is None else PeerBoard(board)
        self.reaches, self.why_not = reaches, why_not
        """Whether the kernel copies between our memories, and why not."""
        self.ready: Pending[Peer] = Pending(engine.loop, f"connection to {name!r}")
        self._regions: dict[str, Region] = {}
        self._wanted: dict[str, list[Pending[Region]]] = {}
        self._arenas: dict[int, Shared] = {}
        self._marks = list(range(1, NUM_MARKS))
        self.begun: set[Transfer] = set()
        self._notes: dict[bytes, tuple[int, NDArray[np.int64]]] = {}
        """By name: a note as `_announce` wants it, and where it lies. None for who is
        lost."""
        self._announce: Callable[[int], int]
        self._ending: tuple[str, int, float] | None = None
        """Why it ends, how many records it has posted, and until when they may come."""
        if link.by_python is not None:
            link.by_python.rouse = self._rouse
        self._closed, self._part_by = "", 0.0
        """That we close the connection, as soon as we do, and until when it may take.
        """
        self._parted: Pending[None] = Pending(engine.loop, f"the end of {name!r}")

    @property
    def is_far(self) -> bool:
        """Return whether it is on another host, or is treated so."""
        return self.link.hop is not None

    @property
    def whereabouts(self) -> str:
        """Return where it is, for people."""
        return f"at {self.address}" if self.is_far else f"pid {self.pid}"

    @property
    def is_self(self) -> bool:
        """Return whether it lives in this process."""
        return self.pid == os.getpid() and not self.is_far

    def __getitem__(self, name: str) -> Region:
        """Return its memory of a name."""
        self.check()
        found = self._regions.get(name)
        if found is None:
            raise UnknownNameError.among(
                f"memory of engine {self.name!r}", name, self._regions
            )
        return found

    def region(self, name: str) -> Pending[Region]:
        """Return its memory of a name, which it may still have to share."""
        pending: Pending[Region] = Pending(
            self.engine.loop, f"memory {name!r} of engine {self.name!r}"
        )
        with self.engine.lock:
            found = self._regions.get(name)
            if found is None and not self.lost:
                self._wanted.setdefault(name, []).append(pending)
        if self.lost:
            pending.fail(self.error())
        elif found is not None:
            pending.finish(found)
        return pending

    @property
    def arenas(self) -> list[Shared]:
        """Return its arenas, as they are mapped here."""
        return list(self._arenas.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its memory, sorted."""
        return tuple(sorted(self._regions))

    def notify(self, tag: bytes, count: int = 1) -> None:
        """Send a notification; `engine.notified(tag)` waits for it there."""
        note = self._notes.get(tag)
        if note is None or count != 1:
            self._notify(tag, count)
            return
        said = self._announce(note[0])
        if said != 1:
            if said:
                self.link.wake()
            else:
                self._notify(tag, count)

    def _notify(self, tag: bytes, count: int) -> None:
        """Send a notification, and remember how it is sent the next time."""
        record = np.frombuffer(notice(tag, count), np.int64)
        self.post(record.tobytes())
        compiled, hop = loader.current(), self.link.hop
        if compiled is None or count != 1 or (hop is not None and hop.calls is None):
            return
        if len(self._notes) >= _MOST_NOTES:
            self._notes.clear()
        announce = compiled.announce if hop is None else compiled.announce_far
        self._announce = compiled.direct(announce)
        note = np.array([self.link.at, *record], np.int64)
        self._notes[tag] = int(note.ctypes.data), note
        if self.lost:
            self._notes.clear()

    def explain(self) -> str:
        """Return which way bytes go to each of its memories, and why no better one."""
        return self.engine.explain(self)

    def error(self) -> EngineLost:
        """Return the error of a peer that is gone."""
        error = EngineLost(f"engine {self.name!r} is gone: {self.lost}")
        error.peer = self.name
        return error

    def check(self) -> None:
        """Raise when it is gone."""
        if self.lost:
            raise self.error()

    def give_up(self) -> None:
        """Raise when it is of no use to wait for it."""
        if not self.lost and self.is_dead():
            self.lose("its process has ended")
        if not self.lost and (why := self.link.fault):
            self.lose(why)
        self.check()

    def is_dead(self) -> bool:
        """Return whether it is known to do nothing more."""
        if self._pidfd is None:
            return self.link.is_closed
        if not self._has_died and self._pidfd.number >= 0:
            poll = select.poll()
            poll.register(self._pidfd.number, select.POLLIN)
            self._has_died = bool(poll.poll(0))
        return self._has_died

    @property
    def writes_no_more(self) -> bool:
        """Return whether nothing that it begins can come into our memory any more."""
        return self.is_dead() or (not self.is_far and self.link.has_left)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return what turns readable when it says something, and when it dies."""
        held = () if self._pidfd is None or self.is_self else (self._pidfd.number,)
        return (self._connection.fileno(), *held)

    def tell(self, body: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Tell it something by its connection; descriptors stay ours."""
        if self.lost:
            return
        held = [Descriptor(os.dup(fd)) for fd in fds]
        with contextlib.suppress(OSError), self.engine.lock:
            self._connection.post(body, held)

    def _rouse(self) -> None:
        """Have both ends look at a link again that nothing has come by for a while."""
        if not self.engine.loop.is_here:
            self.engine.loop.wake()
        self.tell({"say": "look"})

    # Marks: where we say that we write to its memory.

    def take_mark(self) -> int | None:
        """Return a mark that nobody uses."""
        with self.engine.lock:
            return self._marks.pop() if self._marks else None

    def give_mark(self, mark: int) -> None:
        """Let a mark be used again."""
        with self.engine.lock:
            self._marks.append(mark)

    # Its connection.

    def hear(self, events: int) -> None:
        """Deal with what came by the connection, or with its death."""
        try:
            self._connection.flush()
            frames = self._connection.receive()
        except (EOFError, OSError):
            why = "its process has ended" if self.is_dead() else "it hung up"
            self._ends(why, self.link.come)
            return
        self.told(frames)
        if not frames and self.is_dead():  # a child of it holds the connection
            self._ends("its process has ended", self.link.come)

    def told(self, frames: Sequence[Frame | Refused]) -> None:
        """Deal with frames that came by the connection."""
        for frame in frames:
            try:
                self._heard(frame)
            except (CallError, KeyError, TypeError, ValueError, UnknownNameError) as e:
                self.lose(f"what it told makes no sense: {type(e).__name__}: {e}")
                return

    def _heard(self, frame: Frame | Refused) -> None:
        if isinstance(frame, Refused):
            raise ValueError(frame.why)
        said = frame.body
        match said.get("say"):
            case "arena":
                (fd,) = frame.descriptors
                if len(self._arenas) >= _MOST_ARENAS:
                    raise ValueError("too many arenas")
                self._arenas[int(said["id"])] = Shared(int(said["nbytes"]), fd.take())
            case "share":
                self._share(untold(said, self, self._arenas, frame.descriptors))
            case "unshare":
                self._regions.pop(str(said["name"]), None)
            case "refused":
                self._refused(int(said["number"]), str(said["why"]))
            case "look":
                if self.link.by_python is not None:
                    self.link.by_python.stir()
            case "no":
                self._ends(f"it refuses us: {str(said['why'])[:300]}", self.link.come)
            case "ready":
                self.ready.finish(self)
            case "bye":
                why = f"it closed: {str(said.get('why', ''))[:200]}"
                self._ends(why, int(said["posted"]), time.monotonic() + _PART_S)
            case other:
                raise ValueError(f"{str(other)[:40]!r}")

    # Its end: what it has said before that is heard first.

    def _ends(self, why: str, posted: int, until: float = 0.0) -> None:
        """Lose it, once all that it has posted has been taken."""
        if self._ending is not None:
            why, posted, _ = self._ending  # it has closed in order, and is gone now
        self._ending = why, posted, until
        self.engine.loop.drain()

    @property
    def waits(self) -> bool:
        """Return whether something waits for room, or for the last that it said."""
        return self._ending is not None or super().waits

    def pump(self) -> None:
        """Go on with what waited; lose who has ended, and has no more to say."""
        if self._ending is not None:
            why, posted, until = self._ending
            if self.link.taken >= posted or time.monotonic() >= until:
                self.lose(why)
                return
        super().pump()

    def part(self, why: str = "") -> None:
        """Tell it that nothing more comes from here; `close` waits until it has all."""
        if not self._closed:
            self.tell({"say": "bye", "why": why, "posted": self.link.posted})
            self._closed = "this engine closed the connection"
            self._part_by = time.monotonic() + _PART_S

    def _share(self, region: Region) -> None:
        with self.engine.lock:
            self._regions[region.name] = region
            wanted = self._wanted.pop(region.name, [])
        for pending in wanted:
            pending.finish(region)

    def refuse(self, number: int, why: str) -> None:
        """Let a transfer fail on both sides."""
        self.tell({"say": "refused", "number": number, "why": why[:2000]})
        self._refused(number, why)

    def _refused(self, number: int, why: str) -> None:
        transfer = self.forget(number)
        if transfer is not None:
            transfer.fail(
                failure(TransferError, why, peer=self.name, path=transfer.path)
            )

    def lose(self, why: str) -> None:
        """End it: everything under way fails, and says why."""
        with self.engine.lock:
            if self.lost:
                return
            self.lost = self._closed or why or "it is gone"
            wanted = [p for some in self._wanted.values() for p in some]
            begun = [*self.begun, *self._transfers.values()]
        self.link.gone[0] = 1
        self._notes.clear()
        self.engine.drop(self)
        self.ready.fail(self.error())
        self._parted.finish(None)
        for pending in wanted:
            pending.fail(self.error())
        for kept in self._asked.values():
            kept.fail(self.error())
        for transfer in begun:
            transfer.word[0] = 1
            transfer.stop(EngineLost, self.lost)
        self.forget_all()
        self.engine.loop.call(self._close)

    def disown(self, why: str) -> None:
        """Be of no use in a child that this process forks; nothing is said."""
        self.lost = self.lost or why
        self._notes.clear()
        self._connection.close()
        if self._pidfd is not None:
            self._pidfd.close()
        self.link.disown()

    def _close(self) -> None:
        self.link.close()
        until = time.monotonic() + _PART_S
        while not self.link.leave() and time.monotonic() < until:
            time.sleep(_LOOK_S)  # a copy sees soon that it is not wanted
        self._connection.close()

    def let_go(self) -> None:
        """Give back what tells whether its process lives."""
        if self._pidfd is not None:
            self._pidfd.close()

    def close(self, why: str = "") -> None:
        """End the connection; the peer hears of it, and all that was said before."""
        self.part(why)
        if self.is_far and not self.lost:
            # What is still to be sent needs this end; it hangs up when it has it.
            self.engine.loop.wait_for(self._parted, self._part_by)
        self.lose(self._closed)
