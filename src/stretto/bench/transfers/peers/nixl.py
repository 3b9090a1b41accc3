"""NIXL: prepared transfers by its UCX, notifications as it sends them.

Without its progress thread, which takes a core: whoever attends polls instead.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stretto.bench.transfers.cases import WHATS, Case
from stretto.bench.transfers.side import Side
from stretto.hop.nixl import library

__all__ = ["PATHS", "WHATS", "Nixl", "environment", "missing", "open_side"]

PATHS = ("cross-memory", "tcp")
_BETWEEN_LOOKS = 64


def missing() -> str:
    """Return why it is not there, or nothing."""
    return library.missing()


def environment(path: str) -> Mapping[str, str]:
    """Return what must be set."""
    quiet = {"NIXL_LOG_LEVEL": "ERROR"}
    return {**quiet, "UCX_TLS": "tcp,self"} if path == "tcp" else quiet


class Nixl(Side):
    """An agent, and its memory."""

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        super().__init__(role, path, nbytes)
        api = library.api()
        config = api.nixl_agent_config(enable_prog_thread=False)
        self._agent = api.nixl_agent(f"{role}-{os.getpid()}", config)
        self._at = int(self.memory.ctypes.data)
        self._agent.register_memory([(self._at, nbytes, 0, "")], "DRAM")

    def about(self) -> Mapping[str, Any]:
        """Return the agent's metadata."""
        told = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"metadata": told, "at": self._at}

    def meet(self, said: Mapping[str, Any]) -> None:
        """Take the other's metadata."""
        peer = self._agent.add_remote_agent(base64.b64decode(said["metadata"]))
        self._peer = peer.decode() if isinstance(peer, bytes) else peer
        self._there = int(said["at"])

    def prepare(self, case: Case) -> Callable[[], None]:
        """Return a transfer that is posted each time, until it is done."""
        agent = self._agent
        if case.what == "notify":
            return self._trip
        n = case.nbytes
        mine = self._at + n * np.arange(case.count)
        theirs = self._there + n * (case.order if case.count > 1 else np.zeros(1, int))

        def listed(places: Any) -> Any:
            rows = [(int(at), n, 0) for at in places]
            return agent.get_xfer_descs(rows, "DRAM")

        verb = "READ" if case.what == "get" else "WRITE"
        handle = agent.initialize_xfer(
            verb, listed(mine), listed(theirs), self._peer, b""
        )

        def once() -> None:
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(f"NIXL says {state}")

        return once

    def _trip(self) -> None:
        self._agent.send_notif(self._peer, b"ping")
        while not self._agent.get_new_notifs():
            pass

    def attend(self, case: Case, rounds: int, is_over: Callable[[], bool]) -> None:
        """Poll, and answer."""
        agent = self._agent
        while not is_over():
            for _ in range(_BETWEEN_LOOKS):
                for peer, tags in agent.get_new_notifs().items():
                    for _ in tags:
                        agent.send_notif(peer, b"pong")


def open_side(role: str, path: str, nbytes: int) -> Side:
    """Return a side."""
    return Nixl(role, path, nbytes)
