"""Gloo through torch.distributed, one thread a rank, on the CPU."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from stretto.bench.contender import Contender, Setup
from stretto.bench.peers._side import MovingSide
from stretto.bench.peers._torch import TorchPeer, require_torch, start_group
from stretto.bench.workload.moves import MoveCase


class Gloo(TorchPeer):
    """Its collectives, and its messages between pairs."""

    DEVICES = ("cpu",)

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return Gloo on all ranks (collective)."""
        require_torch().set_num_threads(1)
        return cls(start_group(setup, "gloo", "gloo"))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class GlooSide(MovingSide):
    """A rank of two: it has no one-sided calls, so both sides take part.

    A put is a send that is answered with a byte, a get is a byte that is answered;
    blocks are gathered into one message here, and scattered there.
    """

    PATHS = ("tcp",)
    NEEDS = ("torch", "pip install torch")

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Return what must be set."""
        return {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

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

    def prepare(self, case: MoveCase) -> Callable[[], None]:
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

    def attend(self, case: MoveCase, rounds: int, is_over: Callable[[], bool]) -> None:
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


OFFERS = (Gloo, GlooSide)
