"""Transfers through a link's stage: packed here, carried, and unpacked there.

Whoever has the bytes sends them, part by part, as there is room; whoever wants them
puts each part where it belongs, in the thread that takes records. A request is a header
in JSON, the pages' numbers, and, where all is small, the bytes themselves.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.transfer.copying.plain import bytes_at
from stretto.transfer.copying.words import Mode, Status
from stretto.transfer.copying.work import Work
from stretto.transfer.links.words import STAGE_BYTES, Kind
from stretto.transfer.ports import PeerLike

__all__ = ["MOST_HEADER", "Receiving", "Sending", "pack_request", "read_request"]

_HEAD = struct.Struct("=4I")
MOST_HEADER = 1 << 16
PART = 512 << 10
"""Bytes of a part: several are under way at once."""
INLINE = 16 << 10
_DIRECT = 64 << 10
"""Runs from which bytes are carried from where they lie."""


def pack_request(
    header: dict[str, Any], pages: NDArray[np.int64] | None, data: bytes = b""
) -> bytes:
    """Return a request's bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    numbers = b"" if pages is None else pages.tobytes()
    body = _HEAD.pack(len(text), len(numbers) // 8, len(data), pages is not None)
    body += text + numbers + data
    if len(text) > MOST_HEADER or len(body) > STAGE_BYTES // 2:
        raise CallError(
            f"a transfer of {len(numbers) // 8} pages by stages; want fewer at once"
        )
    return body


def read_request(
    body: bytes,
) -> tuple[dict[str, Any], NDArray[np.int64] | None, memoryview]:
    """Return a request's header, pages and data; ValueError: it is none."""
    text, count, nbytes, has_pages = _HEAD.unpack_from(body)
    end = _HEAD.size + text + 8 * count
    if text > MOST_HEADER or end + nbytes != len(body):
        raise ValueError("a request of other sizes than it says")
    header = json.loads(body[_HEAD.size : _HEAD.size + text])
    if not isinstance(header, dict):
        raise ValueError("a request without a header")
    pages = np.frombuffer(body, np.int64, count, _HEAD.size + text)
    return header, pages if has_pages else None, memoryview(body)[end:]


class Sending:
    """The side that has the bytes."""

    def __init__(
        self, peer: PeerLike, number: int, works: list[Work], *, checked: bool
    ) -> None:
        self.peer, self.number, self.works = peer, number, works
        self.checked = checked
        self._part, self._row = 0, 0
        self.is_over = False

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
        while not self.is_over and self._part < len(self.works):
            work = self.works[self._part]
            each = work.row_bytes
            rows = min(work.rows - self._row, max(1, PART // each))
            place = link.place(rows * each)
            if place is None:
                return False
            self._send(work, rows, place)
            self._row += rows
            if self._row == work.rows:
                self._part, self._row = self._part + 1, 0
        if not self.is_over:
            self.is_over = True
            total = self._sum()
            self.peer.say(Kind.END, self.number, int(Status.DONE), total)
        return True

    def _send(self, work: Work, rows: int, place: int) -> None:
        link, each, nbytes = self.peer.link, work.row_bytes, rows * work.row_bytes
        if link.hop is not None and each >= _DIRECT:
            for nth in range(rows):
                source = work.source_of(self._row + nth)
                link.carry(source, place + nth * each, each, self.peer.give_up)
        else:
            at = link.out_address(place)
            work.part(self._row, self._row + rows, at)
            link.carry(at, place, nbytes, self.peer.give_up)
        self.peer.say(
            Kind.DATA, self.number, self._part, self._row, self._row + rows, place,
            nbytes,
        )  # fmt: skip

    def _sum(self) -> int:
        if not self.checked:
            return 0
        return _mixed(work.summed(Mode.SUM_SRC) for work in self.works)


class Receiving:
    """The side that wants the bytes."""

    def __init__(self, peer: PeerLike, works: list[Work]) -> None:
        self.peer, self.works = peer, works
        self._part, self._row = 0, 0
        self.status = Status.DONE

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

    def _unpack(self, work: Work, first: int, last: int, at: int) -> None:
        status = work.part(first, last, at)
        if status is not Status.DONE:
            self.status = status

    @property
    def is_full(self) -> bool:
        """Return whether everything has come."""
        return self._part == len(self.works)

    @property
    def chunks_done(self) -> int:
        """Return how many chunks have been stored in full."""
        return sum(w.chunks_done for w in self.works[: self._part + 1])

    @property
    def moved(self) -> int:
        """Return how many bytes have been stored."""
        return sum(w.moved for w in self.works)

    def summed(self) -> int:
        """Return the sum of what lies at the destination now."""
        return _mixed(work.summed(Mode.SUM_DST) for work in self.works)


def _mixed(sums: Any) -> int:
    total = 0
    for one in sums:
        total = (total * 31 + one) & 0x7FFFFFFFFFFFFFFF
    return total


def copied(address: int, nbytes: int) -> bytes:
    """Return bytes at an address."""
    return bytes_at(address, nbytes).tobytes()
