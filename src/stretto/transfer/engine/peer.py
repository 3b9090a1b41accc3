"""Another engine: its memory, the link to it, and what is under way with it."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import (
    CallError,
    ChecksumError,
    EngineLost,
    StaleMemory,
    TransferError,
    UnknownNameError,
)
from stretto.meeting.wire import Connection, Descriptor, Frame, Refused
from stretto.transfer.copying.words import Status
from stretto.transfer.engine.pending import Pending
from stretto.transfer.engine.staged import Receiving, Sending, copied, read_request
from stretto.transfer.engine.transfer import Transfer, failure
from stretto.transfer.links.link import Link, Record, functions, notice
from stretto.transfer.links.words import NUM_MARKS, STAGE_BYTES, TAG_BYTES, Kind
from stretto.transfer.memory.board import PeerBoard
from stretto.transfer.memory.mapping import Shared
from stretto.transfer.memory.region import Region, untold

if TYPE_CHECKING:
    from stretto.transfer.engine.engine import Engine

__all__ = ["Peer"]

_MOST_OPEN = 4096
_MOST_NOTES = 256
_MOST_ARENAS = 4096


class Peer:
    """What `engine.connect(...)` gives: `peer["kv"]` is its memory of that name."""

    def __init__(
        self, engine: Engine, name: str, link: Link, connection: Connection, *,
        is_first: bool, pid: int = 0, pidfd: Descriptor | None = None,
        board: Shared | None = None, reaches: bool = False, why_not: str = "",
        address: str = "",
    ) -> None:  # fmt: skip
        self.engine, self.name, self.link = engine, name, link
        self._connection = connection
        self.pid, self._pidfd, self.address = pid, pidfd, address
        self.board = None if board is None else PeerBoard(board)
        self.reaches, self.why_not = reaches, why_not
        """Whether the kernel copies between our memories, and why not."""
        self.lost = ""
        """Why it is gone, or nothing."""
        self.ready: Pending[Peer] = Pending(engine.loop, f"connection to {name!r}")
        self._regions: dict[str, Region] = {}
        self._wanted: dict[str, list[Pending[Region]]] = {}
        self._arenas: dict[int, Shared] = {}
        self._numbers = itertools.count(int(is_first), 2)
        self._marks = list(range(1, NUM_MARKS))
        self._transfers: dict[int, Transfer] = {}
        self._sending: dict[int, Sending] = {}
        self._receiving: dict[int, tuple[Receiving, dict[str, Any]]] = {}
        self.begun: set[Transfer] = set()
        self._notes: dict[tuple[bytes, int], tuple[int, NDArray[np.int64]]] = {}

    @property
    def is_far(self) -> bool:
        """Return whether it is on another host, or is treated so."""
        return self.link.hop is not None

    @property
    def is_self(self) -> bool:
        """Return whether it lives in this process."""
        return self.pid == os.getpid() and not self.is_far

    def __getitem__(self, name: str) -> Region:
        """Return its memory of a name."""
        self._check()
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
        if found is not None:
            pending.finish(found)
        elif self.lost:
            pending.fail(self.error())
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
        known = self._notes.get((tag, count))
        if known is None:
            known = self._note(tag, count)
        if self.lost or self.link.hop is not None:
            self.post(known[1].tobytes())
            return
        said = functions().post(self.link.at, known[0])
        if said > 1:
            self.link.wake()
        elif not said:
            self.post(known[1].tobytes())

    def _note(self, tag: bytes, count: int) -> tuple[int, NDArray[np.int64]]:
        """Return a notification's record and its address, and remember them."""
        if len(self._notes) >= _MOST_NOTES:
            self._notes.clear()
        record = np.frombuffer(notice(tag, count), np.int64).copy()
        known = self._notes[tag, count] = int(record.ctypes.data), record
        return known

    def explain(self) -> str:
        """Return which way bytes go to each of its memories, and why no better one."""
        return self.engine.explain(self)

    def error(self) -> EngineLost:
        """Return the error of a peer that is gone."""
        error = EngineLost(f"engine {self.name!r} is gone: {self.lost}")
        error.peer = self.name
        return error

    def _check(self) -> None:
        if self.lost:
            raise self.error()

    def give_up(self) -> None:
        """Raise when it is of no use to wait for it."""
        if not self.lost and self.is_dead():
            self.lose("its process has ended")
        self._check()

    def is_dead(self) -> bool:
        """Return whether its process is known to have ended."""
        if self._pidfd is None:
            return False
        poll = select.poll()
        poll.register(self._pidfd.number, select.POLLIN)
        return bool(poll.poll(0))

    def post(self, record: bytes) -> None:
        """Post a record; EngineLost: there is nobody who could read it."""
        self._check()
        self.link.post(record, self.give_up)

    def say(self, kind: Kind, *words: int) -> None:
        """Post a record of words."""
        self._check()
        self.link.say(kind, *words, give_up=self.give_up)

    def tell(self, body: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Tell it something by its connection; descriptors stay ours."""
        if self.lost:
            return
        held = [Descriptor(os.dup(fd)) for fd in fds]
        with contextlib.suppress(OSError), self.engine.lock:
            self._connection.post(body, held)

    # Marks: where we say that we write to its memory.

    def take_mark(self) -> int | None:
        """Return a mark that nobody uses."""
        with self.engine.lock:
            return self._marks.pop() if self._marks else None

    def give_mark(self, mark: int) -> None:
        """Let a mark be used again."""
        with self.engine.lock:
            self._marks.append(mark)

    # Transfers by stages.

    def begin(
        self, transfer: Transfer, body: bytes, work: Sending | Receiving, number: int
    ) -> None:
        """Ask for a transfer by stages; its bytes go, or come, from then on."""
        self._transfers[number] = transfer
        if isinstance(work, Receiving):
            self._receiving[number] = work, {}
        self._open(number, body)
        if isinstance(work, Sending) and not work.is_over:
            self._sending[number] = work
            self.engine.loop.wake()
            if not self.engine.loop.is_here:
                self.engine.loop.drain()

    def number(self) -> int:
        """Return a transfer's number, unique for this link."""
        return next(self._numbers)

    def _open(self, number: int, body: bytes) -> None:
        link = self.link
        with link.staging:
            while (place := link.place(len(body))) is None:
                self.give_up()
                link.progress()
                os.sched_yield()
            at = link.out_address(place)
            link.fill(at, body)
            link.carry(at, place, len(body), self.give_up)
            self.say(Kind.OPEN, number, place, len(body))

    def drop(self, number: int) -> None:
        """Say that a transfer is not wanted any more."""
        transfer = self._transfers.pop(number, None)
        self._sending.pop(number, None)
        if transfer is not None and not self.lost:
            with contextlib.suppress(TransferError):
                self.say(Kind.DROP, number)

    def pump(self) -> None:
        """Send what there is room for."""
        with self.link.staging:
            for number, sending in list(self._sending.items()):
                if sending.pump():
                    self._sending.pop(number, None)

    def take(self, record: Record) -> None:
        """Deal with a record; ValueError and such end the connection."""
        kind, number = Kind(record[0]), record[1]
        match kind:
            case Kind.NOTIFY:
                size = record[3]
                if not 0 < size <= TAG_BYTES or not 0 < record[2] <= 1 << 32:
                    raise ValueError("a notification of no name")
                raw = b"".join(w.to_bytes(8, "little", signed=True) for w in record[4:])
                if why := self.engine.counts.add(raw[:size], record[2]):
                    raise ValueError(why)
            case Kind.OPEN:
                self._opened(number, record[2], record[3])
            case Kind.DATA:
                self._data(number, *record[2:7])
            case Kind.END:
                self._ended(number, record[2], record[3])
            case Kind.DROP:
                self._sending.pop(number, None)
                self._receiving.pop(number, None)

    def _opened(self, number: int, place: int, nbytes: int) -> None:
        if not 0 < nbytes <= STAGE_BYTES or not 0 <= place % STAGE_BYTES + nbytes <= (
            STAGE_BYTES
        ):
            raise ValueError("a request outside of the stage")
        body = copied(self.link.in_address(place), nbytes)
        self.link.give_back(place, nbytes)
        if len(self._sending) + len(self._receiving) > _MOST_OPEN:
            raise ValueError("more transfers at once than anybody needs")
        header, pages, data = read_request(body)
        try:
            made = self.engine.asked(self, number, header, pages)
        except (CallError, TransferError, UnknownNameError) as e:
            if isinstance(e, StaleMemory):
                self.say(Kind.END, number, int(Status.STALE), 0)
            else:
                self.tell({"say": "refused", "number": number, "why": str(e)[:2000]})
            return
        if isinstance(made, Sending):
            self._sending[number] = made
            return
        if header.get("inline"):
            made.inline(data)
            self._arrived(number, made, header, None)
        else:
            self._receiving[number] = made, header

    def _data(
        self, number: int, part: int, first: int, last: int, place: int, nbytes: int
    ) -> None:
        found = self._receiving.get(number)
        if found is None:  # it was dropped: only the room is given back
            if not 0 <= nbytes <= STAGE_BYTES:
                raise ValueError("a part of no size")
            self.link.give_back(place, nbytes)
            return
        receiving, _ = found
        receiving.take(part, first, last, place, nbytes)
        transfer = self._transfers.get(number)
        if transfer is not None:
            transfer.bytes_done = receiving.moved
            transfer.blocks_done = receiving.chunks_done

    def _ended(self, number: int, status: int, total: int) -> None:
        found = self._receiving.pop(number, None)
        transfer = self._transfers.pop(number, None)
        if found is None:
            self._answered(transfer, Status(status))
            return
        receiving, header = found
        if transfer is None:
            self._arrived(number, receiving, header, total)
        elif status == Status.DONE and receiving.is_full:
            if transfer.checked and receiving.summed() != total:
                transfer.stop(ChecksumError, "what arrived is not what was sent")
            else:
                transfer.complete()
        else:
            self._answered(transfer, Status(status))

    def _answered(self, transfer: Transfer | None, status: Status) -> None:
        """End a transfer of ours as the peer says."""
        if transfer is None:
            return
        if status is Status.DONE:
            transfer.complete()
        elif status is Status.STALE:
            transfer.stop(StaleMemory, "the memory was given to someone else meanwhile")
        elif status is Status.CANCELLED:
            transfer.stop(ChecksumError, "what arrived is not what was sent")
        else:
            transfer.stop(TransferError, "the peer refuses it")

    def _arrived(
        self, number: int, made: Receiving, header: Mapping[str, Any], total: int | None
    ) -> None:
        """End a put of the peer's."""
        status = made.status if made.is_full else Status.FAILED
        checked = status is Status.DONE and header.get("sum") and total is not None
        if checked and made.summed() != total:
            status = Status.CANCELLED
        if status is Status.DONE and (tag := header.get("notify")):
            raw = bytes.fromhex(str(tag))
            if not 0 < len(raw) <= TAG_BYTES:
                raise ValueError("a notification of no name")
            self.engine.counts.add(raw, 1)
        self.say(Kind.END, number, int(status), 0)

    # Its connection.

    def hear(self, events: int) -> None:
        """Deal with what came by the connection."""
        try:
            self._connection.flush()
            frames = self._connection.receive()
        except (EOFError, OSError):
            self.lose(
                "its process has ended" if self.is_dead() else "it hung up",
            )
            return
        self.told(frames)

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
            case "ready":
                self.ready.finish(self)
            case "bye":
                self.lose(f"it closed: {str(said.get('why', ''))[:200]}")
            case other:
                raise ValueError(f"{str(other)[:40]!r}")

    def _share(self, region: Region) -> None:
        with self.engine.lock:
            self._regions[region.name] = region
            wanted = self._wanted.pop(region.name, [])
        for pending in wanted:
            pending.finish(region)

    def _refused(self, number: int, why: str) -> None:
        transfer = self._transfers.pop(number, None)
        self._sending.pop(number, None)
        self._receiving.pop(number, None)
        if transfer is not None:
            transfer.fail(
                failure(TransferError, why, peer=self.name, path=transfer.path)
            )

    def lose(self, why: str) -> None:
        """End it: everything under way fails, and says why."""
        with self.engine.lock:
            if self.lost:
                return
            self.lost = why or "it is gone"
            wanted = [p for some in self._wanted.values() for p in some]
            begun = [*self.begun, *self._transfers.values()]
        self.link.gone[0] = 1
        self.engine.drop(self, self._connection)
        self.ready.fail(self.error())
        for pending in wanted:
            pending.fail(self.error())
        for transfer in begun:
            transfer.word[0] = 1
            transfer.stop(EngineLost, self.lost)
        self._transfers.clear()
        self._sending.clear()
        self._receiving.clear()
        self.engine.loop.call(self._close)

    def _close(self) -> None:
        self.link.close()
        self._connection.close()

    def close(self, why: str = "") -> None:
        """End the connection; the peer hears of it."""
        self.tell({"say": "bye", "why": why})
        self.lose("this engine closed the connection")
