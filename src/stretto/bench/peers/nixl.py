"""NIXL between pairs: each rank writes into its peer's buffer, and says that it has.

What is registered is in the metadata that agents exchange: between ranks as files in
the folder that they share, in transfers by whoever compares.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stretto.bench.contender import CallBuffer, Contender, PreparedCall, Setup
from stretto.bench.peers._side import MovingSide
from stretto.bench.timing import Call
from stretto.bench.workload.cases import WINDOW, CallCase
from stretto.bench.workload.moves import MoveCase
from stretto.errors import CallError
from stretto.fabric.hop.nixl import library

_BETWEEN_LOOKS = 64
_PATIENCE_S = 30.0
_SENT, _ACK = b"sent", b"acknowledged"


class NixlPairs(Contender):
    """Writes between pairs, with its default transport: an agent for every case."""

    DEVICES = ("cpu", "cuda")
    NEEDS = ("nixl", "pip install nixl")

    @classmethod
    def open(cls, setup: Setup) -> Contender:
        """Return NIXL with its default transport, UCX."""
        library.keep_apart()
        return cls(importlib.import_module("nixl._api"), setup)

    def __init__(self, api: Any, setup: Setup) -> None:
        self._api, self._setup = api, setup
        self._num_cases = 0
        self._pair: _Pair | None = None

    def prepare(self, case: CallCase, x: CallBuffer, out: CallBuffer) -> PreparedCall:
        """Bind a case to buffers, and meet the peer (collective)."""
        if case.collective != "p2p":
            raise CallError("NIXL moves data between pairs only")
        self.close()
        self._num_cases += 1
        rank = self._setup.rank
        side = case.side(rank)
        if side is None:
            return PreparedCall(call=lambda: None, x=x, out=out)
        peer, first = side
        pair = _Pair(self._api, f"{rank}-{self._num_cases}", x, out)
        pair.meet(Path(self._setup.meet), f"{peer}-{self._num_cases}")
        self._pair = pair
        return PreparedCall(call=_call_of(case, pair, first=first), x=x, out=out)

    def close(self) -> None:
        """Give the agent back."""
        if self._pair is not None:
            self._pair.close()
            self._pair = None


class _Pair:
    """One agent, what it has registered, and a peer's agent."""

    def __init__(self, api: Any, name: str, x: CallBuffer, out: CallBuffer) -> None:
        self._name = name
        self._agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        kind, source = _place(x)
        _, self._target = _place(out)
        self._kind, self._peer = kind, ""
        regions = [(*place, "") for place in dict.fromkeys((source, self._target))]
        self._registered = self._agent.register_memory(regions, kind)
        self._source = self._agent.get_xfer_descs([source], kind)
        self._handles: list[Any] = []

    def meet(self, folder: Path, peer: str) -> None:
        """Exchange metadata with the peer's agent, and prepare to write to it."""
        agent = self._agent
        card = {
            "metadata": base64.b64encode(agent.get_agent_metadata()).decode(),
            "target": self._target,
        }
        fresh = folder / f"nixl-{self._name}.new"
        fresh.write_text(json.dumps(card), encoding="utf-8")
        fresh.replace(folder / f"nixl-{self._name}")
        theirs = folder / f"nixl-{peer}"
        _until(theirs.exists, f"rank {peer.partition('-')[0]} to show its metadata")
        told = json.loads(theirs.read_text(encoding="utf-8"))
        self._peer = agent.add_remote_agent(base64.b64decode(told["metadata"]))
        if isinstance(self._peer, bytes):
            self._peer = self._peer.decode()
        remote = agent.get_xfer_descs([tuple(told["target"])], self._kind)
        self._handles = [
            agent.initialize_xfer("WRITE", self._source, remote, self._peer, _SENT)
            for _ in range(WINDOW)
        ]

    def write(self, messages: int = 1) -> None:
        """Write so many times, and wait until all has left."""
        agent, handles = self._agent, self._handles[:messages]
        states = [agent.transfer(handle, _SENT) for handle in handles]
        for handle, began in zip(handles, states, strict=True):
            state = began
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise CallError(f"NIXL: the transfer is in state {state}")

    def hear(self, messages: int = 1, tag: bytes = _SENT) -> None:
        """Wait until the peer has written, or said, something so many times."""
        done, peer = self._agent.check_remote_xfer_done, self._peer
        for _ in range(messages):
            while not done(peer, tag):
                pass

    def say(self) -> None:
        """Tell the peer that all has come."""
        self._agent.send_notif(self._peer, _ACK)

    def close(self) -> None:
        """Release everything."""
        for handle in self._handles:
            self._agent.release_xfer_handle(handle)
        self._handles = []
        self._agent.deregister_memory(self._registered)
        if self._peer:
            self._agent.remove_remote_agent(self._peer)


def _call_of(case: CallCase, pair: _Pair, *, first: bool) -> Call:
    if case.test == "bibw":

        def both() -> None:
            pair.write(WINDOW)
            pair.hear(WINDOW)

        return both
    many = WINDOW if case.test == "bw" else 1

    def give() -> None:
        pair.write(many)
        pair.hear(tag=_ACK) if many > 1 else pair.hear()

    def take() -> None:
        pair.hear(many)
        pair.say() if many > 1 else pair.write()

    return give if first else take


def _place(buffer: CallBuffer) -> tuple[str, tuple[int, int, int]]:
    """Return the kind of memory, and address, bytes and device."""
    if buffer.host is not None:
        return "DRAM", (buffer.host.ctypes.data, buffer.host.nbytes, 0)
    tensor = buffer.tensor
    if tensor is None:
        raise CallError("NIXL is given tensors on GPUs; want --buffer torch")
    nbytes = tensor.numel() * tensor.element_size()
    return "VRAM", (tensor.data_ptr(), nbytes, tensor.get_device())


def _until(is_so: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up:
            raise CallError(f"NIXL waited {_PATIENCE_S:g} s for {what}")
        time.sleep(0.001)


class NixlSide(MovingSide):
    """An agent, and its memory; prepared transfers, notifications as it sends them.

    Without its progress thread, which takes a core: whoever attends polls instead.
    """

    PATHS = ("cross-memory", "tcp")

    @classmethod
    def missing(cls) -> str:
        """Return why it is not there, or nothing."""
        return library.missing()

    @classmethod
    def environment(cls, path: str = "") -> Mapping[str, str]:
        """Return what must be set."""
        quiet = {"NIXL_LOG_LEVEL": "ERROR"}
        return {**quiet, "UCX_TLS": "tcp,self"} if path == "tcp" else quiet

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

    def prepare(self, case: MoveCase) -> Callable[[], None]:
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

    def attend(self, case: MoveCase, rounds: int, is_over: Callable[[], bool]) -> None:
        """Poll, and answer."""
        agent = self._agent
        while not is_over():
            for _ in range(_BETWEEN_LOOKS):
                for peer, tags in agent.get_new_notifs().items():
                    for _ in tags:
                        agent.send_notif(peer, b"pong")


OFFERS = (NixlPairs, NixlSide)
