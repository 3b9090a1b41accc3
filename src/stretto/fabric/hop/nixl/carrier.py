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
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.errors import CommunicationError, DeviceError, RendezvousError
from stretto.fabric.hop import Carrier, Hop, Window
from stretto.fabric.hop.connections import NONSENSE
from stretto.fabric.hop.nixl.batches import Batch, BatchedPut, Lane, pack, unpack
from stretto.fabric.hop.nixl.leaving import ends_with_process
from stretto.fabric.hop.nixl.library import backend, new_agent

_SLOTS, _SLOT, _SMALL_SLOT = 128, 1 << 16, 1 << 12
"""Copies of callers' memory that may be under way; what is larger is registered. They
are small where nearly all is put from memory that is registered."""
_ADVICE = "set STRETTO_CARRIER and STRETTO_NIXL alike everywhere"


class NixlHop(Hop):
    """An agent, and for each lane what it collects and what is under way."""

    def __init__(self, carrier: Carrier, window: Window) -> None:
        """Make an agent, and register the window, with what is put from beside it."""
        super().__init__(carrier, window)
        self._turn = threading.RLock()
        self._memory = window.address, window.address + window.nbytes
        """What is registered once, from and to."""
        self._name = f"stretto-{window.rank}-{secrets.token_hex(8)}"
        self._token = hmac.digest(window.secret, b"stretto hop nixl 1", "sha256")[:16]
        self._slot = _SMALL_SLOT if window.sources[1] else _SLOT
        self._slots = np.zeros((_SLOTS, self._slot), dtype=np.uint8)
        self._free = list(range(_SLOTS))
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._names: dict[int, str] = {}
        self._ranks: dict[str, int] = {}
        self._bases: dict[int, int] = {}
        self._bounds: dict[int, tuple[int, int]] = {}
        """Between which offsets may be put to each peer."""
        try:
            self._agent: Any = new_agent(self._name, (backend(),))
            self._registered = [
                self._agent.register_memory([(at, nbytes, 0, "")], "DRAM")
                for at, nbytes in (
                    (window.address, window.nbytes),
                    (int(self._slots.ctypes.data), self._slots.nbytes),
                )
            ]
        except Exception as e:
            raise DeviceError(
                f"NIXL, backend {backend()}: {_said(e)}; with NIXL_LOG_LEVEL=INFO it "
                "says what it lacks"
            ) from e
        ends_with_process(self)
        self.by = f"NIXL's backend is {backend()}"

    def do_share(self) -> Mapping[str, Any]:
        """Return what peers must know: the agent's metadata, and where memory lies."""
        with self._turn:
            agent = self._agent.get_agent_metadata()
        return {
            "backend": backend(),
            "agent": agent.hex(),
            "base": self.window.address,
            "puts": self.window.puts,
        }

    def do_connect(
        self, shares: Sequence[Any], peers: Sequence[int], within_s: float
    ) -> None:
        """Learn of every peer; NIXL connects with them when they are used."""
        with self._turn:
            for peer in peers:
                self._meet(peer, shares[peer])

    def _meet(self, peer: int, said: Any) -> None:
        rank = self.window.rank
        self.require_open()
        if (theirs := said.get("backend")) != backend():
            raise RendezvousError(
                f"rank {peer} is reached by nixl {theirs}, rank {rank} by nixl "
                f"{backend()}; {_ADVICE}"
            )
        try:
            told = bytes.fromhex(said["agent"])
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
        low, high = said["puts"]
        self._bounds[peer] = int(low), int(high)
        for lane in range(self.lanes):
            self._lanes[peer, lane] = Lane(peer)

    # What is sent.

    def do_put(
        self, peer: int, lane: int, source: int, offset: int, nbytes: int
    ) -> bool:
        """Take a put; it goes with the signal after it."""
        with self._turn:
            way = self._way(peer, lane)
            low, high = self._bounds[peer]
            if not low <= offset <= high - nbytes:  # who is put to cannot see it
                raise CommunicationError(
                    f"rank {self.window.rank} puts {nbytes} bytes to rank {peer} at "
                    f"{offset}, outside of its window from {low} to {high}"
                )
            return self._take(way, source, offset, nbytes)

    def _take(self, way: Lane, source: int, offset: int, nbytes: int) -> bool:
        """Take a put of sound bounds, or of the words beside a signal."""
        with self._turn:
            if self._is_deaf(way.peer) or way.next.is_full:
                return False
            if not nbytes:
                return True
            piece = self._piece(source, offset, nbytes)
            if piece is None:
                self.do_progress()
                return False
            way.next.pieces.append(piece)
            return True

    def do_signal(
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
                if not self._take(way, int(said.ctypes.data), side, said.nbytes):
                    return False
            way.next.signals.append((offset, value, side, *words))
            if not self.lane_of(lane)[1]:
                self._post(way)
            return True

    def _is_deaf(self, peer: int) -> bool:
        return peer in self.ended or self._agent is None

    def _way(self, peer: int, lane: int) -> Lane:
        return self._lanes[peer, self.lane_of(lane)[0]]

    def _piece(self, source: int, offset: int, nbytes: int) -> BatchedPut | None:
        """Return a put whose source is registered; None: there is no room yet."""
        if self._memory[0] <= source and source + nbytes <= self._memory[1]:
            return BatchedPut(source, offset, nbytes)
        if nbytes > self._slot:
            made = self._agent.register_memory([(source, nbytes, 0, "")], "DRAM")
            return BatchedPut(source, offset, nbytes, registered=made)
        if not self._free:
            return None
        slot = self._free.pop()
        at = int(self._slots[slot].ctypes.data)
        ctypes.memmove(at, source, nbytes)
        return BatchedPut(at, offset, nbytes, slot)

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
        self.end(peer, said)
        for way in self._lanes.values():
            if way.peer == peer:
                batch, way.next = way.next, Batch()
                with contextlib.suppress(Exception):  # NIXL has let go already
                    self._give_back(batch)
                with contextlib.suppress(Exception):
                    self._let_go(way)

    # What comes, and waiting.

    def do_progress(self) -> int:
        """Send and receive what can be; return how much was done."""
        with self._turn:
            return 0 if self._agent is None else self._progressed()

    def _progressed(self) -> int:
        moved = 0
        try:
            heard = self._agent.get_new_notifs()
        except Exception as e:  # it says nothing of whose fault it is
            for peer in self._names:
                self._end(peer, e)
            return 0
        for name, said in heard.items():
            for one in said:
                self._hear(name, one)
                moved += 1
        for way in self._lanes.values():
            if way.peer in self.ended:
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
        if signals is None or not all(self.raise_word(*one) for one in signals):
            self._end(peer, NONSENSE)

    def do_busy(self, which: int) -> int:
        """Return whether something is under way: anywhere, or of one lane."""
        ways = list(self._lanes.values())
        if which:
            ways = [self._lanes[divmod(which - 1, self.lanes)]]
        alive = [way for way in ways if way.peer not in self.ended]
        return int(any(way.next or way.flying is not None for way in alive))

    def do_close(self) -> None:
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
                    self.end(-1, str(e))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
