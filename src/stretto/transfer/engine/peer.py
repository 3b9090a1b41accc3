"""Another engine: its memory, the link to it, and what is under way with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import (
    CallError,
    EngineLost,
    UnknownNameError,
    WireError,
)
from stretto.fabric.memory import Shared
from stretto.fabric.wire import Connection, Frame, Refused
from stretto.transfer.engine.exchange import Exchange
from stretto.transfer.engine.ground import Ground
from stretto.transfer.links.link import Link, notice
from stretto.transfer.loader import functions
from stretto.transfer.regions.region import Region, load
from stretto.transfer.ways.paths import explained
from stretto.transfer.ways.pending import Pending

_MOST_OPEN = 4096
_MOST_NOTES = 256
_MOST_ARENAS = 4096
_LOOK_S = 0.0002
_PART_S = 1.0
"""How long what a peer said before it ended may take to be here, or to be sent."""


class Peer(Exchange):
    """What `engine.connect(...)` gives: `peer["kv"]` is its memory of that name."""

    def __init__(
        self, engine: Ground, name: str, link: Link, connection: Connection, *,
        is_first: bool, **about: Any,
    ) -> None:  # fmt: skip
        super().__init__(engine, name, link, connection, is_first=is_first, **about)
        self.ready: Pending[None] = Pending(engine.loop, f"connection to {name!r}")
        """It has no result: a peer that is lost goes without the garbage collector."""
        self._regions: dict[str, Region] = {}
        self._last_names: tuple[str, ...] = ()
        self._wanted: dict[str, list[Pending[Region]]] = {}
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

    def __repr__(self) -> str:
        """Return its name, and whether it is still there."""
        return f"<Peer {self.name!r}{', lost' if self.lost else ''}>"

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
        with self.lock:
            found = self._regions.get(name)
            if found is None and not self.lost:
                self._wanted.setdefault(name, []).append(pending)
        if self.lost:
            pending.fail(self.error())
        elif found is not None:
            pending.finish(found)
        return pending

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its memory, sorted."""
        return tuple(sorted(self._regions or self._last_names))

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
        compiled, link = functions(), self.link
        if count != 1 or link.by_python is not None:
            return
        if len(self._notes) >= _MOST_NOTES:
            self._notes.clear()
        announce = compiled.announce if link.hop is None else compiled.announce_far
        self._announce = compiled.direct(announce)
        note = np.array([self.link.at, *record], np.int64)
        self._notes[tag] = int(note.ctypes.data), note
        if self.lost:
            self._notes.clear()

    def explain(self) -> str:
        """Return which way bytes go to each of its memories, and why no better one."""
        self.engine.loop.check()
        regions = [] if self.lost else [self[name] for name in self.names]
        return explained(self, regions, has_gpu=self.engine.has_gpu)

    def tell(self, body: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Tell it something by its connection; what has no room yet follows later."""
        super().tell(body, fds)
        if self._connection.is_sending:
            self.engine.loop.call(self._mind)

    def _mind(self) -> None:
        if not self.lost:
            self.engine.loop.mind(self._connection)

    def send(self, topic: str, body: Mapping[str, Any]) -> None:
        """Say something to who follows a topic there: a JSON object, in order.

        Who is gone hears nothing; `Engine.follow` is told of that.
        """
        try:
            self.tell({"say": "topic", "topic": topic, "body": dict(body)})
        except (TypeError, ValueError, RecursionError, WireError) as e:
            raise CallError(
                f"engine {self.name!r}, topic {topic!r}: it takes a JSON object; {e}"
            ) from None

    def _rouse(self) -> None:
        """Have both ends look at a link again that nothing has come by for a while."""
        if not self.engine.loop.is_here:
            self.engine.loop.wake()
        self.tell({"say": "look"})

    # Its connection.

    def hear(self, events: int) -> None:
        """Deal with what came by the connection, or with its death."""
        has_died = self.is_dead()  # what it said before that is all there already
        try:
            with self.lock:  # others tell it something meanwhile
                self._connection.flush()
            self._mind()
            frames = self._connection.receive()
        except (EOFError, OSError):
            why = "its process has ended" if self.is_dead() else "it hung up"
            self._ends(why, self.link.come)
            return
        self.take_frames(frames)
        if not frames and has_died:  # a child of it holds the connection
            self._ends("its process has ended", self.link.come)

    def take_frames(self, frames: Sequence[Frame | Refused]) -> None:
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
                made = Shared.of_peer(int(said["nbytes"]), fd.take())
                self._arenas[int(said["id"])] = made
            case "share":
                self._share(
                    load(said, self.engine, self, self._arenas, frame.descriptors)
                )
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
                self.ready.finish(None)
                self.engine.topics.came(self)
            case "topic":
                self.engine.topics.heard(self, str(said["topic"]), dict(said["body"]))
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
        with self.lock:
            if not self.lost:
                self._regions[region.name] = region
            wanted = self._wanted.pop(region.name, [])
        for pending in wanted:
            pending.finish(region)

    def lose(self, why: str) -> None:
        """End it: everything under way fails, and says why."""
        with self.lock:
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
            transfer.stop(EngineLost, self.lost)
        self.forget_all()
        self.engine.topics.lost(self)
        self.engine.loop.call(self._close)

    def disown(self, why: str) -> None:
        """Be of no use in a child that this process forks; nothing is said."""
        super().disown(why)
        self._notes.clear()

    def _close(self) -> None:
        self.link.close()
        until = time.monotonic() + _PART_S
        while not self.link.leave() and time.monotonic() < until:
            time.sleep(_LOOK_S)  # a copy sees soon that it is not wanted
        self._connection.close()
        with self.lock:
            self._last_names = (*self._regions,)
            self._regions.clear()  # each refers to us, and keeps what we have mapped

    def close(self, why: str = "") -> None:
        """End the connection; the peer hears of it, and all that was said before."""
        self.part(why)
        while self._connection.is_sending and not self.lost:
            with self.lock:  # what had no room yet
                self._connection.flush()
            if time.monotonic() > self._part_by:
                break
            time.sleep(0.001)
        if self.is_far and not self.lost:
            # What is still to be sent needs this end; it hangs up when it has it.
            self.engine.loop.wait_for(self._parted, self._part_by)
        self.lose(self._closed)
