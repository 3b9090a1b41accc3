"""The wire format of protocol buffers, as far as a writer of messages needs it."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def whole(field: int, value: int) -> bytes:
    """Return a field that is a number."""
    return varint(field << 3) + varint(value)


def fixed(field: int, value: int) -> bytes:
    """Return a field that is a number of 64 bits."""
    return varint(field << 3 | 1) + (value & (1 << 64) - 1).to_bytes(8, "little")


def nested(field: int, body: bytes) -> bytes:
    """Return a field that is a message, or bytes."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    """Return a field that is a text."""
    return nested(field, value.encode())
