"""An ordered way to one peer: bytes, words and records, and how it has ended.

In: memory of both ends, shared, or a hop between their mirrors. Out: what was put has
landed when the record after it is taken. Never: anything of what the bytes are.
"""

from stretto.fabric.channel.channel import Channel, Record, window_of
from stretto.fabric.channel.words import RECORD, RING, SLOTS, ChannelWord, Word, halves

__all__ = [
    "RECORD",
    "RING",
    "SLOTS",
    "Channel",
    "ChannelWord",
    "Record",
    "Word",
    "halves",
    "window_of",
]
