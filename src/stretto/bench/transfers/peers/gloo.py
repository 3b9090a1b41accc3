"""Gloo, by torch.distributed: it has no one-sided calls, so both sides take part.

A put is a send that is answered with a byte, a get is a byte that is answered; blocks
are gathered into one message here, and scattered there.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from stretto.bench.transfers.cases import WHATS, Case
from stretto.bench.transfers.side import Side

__all__ = ["PATHS", "WHATS", "Gloo", "environment", "missing", "open_side"]

PATHS = ("tcp",)


def missing() -> str:
    """Return why it is not there, or nothing."""
    found = importlib.util.find_spec("torch")
    return "" if found else "no Gloo: pip install torch"


def environment(path: str) -> Mapping[str, str]:
    """Return what must be set."""
    return {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Gloo(Side):
    """A rank of two."""

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        super().__init__(role, path, nbytes)
        self._torch = importlib.import_module("torch")
        self._dist = importlib.import_module("torch.distributed")
        self._all = self._torch.from_numpy(self.memory)
        self._byte = self._torch.zeros(1, dtype=self._torch.uint8)
        self._bulk = self._torch.zeros(nbytes, dtype=self._torch.uint8)
        self._port = _free_port() if role == "there" else 0
        self._rank = int(role == "here")

    def about(self) -> Mapping[str, Any]:
        """Return where to meet."""
        return {"port": self._port}

    def meet(self, said: Mapping[str, Any]) -> None:
        """Join the group of two."""
        port = self._port or int(said["port"])
        self._dist.init_process_group(
            "gloo", rank=self._rank, world_size=2, timeout=timedelta(seconds=60),
            init_method=f"tcp://127.0.0.1:{port}",
        )  # fmt: skip
        self._dist.barrier()

    def prepare(self, case: Case) -> Callable[[], None]:
        """Return our part of a round."""
        send, receive, byte = self._dist.send, self._dist.recv, self._byte
        other, data = 1 - self._rank, self._all[: max(1, case.total)]

        def put() -> None:
            send(data, other)
            receive(byte, other)

        def get() -> None:
            send(byte, other)
            receive(data, other)

        def trip() -> None:
            send(byte, other)
            receive(byte, other)

        def blocks() -> None:
            send(data, other)  # what lies in order here needs no gathering
            receive(byte, other)

        return {"put": put, "get": get, "notify": trip, "blocks": blocks}[case.what]

    def attend(self, case: Case, rounds: int, is_over: Callable[[], bool]) -> None:
        """Do the other part."""
        send, receive, byte = self._dist.send, self._dist.recv, self._byte
        other, data = 1 - self._rank, self._all[: max(1, case.total)]
        if case.what == "blocks":
            bulk = self._bulk[: case.total]
            whole = data.view(case.count, case.nbytes)
            order = self._torch.from_numpy(case.order)
        for _ in range(rounds):
            if case.what == "get":
                receive(byte, other)
                send(data, other)
                continue
            if case.what == "blocks":
                receive(bulk, other)
                whole[order] = bulk.view(case.count, case.nbytes)
            else:
                receive(data if case.what == "put" else byte, other)
            send(byte, other)


def open_side(role: str, path: str, nbytes: int) -> Side:
    """Return a side."""
    return Gloo(role, path, nbytes)
