"""Our own engine, as its users call it: prepared puts and gets, notifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stretto import hop as hops
from stretto.bench.transfers.cases import WHATS, Case
from stretto.bench.transfers.side import Side
from stretto.transfer import Engine, Layout, loader

__all__ = ["PATHS", "WHATS", "Ours", "environment", "missing", "open_side"]

PATHS = ("shared", "cross-memory", "tcp", "ucx-tcp", "nixl-tcp")
_HOPS = {"ucx-tcp": "ucx", "nixl-tcp": "nixl"}
_SECRET = b"measure" * 5
_LONG_US = 2e4
"""How long who attends looks: past the next round, but not for ever. What the engine's
other thread has found meanwhile is seen only afterwards: with a second here, a round
took a second when the machine was busy."""


def missing() -> str:
    """Return nothing: it is here."""
    return ""


def environment(path: str) -> Mapping[str, str]:
    """Return what must be set."""
    return {"UCX_TLS": "tcp,self"} if path in _HOPS else {}


class Ours(Side):
    """An engine, and a region that takes all of its memory."""

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        super().__init__(role, path, nbytes)
        self._is_far = path.endswith("tcp")
        self._hop = _HOPS.get(path, "tcp")
        if self._hop != "tcp":
            hops.get(self._hop)
        loader.load()

    def about(self) -> Mapping[str, Any]:
        """Return a name, or an address."""
        import os

        attends = self._is_far and self.role == "there"
        listens = "127.0.0.1:0" if attends else None
        self._engine = Engine(
            f"{self.role}-{os.getpid()}", job="contest", secret=_SECRET, hop=self._hop,
            listen=listens, spin_us=_LONG_US if attends else 40.0,
        )  # fmt: skip
        if self.path == "shared":
            self.memory = self._engine.arena(len(self.memory))
        self._region = self._engine.share(self.memory, "memory")
        return {"name": self._engine.name, "address": self._engine.address}

    def meet(self, said: Mapping[str, Any]) -> None:
        """Connect from here."""
        if self.role == "here":
            where = said["address"] if self._is_far else said["name"]
            self._peer = self._engine.connect(where).wait(60)
        else:
            self._peer = self._engine.peer(said["name"]).wait(60)
        self._theirs = self._peer.region("memory").wait(60)

    def prepare(self, case: Case) -> Callable[[], None]:
        """Return a prepared put or get, or a round trip."""
        if case.what == "notify":
            pong, notify = self._engine.notified(b"pong"), self._peer.notify

            def trip() -> None:
                notify(b"ping")
                pong.wait(30)

            return trip
        n = case.total
        if case.what == "blocks":
            layout = Layout(f"B={case.count} X={case.nbytes} uint8")
            ours, theirs = self._paged(layout), f"pages-{case.count}-{case.nbytes}"
            there = self._peer.region(theirs).wait(30)
            every = np.arange(case.count)
            put: Callable[[], None] = there[case.order].prepare_put(ours[every])
            return put
        view = self._theirs[:n]
        prepare = view.prepare_put if case.what == "put" else view.prepare_get
        made: Callable[[], None] = prepare(self._region[:n])
        return made

    def _paged(self, layout: Layout) -> Any:
        name = f"pages-{layout.axis('B').size}-{layout.axis('X').size}"
        if not hasattr(self, name):
            memory = self.memory[: layout.part_bytes]
            setattr(self, name, self._engine.share(memory, name, layout))
        return getattr(self, name)

    def attend(self, case: Case, rounds: int, is_over: Callable[[], bool]) -> None:
        """Answer notifications, or see to what comes."""
        if case.what == "blocks":
            self._paged(Layout(f"B={case.count} X={case.nbytes} uint8"))
        if case.what == "notify":
            ping = self._engine.notified(b"ping")
            for _ in range(rounds):
                ping.wait(30)
                self._peer.notify(b"pong")
            return
        self._engine.notified(b"over").wait(120)

    def over(self) -> None:
        """Let the other side stop attending."""
        self._peer.notify(b"over")


def open_side(role: str, path: str, nbytes: int) -> Side:
    """Return a side."""
    return Ours(role, path, nbytes)
