"""One rank's connections to its peers on other hosts, by UCX.

Which fabric it takes, UCX finds; its own variables, such as UCX_TLS, count. What peers
must know goes by the meeting, which has proved who they are: there is no other door.

A worker of UCX takes one thread at a time. Whoever calls holds the context's lock: the
compiled functions by themselves, and what is here with `held`. UCX frees an end point,
a key or a worker at once, so none of them is used without it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.errors import DeviceError, RendezvousError
from stretto.fabric.hop import Carrier, CompiledHop, Window
from stretto.fabric.hop.ucx import engine, messages
from stretto.fabric.hop.ucx.library import device_for, load
from stretto.fabric.hop.ucx.structures import (
    AM,
    COPY_HEADER,
    EAGER,
    FORCE,
    RMA,
    SERIALIZED,
    WAKEUP,
    ContextParams,
    EndPointAttributes,
    EndPointParams,
    HandlerParams,
    MemoryParams,
    RequestParams,
    Transport,
    WorkerParams,
)
from stretto.fabric.hop.ucx.words import MOST, SLOT_WORDS, SLOTS, Context, PeerWord
from stretto.fabric.jit.atomics import entry
from stretto.fabric.jit.locks import held

__all__ = ["RMA", "UcxHop"]

_CANCELLED = -16
_IN_PROGRESS = 1
_MOST_TRANSPORTS = 64
_WITHOUT_PUTS = (b"tcp", b"ud_", b"srd")
"""Transports where UCX emulates puts: TCP, and datagrams of InfiniBand and EFA."""
_LAST_TURNS = 2000
"""Of a close: for what peers may still take."""
_FUNCTIONS = {
    Context.PUT: "ucp_put_nbx",
    Context.FLUSH: "ucp_ep_flush_nbx",
    Context.PROGRESS: "ucp_worker_progress",
    Context.CHECK: "ucp_request_check_status",
    Context.FREE: "ucp_request_free",
    Context.ARM: "ucp_worker_arm",
    Context.MESSAGE: "ucp_am_send_nbx",
}


class UcxHop(CompiledHop):
    """A worker, and an end point for every peer."""

    last_turns = _LAST_TURNS
    features = RMA | WAKEUP | AM
    hears_of_death = True
    """Whether UCX says which peers are gone. It picks transports by these two."""

    def __init__(self, carrier: Carrier, window: Window) -> None:
        """Make a worker, and register the window."""
        super().__init__(carrier, window)
        self._ucp = load()
        self._peers = np.zeros((window.num_ranks, PeerWord.END), np.int64)
        self._requests = np.zeros((MOST, 3), np.int64)
        self._slots = np.zeros((SLOTS, SLOT_WORDS), np.int64)
        self._nothing_said = RequestParams()
        self._of_messages = RequestParams(EAGER | COPY_HEADER)
        self._context = np.zeros(Context.END, np.int64)
        self._end_points: dict[int, int] = {}
        self._is_open = True
        self._ucx, self._worker = ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = ctypes.c_void_p()
        self.use(engine, int(self._context.ctypes.data))
        self._lock = self._at + Context.LOCK.at
        self._open()

    def _open(self) -> None:
        ucp, window, by = self._ucp, self.window, ctypes.byref
        config = ctypes.c_void_p()
        ucp.ask("ucp_config_read", None, None, by(config))
        # Messages are in order on one stream only.
        ucp.ask("ucp_config_modify", config, b"MAX_EAGER_RAILS", b"1")
        if device := device_for(self.host):
            ucp.ask("ucp_config_modify", config, b"NET_DEVICES", device.encode())
        wanted = ContextParams(self.features)
        major, minor = ucp.numbers[:2]
        try:
            ucp.ask("ucp_init_version", major, minor, by(wanted), config, by(self._ucx))
        finally:
            ucp.call("ucp_config_release", config)
        serialized = WorkerParams(SERIALIZED)
        ucp.ask("ucp_worker_create", self._ucx, by(serialized), by(self._worker))
        nbytes = window.nbytes
        memory = MemoryParams(window.address, nbytes)
        ucp.ask("ucp_mem_map", self._ucx, by(memory), by(self._memory))
        self._of_mapped = RequestParams(memory=int(self._memory.value or 0))
        number = ctypes.c_int(-1)
        if self.features & WAKEUP:
            ucp.ask("ucp_worker_get_efd", self._worker, by(number))
        words = self._context
        words[Context.WORKER] = int(self._worker.value or 0)
        for word, name in _FUNCTIONS.items():
            words[word] = ucp.address(name)
        words[Context.PARAMETERS] = ctypes.addressof(self._nothing_said)
        words[Context.MESSAGE_PARAMETERS] = ctypes.addressof(self._of_messages)
        words[Context.RANK], words[Context.NUM_RANKS] = window.rank, window.num_ranks
        inside = window.address, *window.puts, *window.words
        words[Context.WINDOW : Context.WINDOW + len(inside)] = inside
        words[Context.MAPPED] = nbytes
        words[Context.MAPPED_PARAMETERS] = ctypes.addressof(self._of_mapped)
        words[Context.PEERS] = self._peers.ctypes.data
        words[Context.REQUESTS] = self._requests.ctypes.data
        words[Context.SLOTS] = self._slots.ctypes.data
        words[Context.POLLED] = number.value
        words[Context.POLLED + 1] = window.wake & 0xFFFFFFFF
        if self.features & AM:
            took = HandlerParams(messages.NUMBER, entry(messages.took), self._at)
            ucp.ask("ucp_worker_set_am_recv_handler", self._worker, by(took))

    def do_share(self) -> Mapping[str, Any]:
        """Return what peers must know: the worker's address, and the memory's key."""
        ucp, by = self._ucp, ctypes.byref
        found, size = ctypes.c_void_p(), ctypes.c_size_t()
        with held(self._lock):
            self._check_open()
            ucp.ask("ucp_worker_get_address", self._worker, by(found), by(size))
            address = ctypes.string_at(found.value or 0, size.value)
            ucp.call("ucp_worker_release_address", self._worker, found)
            ucp.ask("ucp_rkey_pack", self._ucx, self._memory, by(found), by(size))
            key = ctypes.string_at(found.value or 0, size.value)
            ucp.call("ucp_rkey_buffer_release", found)
        base = self.window.address
        return {"worker": address.hex(), "key": key.hex(), "base": base}

    def do_connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float
    ) -> None:
        """Make an end point for every peer; UCX connects them when they are used."""
        for peer in peers:
            said = shares[peer]
            worker, key = bytes.fromhex(said["worker"]), bytes.fromhex(said["key"])
            try:
                with held(self._lock):
                    self._check_open()
                    self._meet(peer, worker, key, int(said["base"]))
            except DeviceError as e:
                raise RendezvousError(
                    f"rank {self.window.rank} cannot reach rank {peer} on "
                    f"{said.get('host')}: {e}"
                ) from e

    def _check_open(self) -> None:
        if not self._is_open:
            raise RendezvousError(f"rank {self.window.rank}: its hop has been closed")

    def _meet(self, peer: int, worker: bytes, key: bytes, base: int) -> None:
        """Make a peer's end point; UCX copies what it is given."""
        ucp, by, words = self._ucp, ctypes.byref, self._peers[peer]
        address, packed = ctypes.c_char_p(worker), ctypes.c_char_p(key)
        status = int(words.ctypes.data) + PeerWord.STATUS.at
        asked = EndPointParams(
            ctypes.cast(address, ctypes.c_void_p).value or 0,
            int(self.hears_of_death), entry(engine.ended), status,
        )  # fmt: skip
        point, unpacked = ctypes.c_void_p(), ctypes.c_void_p()
        ucp.ask("ucp_ep_create", self._worker, by(asked), by(point))
        self._end_points[peer] = words[PeerWord.END_POINT] = int(point.value or 0)
        ucp.ask("ucp_ep_rkey_unpack", point, packed, by(unpacked))
        words[PeerWord.KEY], words[PeerWord.BASE] = int(unpacked.value or 0), base
        if self.features & AM:
            words[PeerWord.BY_MESSAGES] = int(self._is_emulated(point))

    def _is_emulated(self, point: ctypes.c_void_p) -> bool:
        """Return whether UCX goes to an end point by what puts nothing, such as TCP."""
        found = (Transport * _MOST_TRANSPORTS)()
        said = EndPointAttributes(found)
        self._ucp.ask("ucp_ep_query", point, ctypes.byref(said))
        names = [one.transport_name or b"" for one in found[: said.num_entries]]
        return all(name.startswith(_WITHOUT_PUTS) for name in names)

    def handles(self, peer: int) -> tuple[int, int, int]:
        """Return UCX's worker, end point and key, for who calls UCX itself."""
        words = self._peers[peer]
        worker = int(self._context[Context.WORKER])
        return worker, int(words[PeerWord.END_POINT]), int(words[PeerWord.KEY])

    def do_descriptors(self) -> Sequence[int]:
        """Return the worker's."""
        return [int(self._context[Context.POLLED]) & 0xFFFFFFFF]

    def do_arm(self) -> bool:
        """Have the worker's descriptor turn readable; False: something is there."""
        return bool(engine.arm(self._at, 0))

    def do_faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""
        return {
            peer: self._ucp.spell(int(self._peers[peer, PeerWord.STATUS]))
            for peer in self._end_points
            if self._peers[peer, PeerWord.STATUS]
        }

    def do_close(self) -> None:
        """End all connections."""
        with held(self._lock):
            if self._is_open:
                self._is_open = False
                self._end()

    def _end(self) -> None:
        ucp, statuses = self._ucp, self._peers[:, PeerWord.STATUS]
        statuses[statuses == 0] = _CANCELLED  # nothing is begun any more
        closing = self._let_go() if self.hears_of_death else []
        for _ in range(_LAST_TURNS):
            engine.turn(self._at)
            closing = [request for request in closing if not self._is_done(request)]
            if not closing and not self.busy():
                break
        for key in map(int, self._peers[:, PeerWord.KEY]):
            if key:
                ucp.call("ucp_rkey_destroy", ctypes.c_void_p(key))
        self._context[Context.WORKER] = 0  # late calls do nothing
        self._context[Context.POLLED] = -1
        ucp.call("ucp_worker_destroy", self._worker)
        ucp.call("ucp_mem_unmap", self._ucx, self._memory)
        ucp.call("ucp_cleanup", self._ucx)

    def _let_go(self) -> list[int]:
        """Begin to end all end points, and with them what is under way to them."""
        forced, requests = RequestParams(FORCE), []
        for point in map(ctypes.c_void_p, self._end_points.values()):
            given = point, ctypes.byref(forced)
            request = self._ucp.call(
                "ucp_ep_close_nbx", *given, result=ctypes.c_ssize_t
            )
            requests.append(int(request))
        return [request for request in requests if request > 0]

    def _is_done(self, request: int) -> bool:
        of = ctypes.c_void_p(request)
        status = self._ucp.call("ucp_request_check_status", of, result=ctypes.c_int)
        if int(status) == _IN_PROGRESS:
            return False
        self._ucp.call("ucp_request_free", of)
        return True
