"""UCX itself: puts and gets with a flush, compiled, so that no call is Python's.

A notification is a word that is put into the other's memory, which looks for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stretto.bench.peers._side import MovingSide, small_pages
from stretto.bench.workload.moves import MoveCase
from stretto.fabric.hop import Window, get
from stretto.fabric.hop.ucx import library

_WORDS = 4096
"""Bytes before the memory that is moved: words to notify by."""
_BETWEEN_LOOKS = 2000


class UcxSide(MovingSide):
    """A worker, an end point, and memory that is registered."""

    PATHS = ("cross-memory", "tcp")

    @classmethod
    def missing(cls) -> str:
        """Return why it is not there, or nothing."""
        return library.missing()

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Return what must be set."""
        return {"UCX_TLS": "tcp,self" if path == "tcp" else "shm,self"}

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        super().__init__(role, path, 1)
        from stretto.bench.peers import _ucx_calls
        from stretto.fabric.hop.ucx.carrier import RMA, UcxHop

        class Polled(UcxHop):
            """Never asleep, and never told of a death: UCX may take any way then."""

            features = RMA
            hears_of_death = False

        self._calls = _ucx_calls
        self._window = small_pages(_WORDS + nbytes)
        self._window[:_WORDS] = 0
        self.memory = self._window[_WORDS:]
        self._at = int(self._window.ctypes.data)
        self._rank = int(role == "here")
        size = len(self._window)
        window = Window(
            rank=self._rank, num_ranks=2, address=self._at, puts=(0, size),
            words=(0, size), secret=b"",
        )  # fmt: skip
        self._hop = Polled(get("ucx"), window)
        self._turn = 0

    def about(self) -> Mapping[str, Any]:
        """Return the worker's address and the memory's key."""
        return self._hop.share()

    def meet(self, said: Mapping[str, Any]) -> None:
        """Make an end point."""
        shares: list[Any] = [None, None]
        shares[1 - self._rank] = said
        self._hop.connect(shares, [1 - self._rank], 10.0)
        self._there = int(said["base"])
        handles = self._hop.handles(1 - self._rank)
        self._words = self._calls.words_of(library.load(), handles)

    def _table(self, case: MoveCase) -> Any:
        places = case.order if case.count > 1 else np.zeros(1, np.int64)
        n = case.nbytes
        mine = self._at + _WORDS + n * np.arange(case.count)
        theirs = self._there + _WORDS + n * places
        columns = (mine, np.full(case.count, n), theirs)
        return np.ascontiguousarray(np.stack(columns, axis=1), np.int64)

    def prepare(self, case: MoveCase) -> Callable[[], None]:
        """Return a compiled call: all puts or gets, and a flush."""
        words, calls = int(self._words.ctypes.data), self._calls
        if case.what == "notify":
            return self._trip
        table = self._table(case)
        at, is_get = int(table.ctypes.data), int(case.what == "get")
        move, count, held = calls.moved, case.count, table

        def once() -> None:
            if move(words, at, count, is_get):
                raise RuntimeError("UCX failed")

        once.held = held  # type: ignore[attr-defined]
        return once

    def _trip(self) -> None:
        self._turn += 1
        words = int(self._words.ctypes.data)
        seen, out = self._at, self._at + 64
        self._window[64:72].view(np.int64)[0] = self._turn
        self._calls.said(words, out, self._there)
        until = time.monotonic() + 30
        while not self._calls.heard(words, seen, self._turn, _BETWEEN_LOOKS):
            if time.monotonic() > until:
                raise RuntimeError("UCX: nobody answers")

    def attend(self, case: MoveCase, rounds: int, is_over: Callable[[], bool]) -> None:
        """Progress, and answer."""
        words = int(self._words.ctypes.data)
        answers = case.what == "notify"
        while not is_over():
            want = self._turn + 1 if answers else 1 << 62
            if self._calls.heard(words, self._at, want, _BETWEEN_LOOKS):
                self._turn = want
                self._window[64:72].view(np.int64)[0] = want
                self._calls.said(words, self._at + 64, self._there)


OFFERS = (UcxSide,)
