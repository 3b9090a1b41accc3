"""Notifications: the names that peers send, as records."""

from __future__ import annotations

import functools
import hashlib
import struct

from stretto.errors import CallError
from stretto.transfer.links.words import TAG_BYTES, Kind

_NOTICE = struct.Struct(f"=4q{TAG_BYTES}s")


MOST_AT_ONCE = 1 << 32
"""How often one notification says that something has happened."""


def tag_hash(tag: bytes) -> int:
    """Return the number by which a notification is found; never 0."""
    if not isinstance(tag, bytes) or not 0 < len(tag) <= TAG_BYTES:
        raise CallError(
            f"a notification's name is 1 to {TAG_BYTES} bytes; got {tag!r:.60}"
        )
    return _hash(tag)


def check_count(count: int, tag: bytes) -> None:
    """Refuse what no peer takes: it would end the connection."""
    is_number = isinstance(count, int) and not isinstance(count, bool)
    if not is_number or not 1 <= count <= MOST_AT_ONCE:
        raise CallError(
            f"notification {tag!r}: count={count!r:.40}; want a whole number from 1 to "
            f"{MOST_AT_ONCE}"
        )


@functools.lru_cache(maxsize=4096)
def _hash(tag: bytes) -> int:
    digest = hashlib.blake2b(tag, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2 | 1


def notice(tag: bytes, count: int = 1) -> bytes:
    """Return the record of a notification."""
    number = tag_hash(tag)
    check_count(count, tag)
    return _NOTICE.pack(Kind.NOTIFY, number, count, len(tag), tag)
