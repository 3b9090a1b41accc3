"""What a peer may do in a window, compiled: carriers ask before they store anything.

A window is known by the words of `Inside`, which lie in each carrier's context.
"""

from __future__ import annotations

from stretto.fabric.jit.atomics import compiled, load, store, store_release
from stretto.fabric.jit.words import Words


class Inside(Words):
    """Words of a window: its address, and offsets, the second behind the last."""

    ADDRESS = 0
    PUT_FROM = 1
    PUT_TO = 2
    WORD_FROM = 3
    WORD_TO = 4


@compiled("int64(int64,int64,int64)")
def may_put(window: int, offset: int, nbytes: int) -> int:
    """Return whether a put may land there."""
    room = load(window + Inside.PUT_TO.at) - offset
    return int(load(window + Inside.PUT_FROM.at) <= offset and 0 <= nbytes <= room)


@compiled("int64(int64,int64)")
def _is_word(window: int, offset: int) -> int:
    low, high = load(window + Inside.WORD_FROM.at), load(window + Inside.WORD_TO.at)
    return 1 if low <= offset < high and offset % 8 == 0 else 0


@compiled("int64(int64,int64)")
def raised(window: int, signal: int) -> int:
    """Do what a signal says; return whether it may.

    Its words are an offset, a value, and where to store three words that follow.
    """
    offset, value, side = load(signal), load(signal + 8), load(signal + 16)
    if not (_is_word(window, offset) and _is_word(window, side)):
        return 0
    if not _is_word(window, side + 16):
        return 0
    base = load(window + Inside.ADDRESS.at)
    for i in range(3):
        store(base + side + 8 * i, load(signal + 24 + 8 * i))
    if load(base + offset) < value:
        store_release(base + offset, value)
    return 1
