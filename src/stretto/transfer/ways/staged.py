"""Transfers through a link's stage: packed here, carried, and unpacked there.

Whoever has the bytes sends them, part by part, as there is room; whoever wants them
puts each part where it belongs, in the thread that takes records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.transfer.copying.pieces import are_long, pieces_of
from stretto.transfer.copying.words import Mode, Status
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.links.counterpart import Counterpart
from stretto.transfer.links.fields import Opened
from stretto.transfer.links.words import BY_FIELD, STAGE_BYTES, Kind

PART = 512 << 10
"""Bytes of a part: several are under way at once."""
INLINE = 16 << 10
_DIRECT = 64 << 10
"""Runs from which bytes are carried from where they lie."""
_NOTHING = np.zeros((0, 3), np.int64)


class Sending:
    """The side that has the bytes."""

    def __init__(
        self, peer: Counterpart, number: int, works: list[CopyWork], *, checked: bool,
        is_direct: bool = False, holds: object = None,
    ) -> None:  # fmt: skip
        """`is_direct`: the peer is asked where to; `holds` is what is read."""
        self.peer, self.number, self.works = peer, number, works
        self.checked, self.is_direct, self._holds = checked, is_direct, holds
        self.pieces: NDArray[np.int64] | None = None
        """What goes straight."""
        self.to = 0
        """The peer's field that it goes to, or 0."""
        self._part, self._row = 0, 0
        self._stop = np.zeros(1, np.int64)
        self._is_read_late = False
        """Whether a hop reads the memory itself, some time after it was told to."""
        self.is_over = False
        self.failed = ""
        """Why it ends on both sides, or nothing."""

    def go(self, to: int) -> None:
        """Send straight to a field, if there is one and that is of use."""
        self.is_direct = False
        if to and self.peer.link.is_quick and can_go_straight(self.works):
            pieces = pieces_of(self.works, is_source=True)
            if are_long(pieces):
                self.pieces, self.to = pieces, to

    def stop(self) -> None:
        """Send nothing more."""
        self._stop[0] = 1

    def _straight(self) -> bool:
        """Queue all of it for the peer's field; return whether there was room."""
        assert self.pieces is not None, "it goes straight"
        total = int(self.pieces[-1, 1] + self.pieces[-1, 2])
        record = (
            int(Kind.END), self.number, int(Status.DONE), self._sum(), 0, 0, self.to,
            total,
        )  # fmt: skip
        self.is_over = self.peer.link.send(
            self.pieces, self.to, record, cancel=int(self._stop.ctypes.data),
            guard=self.works[0].guarded, holds=self,
        )  # fmt: skip
        return self.is_over

    def inline(self) -> bytes:
        """Return all bytes at once, and send nothing more."""
        total = sum(work.packed_bytes for work in self.works)
        out = np.empty(max(1, total), np.uint8)
        at = int(out.ctypes.data)
        for work in self.works:
            work.part(0, work.rows, at)
            at += work.packed_bytes
        self.is_over = True
        return out[:total].tobytes()

    def pump(self) -> bool:
        """Send as much as there is room for; return whether all is sent."""
        link = self.peer.link
        if self.to and not self.is_over:
            return self._straight()
        while not self.is_over and self._part < len(self.works):
            work = self.works[self._part]
            each = work.row_bytes
            rows = min(work.rows - self._row, max(1, PART // each))
            place = link.place(rows * each)
            if place is None:
                return False
            status = self._send(work, rows, place)
            if status is not Status.DONE:
                link.unplace(place)
                self.end(status)
                return True
            self._row += rows
            if self._row == work.rows:
                self._part, self._row = self._part + 1, 0
        return self.is_over or self._all_sent()

    def _all_sent(self) -> bool:
        """Say that all is sent; return whether there was room to say so."""
        guard = self.works[0].guarded if self._is_read_late else (0, 0)
        if not guard[0]:
            self.end(Status.DONE)
            return True
        nbytes = sum(work.packed_bytes for work in self.works)
        record = (
            int(Kind.END), self.number, int(Status.DONE), self._sum(), 0, 0, 0, nbytes
        )  # fmt: skip
        self.is_over = self.peer.link.send(_NOTHING, 0, record, guard=guard, holds=self)
        return self.is_over

    def end(self, status: Status) -> None:
        """Send nothing more, and tell the peer how it ended."""
        self.is_over = True
        total = self._sum() if status is Status.DONE else 0
        self.peer.say(Kind.END, self.number, int(status), total)

    def _send(self, work: CopyWork, rows: int, place: int) -> Status:
        """Send runs, if the memory is still what was asked for."""
        link, each, nbytes = self.peer.link, work.row_bytes, rows * work.row_bytes
        if link.is_quick and each >= _DIRECT:
            self._is_read_late = True
            for nth in range(rows):
                source = work.source_of(self._row + nth)
                link.carry(source, place + nth * each, each, self.peer.give_up)
        else:
            at = link.out_address(place)
            status = work.part(self._row, self._row + rows, at)
            if status is not Status.DONE:
                return status
            link.carry(at, place, nbytes, self.peer.give_up)
        self.peer.say(
            Kind.DATA, self.number, self._part, self._row, self._row + rows, place,
            nbytes,
        )  # fmt: skip
        return Status.DONE

    def _sum(self) -> int:
        if not self.checked:
            return 0
        return _mixed(work.summed(Mode.SUM_SRC) for work in self.works)


class Receiving:
    """The side that wants the bytes."""

    def __init__(
        self, peer: Counterpart, works: list[CopyWork], *, is_direct: bool = False,
        holds: object = None,
    ) -> None:  # fmt: skip
        """`is_direct`: the peer would rather put straight; `holds` is written to."""
        self.peer, self.works = peer, works
        self.is_direct, self._holds = is_direct, holds
        self.field: Opened | None = None
        self._part, self._row = 0, 0
        self.status = Status.DONE

    def open(self, mark: int = BY_FIELD) -> Opened | None:
        """Open a field for it, if it is of use that the peer puts straight."""
        fields = self.peer.link.fields
        if fields is None or not can_go_straight(self.works):
            return None
        pieces = pieces_of(self.works, is_source=False)
        if are_long(pieces):
            epoch, want = self.works[0].guarded
            at = self.peer.link.marks + 8 * mark if epoch else 0
            self.field = fields.open(
                pieces, mark=at, epoch=epoch, want=want, holds=self._holds
            )
        return self.field

    def close(self) -> None:
        """Have nothing stored any more that the peer puts straight."""
        if self.field is not None:
            self.peer.link.close_field(self.field)
            if self.field.dropped and self.status is Status.DONE:
                self.status = Status.STALE

    def how_far(self) -> tuple[int, int]:
        """Return how many bytes, and how many chunks, have been stored."""
        return self.moved, self.chunks_done

    def inline(self, data: memoryview) -> None:
        """Unpack all of it; ValueError: it is not as much as was asked for."""
        if sum(work.packed_bytes for work in self.works) != len(data):
            raise ValueError("other bytes than the request asks for")
        held = np.frombuffer(data, np.uint8) if len(data) else np.empty(1, np.uint8)
        at = int(held.ctypes.data)
        for work in self.works:
            self._unpack(work, 0, work.rows, at)
            at += work.packed_bytes
        self._part = len(self.works)

    def take(self, part: int, first: int, last: int, place: int, nbytes: int) -> None:
        """Unpack a part; ValueError: it is not the next."""
        link = self.peer.link
        if part != self._part or first != self._row or part >= len(self.works):
            raise ValueError("a part that is not the next")
        work = self.works[part]
        right = first < last <= work.rows and nbytes == (last - first) * work.row_bytes
        if not right or not 0 <= place % STAGE_BYTES <= STAGE_BYTES - nbytes:
            raise ValueError("a part of other sizes than it has")
        if self.status is Status.DONE:
            self._unpack(work, first, last, link.in_address(place))
        link.give_back(place, nbytes)
        self._row = last
        if last == work.rows:
            self._part, self._row = part + 1, 0

    def _unpack(self, work: CopyWork, first: int, last: int, at: int) -> None:
        status = work.part(first, last, at)
        if status is not Status.DONE:
            self.status = status

    @property
    def is_full(self) -> bool:
        """Return whether everything has come."""
        field = self.field
        straight = field is not None and field.landed == field.nbytes
        return straight or self._part == len(self.works)

    @property
    def chunks_done(self) -> int:
        """Return how many chunks have been stored in full, at least."""
        if self.field is not None and self.field.landed:
            hop = self.peer.link.hop
            if hop is not None and hop.lanes > 1 and not self.is_full:
                return 0  # what has landed need not be what comes first
            left, done = self.field.landed - self.field.dropped, 0
            for work in self.works:
                done += min(left, work.packed_bytes) // work.chunk_bytes
                left -= min(left, work.packed_bytes)
            return done
        return sum(w.chunks_done for w in self.works[: self._part + 1])

    @property
    def moved(self) -> int:
        """Return how many bytes have been stored."""
        if self.field is not None and self.field.landed:
            return self.field.landed - self.field.dropped
        return sum(w.moved for w in self.works)

    def ended(self, total: int | None) -> Status:
        """Return how it has ended; `total` is what was sent, summed, if asked for."""
        if self.status is not Status.DONE:
            return self.status
        if not self.is_full:
            return Status.FAILED
        is_same = total is None or self._summed() == total
        return Status.DONE if is_same else Status.DIFFERS

    def _summed(self) -> int:
        """Return the sum of what lies at the destination now."""
        return _mixed(work.summed(Mode.SUM_DST) for work in self.works)


def can_go_straight(works: Sequence[CopyWork]) -> bool:
    """Return whether bytes stay as they are, and there are some."""
    return (
        bool(works)
        and not works[0].is_on_gpu
        and not works[0].converts
        and works[0].rows > 0
    )


def _mixed(sums: Any) -> int:
    total = 0
    for one in sums:
        total = (total * 31 + one) & 0x7FFFFFFFFFFFFFFF
    return total
