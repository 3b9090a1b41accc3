"""What each rank called, told to its peers in memory of the GPU once they differ.

A rank that finds that others called something else knows their fingerprints alone, and
its group may be unable to exchange anything. So each writes what it called into a page
of its own slab, which the others have mapped, and reads theirs; all have found it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Sequence
from typing import Any

from stretto.executors.cuda.device.driver import ask

PAGE_BYTES = 4096
"""A word that says how many bytes the text has, and the text; 0 before that."""
PATIENCE_S = 0.5
"""How long peers may take to write what they called."""
PERIOD_S = 0.005
_HEAD = 8


class Testimony:
    """One rank's page, and those of its peers."""

    def __init__(self, bases: Sequence[int], rank: int, offset: int) -> None:
        """`bases` are everybody's slabs as they are mapped here."""
        self._pages = [base + offset if base else 0 for base in bases]
        self._rank = rank

    def give(self, text: str, stream: Any) -> None:
        """Tell peers what this rank called."""
        raw = text.encode()[: PAGE_BYTES - _HEAD]
        body = ctypes.create_string_buffer(raw, len(raw))
        size = ctypes.c_uint64(len(raw))
        page = self._pages[self._rank]
        for to, source, nbytes in ((page + _HEAD, body, len(raw)), (page, size, 8)):
            ask("cuMemcpyHtoDAsync", to, ctypes.addressof(source), nbytes, stream)
            ask("cuStreamSynchronize", stream)  # the size comes last

    def hear(self, ranks: Iterable[int], stream: Any) -> dict[int, str]:
        """Return what peers called; some may have nothing to say."""
        missing = {rank for rank in ranks if self._pages[rank]}  # of this host
        heard: dict[int, str] = {}
        until = time.monotonic() + PATIENCE_S
        while missing:
            for rank in sorted(missing):
                text = self._read(rank, stream)
                if text:
                    heard[rank] = text
            missing -= heard.keys()
            if time.monotonic() > until:
                break
            if missing:
                time.sleep(PERIOD_S)
        return heard

    def _read(self, rank: int, stream: Any) -> str:
        raw = (ctypes.c_uint8 * PAGE_BYTES)()
        where = ctypes.addressof(raw)
        ask("cuMemcpyDtoHAsync", where, self._pages[rank], PAGE_BYTES, stream)
        ask("cuStreamSynchronize", stream)
        size = int.from_bytes(bytes(raw[:_HEAD]), "little")
        return bytes(raw[_HEAD : _HEAD + size]).decode("utf-8", "replace")
