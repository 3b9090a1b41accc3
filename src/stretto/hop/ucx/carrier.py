"""One rank's connections to its peers on other hosts, by UCX.

Which fabric it takes, UCX finds; its own variables, such as UCX_TLS, count. What peers
must know goes by the meeting, which has proved who they are: there is no other door.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stretto.errors import RendezvousError
from stretto.hop import Calls, Window
from stretto.hop.tcp.interface import address_towards
from stretto.hop.ucx import engine
from stretto.hop.ucx.library import load
from stretto.hop.ucx.words import MOST, SLOT_WORDS, SLOTS, Context, Peer
from stretto.jit.atomics import entry

__all__ = ["RMA", "UcxHop"]

RMA, _WAKEUP = 2, 16
_CANCELLED = -16
_ON_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_FUNCTIONS = {
    Context.PUT: "ucp_put_nbx",
    Context.FLUSH: "ucp_ep_flush_nbx",
    Context.PROGRESS: "ucp_worker_progress",
    Context.CHECK: "ucp_request_check_status",
    Context.FREE: "ucp_request_free",
    Context.ARM: "ucp_worker_arm",
}


class _Params(ctypes.Structure):
    """`ucp_params_t`, `ucp_worker_params_t`: a mask, a number, and room for more."""

    _fields_ = (("mask", ctypes.c_uint64), ("first", ctypes.c_uint64),
                ("rest", ctypes.c_uint64 * 32))  # fmt: skip


class _EndPoint(ctypes.Structure):
    """`ucp_ep_params_t`, as far as it is used."""

    _fields_ = (
        ("mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("err_mode", ctypes.c_uint32),
        ("err_handler", ctypes.c_void_p),
        ("err_argument", ctypes.c_void_p),
        ("rest", ctypes.c_uint64 * 16),
    )


class _Memory(ctypes.Structure):
    """`ucp_mem_map_params_t`."""

    _fields_ = (
        ("mask", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("length", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 8),
    )


class UcxHop:
    """See `stretto.hop.Hop`."""

    has_fields, lanes, is_armed = False, 1, False
    features = RMA | _WAKEUP
    hears_of_death = True
    """Whether UCX says which peers are gone. It picks transports by these two."""

    def __init__(self, window: Window) -> None:
        """Make a worker, and register the window."""
        self._window, self._ucp = window, load()
        self._host = address_towards(window.towards or "127.0.0.1")
        self._peers = np.zeros((window.num_ranks, Peer.END), np.int64)
        self._requests = np.zeros((MOST, 3), np.int64)
        self._slots = np.zeros((SLOTS, SLOT_WORDS), np.int64)
        self._parameters = np.zeros(32, np.int64)
        self._context = np.zeros(Context.END, np.int64)
        self._arguments = np.zeros(8, np.int64)
        self._kept: list[Any] = []
        self._end_points: dict[int, int] = {}
        self._is_open = True
        self._ucx, self._worker = ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = ctypes.c_void_p()
        self._open()
        self._at = int(self._context.ctypes.data)
        functions = (
            engine.put, engine.signal, engine.progress, engine.wait, engine.busy
        )  # fmt: skip
        self.calls = Calls(self._at, *map(entry, functions))

    def _open(self) -> None:
        ucp, window, by = self._ucp, self._window, ctypes.byref
        config = ctypes.c_void_p()
        ucp.ask("ucp_config_read", None, None, by(config))
        wanted = _Params(1, self.features)
        major, minor = ucp.numbers[:2]
        try:
            ucp.ask("ucp_init_version", major, minor, by(wanted), config, by(self._ucx))
        finally:
            ucp.call("ucp_config_release", config)
        serialized = _Params(1, 1)
        ucp.ask("ucp_worker_create", self._ucx, by(serialized), by(self._worker))
        nbytes = max(window.puts[1], window.words[1])
        memory = _Memory(3, window.address, nbytes)
        ucp.ask("ucp_mem_map", self._ucx, by(memory), by(self._memory))
        number = ctypes.c_int(-1)
        if self.features & _WAKEUP:
            ucp.ask("ucp_worker_get_efd", self._worker, by(number))
        words = self._context
        words[Context.WORKER] = int(self._worker.value or 0)
        for word, name in _FUNCTIONS.items():
            words[word] = ucp.address(name)
        words[Context.PARAMETERS] = self._parameters.ctypes.data
        words[Context.PEERS] = self._peers.ctypes.data
        words[Context.REQUESTS] = self._requests.ctypes.data
        words[Context.SLOTS] = self._slots.ctypes.data
        words[Context.POLLED] = number.value
        words[Context.POLLED + 1] = window.wake & 0xFFFFFFFF

    def share(self) -> Mapping[str, Any]:
        """Return what peers must know: the worker's address, and the memory's key."""
        ucp, by = self._ucp, ctypes.byref
        found, size = ctypes.c_void_p(), ctypes.c_size_t()
        ucp.ask("ucp_worker_get_address", self._worker, by(found), by(size))
        address = ctypes.string_at(found.value or 0, size.value)
        ucp.call("ucp_worker_release_address", self._worker, found)
        ucp.ask("ucp_rkey_pack", self._ucx, self._memory, by(found), by(size))
        key = ctypes.string_at(found.value or 0, size.value)
        ucp.call("ucp_rkey_buffer_release", found)
        return {
            "carrier": "ucx",
            "host": self._host,
            "worker": address.hex(),
            "key": key.hex(),
            "base": self._window.address,
        }

    def connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Make an end point for every peer; UCX connects them when they are used."""
        del within_s, check  # nobody is waited for
        ucp, by = self._ucp, ctypes.byref
        for peer in peers:
            said = shares[peer]
            if said.get("carrier") != "ucx":
                raise RendezvousError(
                    f"rank {peer} is reached by {said.get('carrier')}, rank "
                    f"{self._window.rank} by ucx; set STRETTO_CARRIER alike everywhere"
                )
            address = ctypes.create_string_buffer(bytes.fromhex(said["worker"]))
            handler = _ON_ERROR(self._noting(peer))
            asked = _EndPoint(
                7,
                ctypes.addressof(address),
                int(self.hears_of_death),
                ctypes.cast(handler, ctypes.c_void_p),
            )
            point, key = ctypes.c_void_p(), ctypes.c_void_p()
            ucp.ask("ucp_ep_create", self._worker, by(asked), by(point))
            packed = ctypes.create_string_buffer(bytes.fromhex(said["key"]))
            ucp.ask("ucp_ep_rkey_unpack", point, packed, by(key))
            self._kept += [address, handler, packed]
            self._end_points[peer] = int(point.value or 0)
            numbers = self._end_points[peer], int(key.value or 0), int(said["base"]), 0
            self._peers[peer] = numbers

    def handles(self, peer: int) -> tuple[int, int, int]:
        """Return UCX's worker, end point and key, for who calls UCX itself."""
        words = self._peers[peer]
        worker = int(self._context[Context.WORKER])
        return worker, int(words[Peer.END_POINT]), int(words[Peer.KEY])

    def _noting(self, peer: int) -> Callable[[Any, Any, int], None]:
        def note(_: Any, __: Any, status: int) -> None:
            self._peers[peer, Peer.STATUS] = status

        return note

    def _given(self, *words: int) -> int:
        self._arguments[: len(words)] = words
        return int(self._arguments.ctypes.data)

    def put(self, peer: int, lane: int, source: int, offset: int, nbytes: int) -> bool:
        """Begin a put."""
        given = self._given(peer, lane, source, offset, nbytes)
        return bool(engine.put(self._at, given))

    def signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a peer's word."""
        given = self._given(peer, lane, offset, value, side, *words)
        return bool(engine.signal(self._at, given))

    def progress(self) -> int:
        """Send and receive what can be."""
        return int(engine.progress(self._at, 0))

    def wait(self, microseconds: int) -> int:
        """Sleep until something comes, at most so long."""
        return int(engine.wait(self._at, microseconds))

    def busy(self) -> int:
        """Return whether something is under way."""
        return int(engine.busy(self._at, 0))

    @property
    def descriptors(self) -> Sequence[int]:
        """Return the worker's, as long as there is one."""
        return [int(self._context[Context.POLLED]) & 0xFFFFFFFF] * self._is_open

    def arm(self) -> bool:
        """Have the worker's descriptor turn readable; False: something is there."""
        if not self._is_open:
            return True
        status = self._ucp.call("ucp_worker_arm", self._worker, result=ctypes.c_int)
        return int(status) == 0

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended."""
        return bool(self.faults())

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""
        return {
            peer: self._ucp.spell(int(self._peers[peer, Peer.STATUS]))
            for peer in self._end_points
            if self._peers[peer, Peer.STATUS]
        }

    def close(self) -> None:
        """Send what was begun, as far as peers take it, and end all connections."""
        if not self._is_open:
            return
        self._is_open = False
        for _ in range(2000):
            if not self.progress() and not self.busy():
                break
        for peer in self._end_points:
            key = ctypes.c_void_p(int(self._peers[peer, Peer.KEY]))
            self._ucp.call("ucp_rkey_destroy", key)
        self._peers[:, Peer.STATUS] = np.where(
            self._peers[:, Peer.STATUS], self._peers[:, Peer.STATUS], _CANCELLED
        )
        self._context[Context.WORKER] = 0  # late calls do nothing
        self._ucp.call("ucp_worker_destroy", self._worker)
        self._ucp.call("ucp_mem_unmap", self._ucx, self._memory)
        self._ucp.call("ucp_cleanup", self._ucx)
