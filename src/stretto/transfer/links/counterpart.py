"""The engine at the other end of a link: who it is, whether it lives, and our marks."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from stretto.errors import CallError, EngineLost
from stretto.fabric.memory import Shared
from stretto.fabric.wire import Connection, Descriptor
from stretto.transfer.links.link import Link
from stretto.transfer.links.words import MARKS, NUM_MARKS, Kind
from stretto.transfer.memory.board import PeerBoard


class Counterpart(ABC):
    """What transfers need of a peer; what is under way with it knows `Peer`."""

    def __init__(
        self, name: str, link: Link, connection: Connection, *, pid: int = 0,
        pidfd: Descriptor | None = None, board: Shared | None = None,
        reaches: bool = False, why_not: str = "", address: str = "",
        identity: str = "", meeting: str = "", carrier: str = "",
    ) -> None:  # fmt: skip
        self.name, self.link, self._connection = name, link, connection
        self.pid, self._pidfd, self.address = pid, pidfd, address
        self.carrier = carrier
        """What brings bytes to it, where no memory is shared."""
        self.lost = ""
        """Why it is gone, or nothing."""
        self._has_died = False
        self.identity, self.meeting = identity, meeting
        """What tells it from all other engines; and this connection from others."""
        self.board = None if board is None else PeerBoard(board)
        self.reaches, self.why_not = reaches, why_not
        """Whether the kernel copies between our memories, and why not."""
        self._arenas: dict[int, Shared] = {}
        self.lock = threading.RLock()
        self._marks = list(range(1, NUM_MARKS))
        self.begun: set[Any] = set()
        """The transfers that this process does alone."""

    @abstractmethod
    def lose(self, why: str) -> None:
        """End it: everything under way fails, and says why."""

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

    @property
    def arenas(self) -> list[Shared]:
        """Return its arenas, as they are mapped here."""
        return list(self._arenas.values())

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
        if not self.lost and self.is_far and (why := self.link.fault):
            self.lose(why)
        if self.lost:
            raise self.error()

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

    # What is said to it.

    def tell(self, body: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Tell it something by its connection; descriptors stay ours."""
        if self.lost:
            return
        held = [Descriptor(os.dup(fd)) for fd in fds]
        with contextlib.suppress(OSError), self.lock:
            self._connection.post(body, held)

    def post(self, record: bytes) -> None:
        """Post a record; EngineLost: there is nobody who could read it."""
        self.check()
        self.link.post(record, self.give_up)

    def say(self, kind: Kind, *words: int) -> None:
        """Post a record of words."""
        self.check()
        self.link.say(kind, *words, give_up=self.give_up)

    # Marks: where we say that we write to its memory.

    def take_mark(self) -> tuple[int, int]:
        """Return a mark that nobody uses, and where it lies."""
        with self.lock:
            if not self._marks:
                raise CallError(f"too many transfers with engine {self.name!r} at once")
            mark = self._marks.pop()
        return mark, self.link.out + MARKS + 8 * mark

    def release(self, mark: int, transfer: Any = None) -> None:
        """Let a mark be used again; what used it is not under way any more."""
        with self.lock:
            self._marks.append(mark)
            self.begun.discard(transfer)

    # Its end.

    def let_go(self) -> None:
        """Give back what tells whether its process lives."""
        if self._pidfd is not None:
            self._pidfd.close()

    def disown(self, why: str) -> None:
        """Be of no use in a child that this process forks; nothing is said."""
        self.lost, self.lock = self.lost or why, threading.RLock()
        self._connection.close()
        self.let_go()
        self.link.disown()
