"""What a rank gives to an exchange, and what it gets: small parts, with descriptors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from stretto.errors import CallError, SharedMemoryError, is_interruption
from stretto.fabric.meeting import messages
from stretto.fabric.meeting.messages import Offer, Result
from stretto.fabric.meeting.peers import PeerGroup
from stretto.fabric.process import most_descriptors
from stretto.fabric.wire import Descriptor, encode

PART_LIMIT = 1 << 20
"""Bytes of JSON that one rank may put into an exchange."""


def copies(
    peers: PeerGroup, tag: str, descriptors: Sequence[int]
) -> tuple[Descriptor, ...]:
    """Return duplicates; without room for them this rank gives up, and says so."""
    try:
        return tuple(Descriptor(os.dup(d)) for d in descriptors)
    except OSError as e:
        if is_interruption(e):
            raise
        why = f"{tag}: cannot pass a file descriptor: {e.strerror}"
        peers.abandon(f"gave up in {why}")
        raise SharedMemoryError(f"{why}; {most_descriptors()}") from e


def check_size(offer: Offer) -> None:
    """Refuse a payload that is too large, or that JSON cannot write."""
    try:
        nbytes = len(encode(messages.to_body(offer)))
    except (TypeError, ValueError, RecursionError) as e:
        raise CallError(f"{offer.tag}: the payload is not JSON: {e}") from e
    if nbytes > PART_LIMIT:
        raise CallError(
            f"{offer.tag}: a part of {nbytes} bytes; at most {PART_LIMIT} are taken"
        )


def unpack(
    result: Result, held: tuple[Descriptor, ...]
) -> list[tuple[Any, tuple[Descriptor, ...]]]:
    """Return each member's part and the descriptors that came with it."""
    parts, first = [], 0
    for payload, count in zip(result.payloads, result.counts, strict=True):
        parts.append((payload, held[first : first + count]))
        first += count
    return parts
