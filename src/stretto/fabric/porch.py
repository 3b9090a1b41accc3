"""Where strangers stand: at a socket that listens, until they have proved who they are.

Who is there for too long is sent away, and so is the oldest of the source that most
have come from when there are too many, or no descriptor is left; each is told why.
Whoever has proved itself is no stranger, and makes room for nobody.
"""

from __future__ import annotations

import errno
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from stretto.errors import StrettoError
from stretto.fabric import alive, tls
from stretto.fabric.handshake import WORDS, Handshake
from stretto.fabric.loop import Loop, Timer, say_fault
from stretto.fabric.patience import MOST_STRANGERS, NO_ROOM_S, STRANGER_S

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that say that this process or its host lacks something, for now."""
_SILENTLY = (
    "it hung up without a word; was it too busy, or does one of us alone speak TLS?"
)
T = TypeVar("T")


def first_to_go(strangers: Mapping[T, str]) -> T | None:
    """Return the oldest of the source that most have come from; None: nobody is there.

    `strangers` are in the order in which they came, each with its source.
    """
    counted = Counter(strangers.values())
    if not counted:
        return None
    busiest = counted.most_common(1)[0][0]
    return next(one for one, source in strangers.items() if source == busiest)


class Knock:
    """A connection whose ends are proving themselves, in a loop; of either end."""

    def __init__(
        self, loop: Loop, sock: socket.socket, shake: Handshake, *,
        met: Callable[[Knock], None], refused: Callable[[Knock], None],
        source: str = "",
    ) -> None:  # fmt: skip
        """Begin; OSError: the connection is of no use, and is closed.

        Who has hung up already may have said why: that is heard in the loop.
        """
        self._loop, self.sock, self.shake = loop, sock, shake
        self._met, self._refused, self.source = met, refused, source
        self.is_over = self.hung_up = False
        """Whether it has ended, and whether nobody said why: neither end, nor TLS."""
        self.why = ""
        """Why it came to nothing; continues a sentence about the other end."""
        try:
            sock.setblocking(False)
            alive.watch(sock, read_late=True)
            self._say(shake.begin())
        except OSError:
            sock.close()
            raise
        loop.watch(sock, self._hear, fault=self._fail)

    def _hear(self) -> None:
        data = b"?"
        try:
            while data and not self.shake.is_over:
                data = self.sock.recv(self.shake.want)
                if said := self.shake.hear(data):
                    self._say(said)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            is_end = isinstance(e, ConnectionError)
            why = _SILENTLY if is_end else str(e.strerror)
            self._hung_up(self.shake.refusal, why)
            return
        if self.shake.refusal:
            self.end(self.shake.refusal)
        elif not data:
            self._hung_up("", _SILENTLY)
        elif self.shake.theirs is not None:
            self.is_over = True
            self._loop.unwatch(self.sock)
            self._met(self)

    def _say(self, said: bytes) -> None:
        with suppress(ConnectionError):  # what it said before it hung up is still read
            self.sock.send(said)  # short enough for an empty buffer

    def _hung_up(self, said: str, otherwise: str) -> None:
        why = said or tls.reason(self.sock)
        self.hung_up = not why
        self.end(why or otherwise)

    def _fail(self, error: Exception) -> None:
        self.end(f"{type(error).__name__}: {error}")
        self.sock.close()  # it was met, and then something was wrong

    def dismiss(self, word: str) -> None:
        """Hang up on who has proved nothing, with one of the few words for that."""
        if not self.is_over:
            with suppress(OSError):
                self.sock.send(self.shake.dismiss(word))
            self.end(WORDS[word])

    def end(self, why: str) -> None:
        """Hang up."""
        if not self.is_over:
            self.is_over, self.why = True, why
            self._loop.unwatch(self.sock)
            self._refused(self)
            self.sock.close()

    def forget(self) -> None:
        """Close what a child that this process forks has of it; nothing is said."""
        self.is_over = True
        self.sock.close()


class Entry:
    """A socket that listens, in a loop; `take` is given who comes, and from where."""

    def __init__(
        self, loop: Loop, listener: socket.socket,
        take: Callable[[socket.socket, str], None], *,
        make_room: Callable[[], bool] = lambda: False,
        no_room: Callable[[OSError], None] = lambda error: None,
    ) -> None:  # fmt: skip
        """Lacking descriptors, `make_room` may free one; or else `no_room` hears."""
        listener.setblocking(False)
        self._loop, self._listener, self._take = loop, listener, take
        self._make_room, self._no_room = make_room, no_room
        self._pause: Timer | None = None
        self._listen()

    def _listen(self) -> None:
        self._loop.watch(self._listener, self._accept, fault=say_fault)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as e:
            if e.errno in NO_ROOM and not self._make_room():
                self._no_room(e)
                self._loop.unwatch(self._listener)
                self._pause = self._loop.at(time.monotonic() + NO_ROOM_S, self._listen)
            return
        source = str(address[0]) if isinstance(address, tuple) else ""
        try:
            self._take(sock, source)
        except (OSError, StrettoError):  # it has hung up, or there is nothing for it
            sock.close()
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """Listen no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.unwatch(self._listener)
        self._listener.close()

    def forget(self) -> None:
        """Close what a child that this process forks has of it."""
        self._listener.close()


class Porch:
    """See the module; `let_in` is given the knock of who has proved who it is."""

    def __init__(
        self, loop: Loop, listeners: Sequence[socket.socket],
        shake: Callable[[], Handshake], let_in: Callable[[Knock], None], *,
        turned_away: Callable[[Knock], None] = lambda knock: None,
        no_room: Callable[[OSError], None] = lambda error: None,
        read_late: bool = False,
    ) -> None:  # fmt: skip
        self._loop, self._shake, self._read_late = loop, shake, read_late
        self._let_in, self._turned_away = let_in, turned_away
        self._strangers: dict[Knock, Timer] = {}
        self._is_closed = False
        self._entries = [
            Entry(loop, one, self._take, make_room=self._make_room, no_room=no_room)
            for one in listeners
        ]

    def _take(self, sock: socket.socket, source: str) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            self._make_room()
        knock = Knock(
            self._loop, tls.secured(sock, server=True, read_late=self._read_late),
            self._shake(), met=self._met, refused=self._refused, source=source,
        )  # fmt: skip
        late = partial(knock.dismiss, "late")
        until = time.monotonic() + STRANGER_S
        self._strangers[knock] = self._loop.at(until, late)

    def _make_room(self) -> bool:
        """Send one away; return whether there was one."""
        goes = first_to_go({knock: knock.source for knock in self._strangers})
        if goes is not None:
            goes.dismiss("full")
        return goes is not None

    def _met(self, knock: Knock) -> None:
        self._strangers.pop(knock).cancel()
        self._let_in(knock)

    def _refused(self, knock: Knock) -> None:
        self._strangers.pop(knock).cancel()
        if not self._is_closed:
            self._turned_away(knock)

    def close(self) -> None:
        """Let nobody in any more; those that stand there will find out why."""
        self._is_closed = True
        for entry in self._entries:
            entry.close()
        for knock in list(self._strangers):
            knock.end("the door is closed")

    def forget(self) -> None:
        """Close what a child that this process forks has of it."""
        for entry in self._entries:
            entry.forget()
        for knock in self._strangers:
            knock.forget()
