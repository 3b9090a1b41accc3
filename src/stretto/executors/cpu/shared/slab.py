"""The memory of one rank that all its peers map: what lies where.

    page 0       the call this rank is in, for peers that wonder whether it is theirs,
                 and the last exchange that it began; whether it sleeps
    catalogue    the calls this rank has prepared, as text, by fingerprint
    flags        a 64-byte line for every lane of every rank that may signal a lane here
    packets      slots in classes of 64 B, 128 B, ... each class a region of its own
    staging      bulk units
    far          a page for every rank: where those on other hosts say what they call

Packets and staging exist twice, by the parity of the epoch. A slot's flag always is a
flag: classes never overlap, so no payload of an earlier plan can be taken for one.
Pages are touched only when a plan needs them; the sizes below cost addresses only.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

import numpy as np

from stretto.executors.cpu.words import Line
from stretto.fabric.memory import Mapping

__all__ = [
    "ABI",
    "ASLEEP",
    "CALL",
    "EXCHANGE",
    "FAR_PAGE",
    "LINE",
    "MAX_LANES",
    "MAX_SLOT",
    "PACKET_HEADER",
    "PACKET_REGION",
    "STAGE_REGION",
    "Slab",
    "SlabLayout",
    "slot_class",
]

ABI = 5
"""Changes with the meaning of any byte of a slab; ranks compare it when they meet."""
LINE = 64
MAX_LANES = 8
"""Lanes of a rank that may signal or be signalled."""
CALL = LINE
"""Offset of the line that says which call this rank is in: see `interpreter`."""
EXCHANGE = 2 * LINE
"""Offset of two words: how many exchanges this rank has begun, and the last one's name.
"""
ASLEEP = 3 * LINE
"""Offset of a word that is not 0 while this rank sleeps, and wants to be woken."""
NEVER = -1
"""The epoch of a rank's line before its first call."""
PACKET_HEADER = 16
"""Bytes of a slot before its payload: epoch and fingerprint."""
PACKET_REGION = 1 << 20
"""Bytes of one class of slots, for one parity."""
MAX_SLOT = 1 << 16
FAR_PAGE = 512
"""Bytes for what a rank on another host says: two lines, and what the first means."""
STAGE_REGION = 1 << 26
"""Bytes of staging, for one parity."""

_CATALOGUE = 4096
_ENTRY = 256
_ENTRIES = 255
_CLASSES = (MAX_SLOT // LINE).bit_length()


def slot_class(nbytes: int) -> int:
    """Return the class whose slots hold that many bytes, header included."""
    return max(0, (nbytes - 1).bit_length() - LINE.bit_length() + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLayout:
    """Offsets of everything, the same on every rank."""

    num_ranks: int

    @property
    def flags(self) -> int:
        """Return where flags begin."""
        return _CATALOGUE + _ENTRY * (_ENTRIES + 1)

    def flag(self, rank: int, lane: int, to_lane: int) -> int:
        """Return the line that a lane of a rank signals a lane of the owner with."""
        return self.flags + ((rank * MAX_LANES + lane) * MAX_LANES + to_lane) * LINE

    def packets(self, slots: int, parity: int = 0) -> int:
        """Return where the slots of a class begin."""
        first = self.flag(self.num_ranks, 0, 0)
        return first + (2 * slots + parity) * PACKET_REGION

    def stage(self, parity: int = 0) -> int:
        """Return where staging begins."""
        return self.packets(_CLASSES) + parity * STAGE_REGION

    def far(self, rank: int) -> int:
        """Return the page where a rank on another host says which call it is in."""
        return self.stage(2) + rank * FAR_PAGE

    @property
    def nbytes(self) -> int:
        """Return the size of a slab."""
        return -(-self.far(self.num_ranks) // 4096) * 4096


class Slab:
    """One rank's slab, mapped here."""

    def __init__(self, layout: SlabLayout, fd: int, number: int) -> None:
        """Map it; `number` counts the slabs that its rank has had."""
        self.layout, self.number = layout, number
        self.mapping = Mapping(fd, layout.nbytes)
        self.address = self.mapping.address
        self._head = self.mapping.words(0, 32)
        self._entries = self.mapping.words(_CATALOGUE, 1 + _ENTRY // 8 * _ENTRIES)

    def call(self) -> tuple[int, int, int, int]:
        """Return its owner's call: first epoch, fingerprint, two memory offsets.

        The epoch is 0 while its owner changes the rest.
        """
        first = CALL // 8
        line = self._head[first : first + 4].tolist()
        while line != (again := self._head[first : first + 4].tolist()):
            line = again
        epoch, fingerprint, source, target = line
        return epoch, fingerprint, source, target

    def exchange(self) -> tuple[int, int]:
        """Return how many exchanges its owner has begun, and the last's fingerprint."""
        first = EXCHANGE // 8
        begun, fingerprint = self._head[first : first + 2].tolist()
        return begun, fingerprint

    def begin_exchange(self, number: int, text: str) -> None:
        """Let peers see that this rank is in an exchange, and not in a call."""
        fingerprint = zlib.crc32(text.encode()) + 1
        if self.describe(fingerprint) != text:
            self.register(fingerprint, text)
        first = EXCHANGE // 8
        self._head[first + 1] = fingerprint
        self._head[first] = number

    def begin(self) -> None:
        """Say that there has been no call, and no exchange."""
        self._head[CALL // 8] = NEVER
        self._head[CALL // 8 + Line.GIVES] = 0
        self._head[CALL // 8 + Line.PID] = os.getpid()
        self._head[EXCHANGE // 8] = 0

    def leave(self) -> None:
        """Let nobody write in the arrays of my call any more, until I begin anew."""
        self._head[CALL // 8 + Line.PID] = 0

    def gives(self) -> tuple[int, int]:
        """Return in whose arrays its owner writes, -1: nobody's; and its process."""
        first = CALL // 8
        to, pid = self._head[first + Line.GIVES], self._head[first + Line.PID]
        return int(to) - 1, int(pid)

    def register(self, fingerprint: int, text: str) -> None:
        """Let peers read what one of my fingerprints means."""
        known = int(self._entries[0])
        at = 1 + known % _ENTRIES * (_ENTRY // 8)
        room = _ENTRY - 16
        raw = text.encode("ascii", "replace")[:room]
        entry = self._entries[at : at + _ENTRY // 8]
        entry[1] = len(raw)
        entry[2:] = np.frombuffer(raw.ljust(room, b"\0"), dtype=np.int64)
        entry[0] = fingerprint
        self._entries[0] = known + 1

    def describe(self, fingerprint: int) -> str:
        """Return what a fingerprint of its owner means."""
        for index in range(_ENTRIES):
            at = 1 + index * (_ENTRY // 8)
            entry = self._entries[at : at + _ENTRY // 8]
            if entry[0] == fingerprint and fingerprint:
                size = min(max(int(entry[1]), 0), _ENTRY - 16)
                return entry[2:].tobytes()[:size].decode("ascii", "replace")
        return f"a call that left no name (fingerprint {fingerprint:#x})"
