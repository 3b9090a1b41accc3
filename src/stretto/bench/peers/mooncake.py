"""Mooncake's transfer engine over TCP: its synchronous calls; it has no other way here.

It has notifications for its own store only, so no round trip is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stretto.bench.peers._side import MovingSide
from stretto.bench.workload.moves import MoveCase


class Mooncake(MovingSide):
    """An engine, and its memory."""

    PATHS = ("tcp",)
    WHATS = ("put", "get", "blocks")
    NEEDS = ("mooncake", "pip install mooncake-transfer-engine-non-cuda")

    @classmethod
    def missing(cls) -> str:
        """Return why it is not there, or nothing."""
        if why := super().missing():
            return why
        try:
            importlib.import_module("mooncake.engine")
        except ImportError as e:
            return f"Mooncake does not load: {e}"
        return ""

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Return what must be set."""
        return {"MC_LOG_LEVEL": "ERROR", "MC_FORCE_TCP": "1"}

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        super().__init__(role, path, nbytes)
        self._engine = importlib.import_module("mooncake.engine").TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("Mooncake does not start")
        self._at = int(self.memory.ctypes.data)
        if self._engine.register_memory(self._at, nbytes):
            raise RuntimeError("Mooncake does not register memory")

    def about(self) -> Mapping[str, Any]:
        """Return where it listens, and where its memory is."""
        where = f"127.0.0.1:{self._engine.get_rpc_port()}"
        return {"where": where, "at": self._at}

    def meet(self, said: Mapping[str, Any]) -> None:
        """Note where the other is."""
        self._peer, self._there = str(said["where"]), int(said["at"])

    def prepare(self, case: MoveCase) -> Callable[[], None]:
        """Return a synchronous call."""
        engine, peer, n = self._engine, self._peer, case.nbytes
        if case.what == "blocks":
            mine = (self._at + n * np.arange(case.count)).tolist()
            theirs = (self._there + n * case.order).tolist()
            sizes = [n] * case.count

            def batch() -> None:
                if engine.batch_transfer_sync_write(peer, mine, theirs, sizes):
                    raise RuntimeError("Mooncake failed")

            return batch
        is_put = case.what == "put"
        move = engine.transfer_sync_write if is_put else engine.transfer_sync_read

        def once() -> None:
            if move(peer, self._at, self._there, n):
                raise RuntimeError("Mooncake failed")

        return once


OFFERS = (Mooncake,)
