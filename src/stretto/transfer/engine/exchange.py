"""The records between two engines, and the transfers that go by them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from stretto.errors import (
    CallError,
    PlanError,
    StaleMemory,
    TransferError,
    UnknownNameError,
)
from stretto.fabric.wire import Connection
from stretto.transfer.copying.words import Status
from stretto.transfer.engine.ground import Ground
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.links.fields import Opened
from stretto.transfer.links.link import Link, Record
from stretto.transfer.links.notices import MOST_AT_ONCE
from stretto.transfer.links.words import BY_KEPT, STAGE, STAGE_BYTES, TAG_BYTES, Kind
from stretto.transfer.ways.pending import Pending
from stretto.transfer.ways.request import answer, pack_request, read_request
from stretto.transfer.ways.staged import Receiving, Sending
from stretto.transfer.ways.transfer import Transfer, failure

_MOST_OPEN = 4096


class Exchange(Counterpart):
    """What goes by a link; who is there, and what it shares, says `Peer`."""

    def __init__(
        self, engine: Ground, name: str, link: Link, connection: Connection, *,
        is_first: bool, **about: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, link, connection, carrier=engine.hop, **about)
        self.engine = engine
        self._numbers = itertools.count(int(is_first), 2)
        self._transfers: dict[int, Transfer] = {}
        self._sending: dict[int, Sending] = {}
        self._waiting: dict[int, Sending] = {}
        """What is sent when the peer has said where to."""
        self._receiving: dict[int, tuple[Receiving, dict[str, Any]]] = {}
        self._asked: dict[int, Pending[tuple[int, int]]] = {}
        """What the peer is asked to keep ready."""
        self._fields_kept: dict[int, Opened] = {}
        """The fields of what is kept ready for the peer."""
        self.quick: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """Who waits for answers, by number."""

    def begin(
        self, transfer: Transfer, body: bytes, work: Sending | Receiving, number: int
    ) -> None:
        """Ask for a transfer by stages; its bytes go, or come, from then on."""
        self._transfers[number] = transfer
        if isinstance(work, Receiving):
            self._receiving[number] = work, {}
            transfer.how_far = work.how_far
        elif work.is_direct:
            self._waiting[number] = work
        self._open(number, body)
        if isinstance(work, Sending) and not (work.is_over or work.is_direct):
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
        if self._sending:
            self.engine.loop.wake()

    def drop(self, number: int) -> None:
        """Say that a transfer is not wanted any more."""
        transfer = self.forget(number)
        if transfer is not None and not self.lost:
            with contextlib.suppress(TransferError):
                self.say(Kind.DROP, number)

    def forget(self, number: int) -> Transfer | None:
        """Forget a transfer, which returns; nothing of it is stored any more."""
        transfer = self._transfers.pop(number, None)
        self._waiting.pop(number, None)
        sending = self._sending.pop(number, None)
        if sending is not None:
            sending.stop()
        found = self._receiving.pop(number, None)
        if found is not None:
            found[0].close()
        return transfer

    def forget_all(self) -> None:
        """Forget all transfers."""
        for some in (self._transfers, self._waiting, self._sending, self._receiving):
            for number in list(some):
                self.forget(number)
        for opened in self._fields_kept.values():
            self.link.close_field(opened)
        self._fields_kept.clear()

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

    @property
    def waits(self) -> bool:
        """Return whether something waits for room in the stage, or for a GPU."""
        return bool(self._sending)

    def pump(self) -> None:
        """Send what there is room for; lose who has hung up."""
        hop = self.link.hop
        if hop is not None and hop.has_ended and not self.lost:
            self.lose(f"it hung up ({next(iter(hop.faults().values()))})")
            return
        self.link.settle()
        if not self._sending or not self.link.staging.acquire():
            return  # who places bytes now sees to it
        try:
            for number, sending in list(self._sending.items()):
                if sending.pump():
                    self._sending.pop(number, None)
                if sending.failed:
                    self.refuse(number, sending.failed)
        finally:
            self.link.staging.release()
        if self._sending and not self.engine.loop.is_here:
            self.engine.loop.wake()  # it may sleep, and room wakes nobody

    def take(self, record: Record) -> None:
        """Deal with a record; ValueError and such end the connection."""
        kind, number = Kind(record[0]), record[1]
        match kind:
            case Kind.NOTIFY:
                size = record[3]
                if not 0 < size <= TAG_BYTES or not 0 < record[2] <= MOST_AT_ONCE:
                    raise ValueError("a notification of no name")
                raw = b"".join(w.to_bytes(8, "little", signed=True) for w in record[4:])
                if why := self.engine.counts.add(raw[:size], record[2]):
                    raise ValueError(why)
            case Kind.OPEN:
                self._opened(number, record[2], record[3])
            case Kind.DATA:
                self._data(number, *record[2:7])
            case Kind.END:
                self._ended(number, record[2], record[3], record[4])
            case Kind.GO:
                self._go(number, record[2])
            case Kind.FORGET:
                self.link.forget(number)
                opened = self._fields_kept.pop(number, None)
                if opened is not None:
                    self.link.close_field(opened)
            case Kind.QUICK_PUT | Kind.QUICK_GET:
                self.link.serve()
            case Kind.DONE:
                waiting = self.quick.get(number >> 32)
                if waiting is not None:
                    waiting.take(number)
            case Kind.DROP:
                self.forget(number)

    def _opened(self, number: int, place: int, nbytes: int) -> None:
        if not 0 < nbytes <= STAGE_BYTES - place % STAGE_BYTES:
            raise ValueError("a request outside of the stage")
        body = self.link.read(STAGE + place % STAGE_BYTES, nbytes)
        self.link.give_back(place, nbytes)
        if len(self._sending) + len(self._receiving) > _MOST_OPEN:
            raise ValueError("more transfers at once than anybody needs")
        header, pages, data = read_request(body)
        try:
            engine = self.engine
            region = engine.shelf.find(str(header.get("region")))
            made = answer(
                engine.board, self, number, region, header, pages,
                lambda: engine.gpu.ring(self),
            )  # fmt: skip
        except (CallError, PlanError, TransferError, UnknownNameError) as e:
            if isinstance(e, StaleMemory):
                self.say(Kind.END, number, int(Status.STALE), 0)
            else:
                self.tell({"say": "refused", "number": number, "why": str(e)[:2000]})
            return
        if header.get("keep"):
            self._keep(number, made)
            return
        if isinstance(made, Sending):
            self._sending[number] = made
            return
        if header.get("inline"):
            made.inline(data)
            self._arrived(number, made, header, None)
            return
        self._receiving[number] = made, header
        if header.get("direct"):
            opened = made.open()
            self.say(Kind.GO, number, 0 if opened is None else opened.offset)

    def _go(self, number: int, to: int) -> None:
        """Send a put, now that the peer has said where to."""
        sending = self._waiting.pop(number, None)
        if sending is not None:
            sending.go(to)
            self._sending[number] = sending
            self.pump()

    def _keep(self, number: int, made: Sending | Receiving) -> None:
        """Keep a transfer ready that the peer prepares, and tell it the number."""
        kept, link = -1, self.link
        is_put = isinstance(made, Receiving)
        how: dict[str, Any] = {}
        opened = None
        if isinstance(made, Receiving):
            opened = made.open(BY_KEPT) if link.is_quick and made.is_direct else None
            if opened is not None:
                how["field"] = opened.offset
        elif made.to:
            how.update(field=made.to, pieces=made.pieces, guard=made.works[0].guarded)
        is_one = len(made.works) == 1 and not made.works[0].is_on_gpu
        if link.is_quick and not how and is_one:
            made.works[0].mark(link.marks + 8 * BY_KEPT)
            how["work"] = made.works[0]
        if how:
            nbytes = sum(work.packed_bytes for work in made.works)
            kept = link.keep(nbytes, is_put=is_put, holds=made, **how)
        if opened is not None:
            if kept < 0:
                link.close_field(opened)
            else:
                self._fields_kept[kept] = opened
        self.say(Kind.END, number, int(Status.DONE), kept, how.get("field", 0))

    def keep(self, header: dict[str, Any], pages: Any) -> Pending[tuple[int, int]]:
        """Have the peer keep a transfer ready: its number, and its field or 0.

        Below 0: it does not.
        """
        number = self.number()
        kept: Pending[tuple[int, int]]
        kept = Pending(self.engine.loop, "a prepared transfer")
        self._asked[number] = kept
        self._open(number, pack_request({**header, "keep": True}, pages))
        return kept

    def unkeep(self, kept: int) -> None:
        """Say that a prepared transfer need not be kept any more."""
        if not self.lost:
            with contextlib.suppress(TransferError):
                self.say(Kind.FORGET, kept)

    def _data(
        self, number: int, part: int, first: int, last: int, place: int, nbytes: int
    ) -> None:
        found = self._receiving.get(number)
        if found is None:  # it was dropped: only the room is given back
            if not 0 <= nbytes <= STAGE_BYTES - place % STAGE_BYTES:
                raise ValueError("a part of no size")
            self.link.give_back(place, nbytes)
            return
        receiving, _ = found
        transfer = self._transfers.get(number)
        if transfer is None:
            receiving.take(part, first, last, place, nbytes)
            return
        with transfer.turn:  # who takes it back waits for this
            if transfer.is_ending:
                self.link.give_back(place, nbytes)
                return
            receiving.take(part, first, last, place, nbytes)

    def _ended(self, number: int, status: int, total: int, field: int) -> None:
        kept = self._asked.pop(number, None)
        if kept is not None:
            kept.finish((total, field))
            return
        found = self._receiving.pop(number, None)
        transfer = self._transfers.pop(number, None)
        said = Status(status)
        if found is not None:
            receiving, header = found
            receiving.close()  # all that is announced has landed
            if transfer is None:
                self._arrived(number, receiving, header, total)
                return
            if said is Status.DONE:
                said = receiving.ended(total if transfer.checked else None)
            elif receiving.status is not Status.DONE:
                said = receiving.status
        if transfer is not None:
            transfer.end(said, peer_says=True)

    def _arrived(
        self, number: int, made: Receiving, header: Mapping[str, Any], total: int | None
    ) -> None:
        """End a put of the peer's."""
        status = made.ended(total if header.get("sum") else None)
        if status is Status.DONE and (tag := header.get("notify")):
            raw = bytes.fromhex(str(tag))
            if not 0 < len(raw) <= TAG_BYTES:
                raise ValueError("a notification of no name")
            self.engine.counts.add(raw, 1)
        self.say(Kind.END, number, int(status), 0)
