"""One rank's connections to its peers on other hosts, by NIXL.

Compiled code calls it by way of Python: a request of NIXL takes some tens of
microseconds, beside which the interpreter's lock is little.

NIXL gives that lock back while it works, and an agent takes one thread at a time: so
whoever calls it holds a lock of the hop's.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import secrets
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stretto.errors import DeviceError, RendezvousError
from stretto.hop import MORE, Window
from stretto.hop.nixl.batches import Batch, Lane, Piece, pack, unpack
from stretto.hop.nixl.entries import Entries
from stretto.hop.nixl.leaving import ends_with_process
from stretto.hop.nixl.library import backend, new_agent
from stretto.hop.tcp.interface import address_towards

__all__ = ["NixlHop"]

_SLOTS, _SLOT, _SMALL_SLOT = 128, 1 << 16, 1 << 12
"""Copies of callers' memory that may be under way; what is larger is registered. They
are small where nearly all is put from memory that is registered."""
_NAP_S = 50e-6
_MOST_SELECTED = 1024
"""Descriptors below this number are for `select`."""
_LOW = 0xFFFFFFFF
_ADVICE = "set STRETTO_CARRIER and STRETTO_NIXL alike everywhere"


class NixlHop:
    """See `stretto.hop.Hop`."""

    has_fields, is_armed = False, False

    def __init__(self, window: Window, *, has_calls: bool = True) -> None:
        """Make an agent, and register the window, with what is put from beside it."""
        self._window, self.lanes = window, window.lanes
        self._turn = threading.RLock()
        ends = window.puts[1], window.words[1], window.sources[1]
        self._memory = window.address, window.address + max(ends)
        """What is registered once, from and to."""
        self._host = address_towards(window.towards or "127.0.0.1")
        self._name = f"stretto-{window.rank}-{secrets.token_hex(8)}"
        self._token = hmac.digest(window.secret, b"stretto hop nixl 1", "sha256")[:16]
        self._slot = _SMALL_SLOT if window.sources[1] else _SLOT
        self._slots = np.zeros((_SLOTS, self._slot), dtype=np.uint8)
        self._free = list(range(_SLOTS))
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._names: dict[int, str] = {}
        self._ranks: dict[str, int] = {}
        self._bases: dict[int, int] = {}
        self._ended: dict[int, str] = {}
        self._fence = threading.Lock()
        try:
            self._agent: Any = new_agent(self._name, (backend(),))
            self._registered = [
                self._agent.register_memory([(at, nbytes, 0, "")], "DRAM")
                for at, nbytes in (
                    (window.address, max(ends)),
                    (int(self._slots.ctypes.data), self._slots.nbytes),
                )
            ]
        except Exception as e:
            raise DeviceError(
                f"NIXL, backend {backend()}: {_said(e)}; with NIXL_LOG_LEVEL=INFO it "
                "says what it lacks"
            ) from e
        ends_with_process(self)
        self._entries = Entries(self) if has_calls else None
        self.calls = self._entries.calls if self._entries else None
        self.by = f"NIXL's backend is {backend()}"
        """By what it goes, for who asks."""

    def share(self) -> Mapping[str, Any]:
        """Return what peers must know: the agent's metadata, and where memory lies."""
        with self._turn:
            agent = self._agent.get_agent_metadata()
        return {
            "carrier": "nixl",
            "host": self._host,
            "backend": backend(),
            "agent": agent.hex(),
            "mac": self._mac(agent),
            "base": self._window.address,
        }

    def connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Learn of every peer; NIXL connects with them when they are used."""
        del within_s, check  # nobody is waited for
        with self._turn:
            for peer in peers:
                self._meet(peer, shares[peer])

    def _meet(self, peer: int, said: Any) -> None:
        rank = self._window.rank
        if self._agent is None:
            raise RendezvousError(f"rank {rank}: its hop has been closed")
        theirs = said.get("carrier"), said.get("backend")
        if theirs != ("nixl", backend()):
            raise RendezvousError(
                f"rank {peer} is reached by {' '.join(filter(None, theirs))}, rank "
                f"{rank} by nixl {backend()}; {_ADVICE}"
            )
        try:
            told = bytes.fromhex(said["agent"])
            if not hmac.compare_digest(self._mac(told), str(said["mac"])):
                raise ValueError("what it says of itself is garbled")
            raw = self._agent.add_remote_agent(told)
            name = raw.decode() if isinstance(raw, bytes) else str(raw)
            if name == self._name or name in self._ranks:
                raise ValueError(f"there is a {name!r} already")
        except Exception as e:
            raise RendezvousError(
                f"rank {rank} cannot reach rank {peer} on {said['host']} by NIXL's "
                f"{backend()}: {_said(e)}; {_ADVICE}, of one version"
            ) from e
        self._names[peer], self._ranks[name] = name, peer
        self._bases[peer] = int(said["base"])
        for lane in range(self._window.lanes):
            self._lanes[peer, lane] = Lane(peer)

    def _mac(self, agent: bytes) -> str:
        """Return what shows that metadata are a rank's: NIXL reads them unchecked."""
        return hmac.digest(self._window.secret, b"agent" + agent, "sha256").hex()

    def end_all(self, error: Exception) -> None:
        """Note that nobody can be reached any more."""
        with self._turn:
            for peer in self._names:
                self._end(peer, error)

    # What is sent.

    def put(self, peer: int, lane: int, source: int, offset: int, nbytes: int) -> bool:
        """Take a put; it goes with the signal after it."""
        with self._turn:
            way = self._way(peer, lane)
            if self._is_deaf(peer) or way.next.is_full:
                return False
            if not nbytes:
                return True
            piece = self._piece(source, offset, nbytes)
            if piece is None:
                self.progress()
                return False
            way.next.pieces.append(piece)
            return True

    def signal(
        self, peer: int, lane: int, offset: int, value: int, side: int,
        words: Sequence[int],
    ) -> bool:  # fmt: skip
        """Raise a peer's word after what its lane has put."""
        with self._turn:
            way = self._way(peer, lane)
            if self._is_deaf(peer) or way.next.is_full:
                return False
            if not way.next:  # a notification alone has no end that one could see
                said = np.array(words, dtype=np.int64)
                if not self.put(peer, lane, int(said.ctypes.data), side, said.nbytes):
                    return False
            way.next.signals.append((offset, value, side, *words))
            if not lane & MORE:
                self._post(way)
            return True

    def _is_deaf(self, peer: int) -> bool:
        return peer in self._ended or self._agent is None

    def _way(self, peer: int, lane: int) -> Lane:
        return self._lanes[peer, (lane & _LOW) % self._window.lanes]

    def _piece(self, source: int, offset: int, nbytes: int) -> Piece | None:
        """Return a put whose source is registered; None: there is no room yet."""
        if self._memory[0] <= source and source + nbytes <= self._memory[1]:
            return Piece(source, offset, nbytes)
        if nbytes > self._slot:
            made = self._agent.register_memory([(source, nbytes, 0, "")], "DRAM")
            return Piece(source, offset, nbytes, registered=made)
        if not self._free:
            return None
        slot = self._free.pop()
        at = int(self._slots[slot].ctypes.data)
        ctypes.memmove(at, source, nbytes)
        return Piece(at, offset, nbytes, slot)

    def _post(self, way: Lane) -> None:
        """Send what a lane has collected, unless something of it is under way."""
        if way.flying is not None or not way.next or self._agent is None:
            return
        batch, way.next = way.next, Batch()
        agent, name, base = self._agent, self._names[way.peer], self._bases[way.peer]
        said = pack(self._token, batch.signals) if batch.signals else b""
        way.flying = batch
        try:
            here = [(p.source, p.nbytes, 0) for p in batch.pieces]
            there = [(base + p.offset, p.nbytes, 0) for p in batch.pieces]
            way.request = agent.initialize_xfer(
                "WRITE", agent.get_xfer_descs(here, "DRAM"),
                agent.get_xfer_descs(there, "DRAM"), name, said,
            )  # fmt: skip
            self._followed(way, agent.transfer(way.request))
        except Exception as e:
            self._end(way.peer, e)

    def _followed(self, way: Lane, state: str) -> bool:
        """Note how a request fares; return whether it is done."""
        if state == "PROC":
            return False
        if state != "DONE":
            raise DeviceError(f"a request ended as {state}")
        self._let_go(way)
        return True

    def _let_go(self, way: Lane) -> None:
        """End a request, and give back what it read; else it may still be read."""
        batch, way.flying = way.flying, None
        request, way.request = way.request, None
        if request is not None:
            self._agent.release_xfer_handle(request)
        if batch is not None:
            self._give_back(batch)

    def _give_back(self, batch: Batch) -> None:
        for piece in batch.pieces:
            if piece.slot >= 0:
                self._free.append(piece.slot)
            if piece.registered is not None:
                self._agent.deregister_memory(piece.registered)

    def _end(self, peer: int, how: Exception | str) -> None:
        """Note how a peer has ended; nothing of its requests is under way any more."""
        said = how if isinstance(how, str) else f"NIXL: {_said(how)}"
        self._ended.setdefault(peer, said)
        for way in self._lanes.values():
            if way.peer == peer:
                batch, way.next = way.next, Batch()
                with contextlib.suppress(Exception):  # NIXL has let go already
                    self._give_back(batch)
                with contextlib.suppress(Exception):
                    self._let_go(way)

    # What comes, and waiting.

    def progress(self) -> int:
        """Send and receive what can be; return how much was done."""
        with self._turn:
            return 0 if self._agent is None else self._progressed()

    def _progressed(self) -> int:
        moved = 0
        try:
            heard = self._agent.get_new_notifs()
        except Exception as e:  # it says nothing of whose fault it is
            self.end_all(e)
            return 0
        for name, said in heard.items():
            for one in said:
                self._hear(name, one)
                moved += 1
        for way in self._lanes.values():
            if way.peer in self._ended:
                continue
            try:
                if way.flying is not None:
                    state = self._agent.check_xfer_state(way.request)
                    moved += self._followed(way, state)
            except Exception as e:
                self._end(way.peer, e)
            else:
                self._post(way)
        return moved

    def _hear(self, name: str, said: bytes) -> None:
        peer = self._ranks.get(name)
        if peer is None:  # none of ours
            return
        signals = unpack(self._token, said)
        if signals is None or not all(self._raise(*one) for one in signals):
            self._end(peer, "it sent what makes no sense")

    def _raise(self, offset: int, value: int, side: int, *words: int) -> bool:
        low, high = self._window.words
        inside = all(low <= x < high and x % 8 == 0 for x in (offset, side, side + 16))
        if not inside:
            return False
        base = self._window.address
        for i, word in enumerate(words):
            ctypes.c_int64.from_address(base + side + 8 * i).value = word
        with self._fence:  # what has come is visible before the word
            flag = ctypes.c_int64.from_address(base + offset)
        flag.value = max(flag.value, value)
        return True

    def wait(self, microseconds: int) -> int:
        """Sleep in naps until something comes, at most so long: NIXL wakes nobody."""
        until = time.monotonic() + microseconds / 1e6
        wake = self._window.wake
        woken = [wake] if 0 <= wake < _MOST_SELECTED else []
        while not self.progress():
            left = until - time.monotonic()
            if left <= 0:
                return 0
            if select.select(woken, [], [], min(left, _NAP_S))[0]:
                return 1
        return 1

    def busy(self, which: int = 0) -> int:
        """Return whether something is under way: anywhere, or of one lane."""
        ways = list(self._lanes.values())
        if which:
            ways = [self._lanes[divmod(which - 1, self.lanes)]]
        alive = [way for way in ways if way.peer not in self._ended]
        return int(any(way.next or way.flying is not None for way in alive))

    @property
    def descriptors(self) -> Sequence[int]:
        """Return nothing: NIXL has none."""
        return ()

    def arm(self) -> bool:
        """Nap, and return that something may be there: nothing turns readable."""
        time.sleep(_NAP_S)
        return False

    @property
    def has_ended(self) -> bool:
        """Return whether a connection has ended."""
        return bool(self._ended)

    def faults(self) -> Mapping[int, str]:
        """Return the peers whose connection has ended, and how."""
        return dict(self._ended)

    def close(self) -> None:
        """Send what was begun, as far as peers take it, and forget them."""
        until = time.monotonic() + self._window.linger_s
        while self.busy() and time.monotonic() < until:
            self.progress()
        self.end()

    def end(self) -> None:
        """Forget peers at once; nothing of NIXL's is called afterwards."""
        with self._turn:
            agent, self._agent = self._agent, None
            if agent is not None:
                self._forget(agent)

    def _forget(self, agent: Any) -> None:
        """Take requests and memory back, whatever NIXL says of one or another."""
        ways = list(self._lanes.values())
        requests = [way.request for way in ways if way.request is not None]
        held = [p.registered for way in ways for p in way.pieces if p.registered]
        for way in ways:
            way.next, way.flying, way.request = Batch(), None, None
        for forget, some in (
            (agent.release_xfer_handle, requests),
            (agent.remove_remote_agent, self._names.values()),
            (agent.deregister_memory, (*held, *self._registered)),
        ):
            for one in some:
                try:
                    forget(one)
                except Exception as e:  # it is gone already
                    self._ended.setdefault(-1, str(e))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
