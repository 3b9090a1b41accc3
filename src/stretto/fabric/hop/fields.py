"""Fields: memory outside of the window that a rank opens to a peer's puts for a while.

A peer names a field by number, and which use of it is meant, never by address. What it
puts there goes to a list of pieces that only the owner knows, in order. Before bytes
are stored the owner says so (MARK), and looks whether the memory still has the epoch
that the field was opened for; if not, or when the field has been closed or is not
wanted any more, they are read and dropped. So what comes late lands nowhere.
"""

from __future__ import annotations

from stretto.fabric.jit.words import Words

FIELDS = 1 << 62
_INDEX, _USE = 40, 52
MOST_BYTES, MOST_FIELDS = 1 << _INDEX, 1 << (_USE - _INDEX)
_MOST_USES = 1 << (62 - _USE)
PIECE_WORDS = 3
"""Words of a piece: its address, its bytes, and those of all before it."""


class Field(Words):
    """Words of a field."""

    PIECES = 0
    """Address of its pieces; 0: it is closed."""
    COUNT = 1
    NBYTES = 2
    GENERATION = 3
    """Which use of it this is."""
    MARK = 4
    """Address of a word that says what is being written, or 0."""
    EPOCH = 5
    """Address of the memory's epoch, or 0."""
    WANT = 6
    """The epoch that it had when the field was opened."""
    CANCEL = 7
    """Address of a word: not 0 when the rest is not wanted; or 0."""
    LANDED = 8
    """Bytes that have come, stored or not."""
    DROPPED = 9
    """Bytes of these that were not stored."""
    END = 10


def offset_of(index: int, generation: int) -> int:
    """Return the offset at which peers put to a field."""
    return FIELDS | generation % _MOST_USES << _USE | index << _INDEX
