"""Device primitives for kernels of your own: the layer under ours, with handles.

    channels = comm.channels(nbytes)  # collective

A kernel includes `channel.cuh` (`stretto.include_path()`) and takes `channels.pointer`:
a table of `stretto::MemoryChannel`, that of block b to rank q at `b * ranks + q`. With
`kind="engine"` there is a table of `stretto::EngineChannel` too. docs/guides/kernels.md
says what each operation promises.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, DeviceError
from stretto.executors.cuda.codegen.abi import MAX_BLOCKS, PARAMS
from stretto.executors.cuda.custom.own import OwnKernel
from stretto.executors.cuda.custom.proxy import Mailbox, Ring
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.executors.cuda.device.driver import ask
from stretto.executors.cuda.launching.services import SessionServices

__all__ = ["CHANNEL", "ENGINE", "Channels", "Words"]

CHANNEL = np.dtype(
    [
        ("local", "<u8"),
        ("remote", "<u8"),
        ("inbox", "<u8"),
        ("outbox", "<u8"),
        ("counts", "<u8"),
        ("calls", "<u8"),
        ("home", "<u8"),
        ("rank", "<i4"),
        ("peer", "<i4"),
    ]
)
"""`stretto::MemoryChannel`, as C lays it out."""

ENGINE = np.dtype(
    [
        ("inbox", "<u8"),
        ("counts", "<u8"),
        ("flushed", "<u8"),
        ("numbers", "<u8"),
        ("ring", "<u8"),
        ("home", "<u8"),
        ("rank", "<i4"),
        ("peer", "<i4"),
        ("block", "<i4"),
        ("zero", "<i4"),
    ]
)
"""`stretto::EngineChannel`, as C lays it out."""

KINDS = ("memory", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Where each word of a set of channels lies, as an offset in bytes.

    Legend: B blocks, n ranks. Peers write `inbox` and `engine_inbox`; the rest is ours.
    """

    blocks: int
    num_ranks: int

    def inbox(self, block: int, peer: int) -> int:
        """Return where a peer's block counts its signals."""
        return self._at(0, block, peer, 1)

    def engine_inbox(self, block: int, peer: int) -> int:
        """Return where a peer's stream writes its signals."""
        return self._at(1, block, peer, 1)

    def flushed(self, block: int, peer: int) -> int:
        """Return where our stream writes that copies to a peer are done."""
        return self._at(2, block, peer, 1)

    def counts(self, block: int, peer: int) -> int:
        """Return the counts of signals sent and seen."""
        return self._at(3, block, peer, 2)

    def engine_counts(self, block: int, peer: int) -> int:
        """Return the counts of signals sent and seen, and of flushes."""
        return self._at(5, block, peer, 3)

    def calls(self, block: int) -> int:
        """Return the count of calls that a block has ended."""
        return 8 * (8 * self.blocks * self.num_ranks + block)

    @property
    def numbers(self) -> int:
        """Return the number of the next request."""
        return self.calls(self.blocks)

    @property
    def total(self) -> int:
        """Return how many words there are."""
        return self.numbers // 8 + 1

    def _at(self, first: int, block: int, peer: int, width: int) -> int:
        n = self.num_ranks
        return 8 * (first * self.blocks * n + width * (block * n + peer))


class Channels:
    """A buffer on every rank, and channels from each block to every peer.

    They live as long as this object and its session, whichever ends first.
    """

    def __init__(
        self,
        session: SessionServices,
        nbytes: int,
        *,
        blocks: int = 1,
        kind: str = "memory",
    ) -> None:
        _refuse_kind(kind)
        self._session = session
        self.rank, self.num_ranks = session.group.rank, session.group.num_ranks
        self.nbytes, self.blocks = nbytes, blocks
        self._refuse(session)
        n = self.num_ranks
        self.words = Words(blocks=blocks, num_ranks=n)
        self.buffer: DeviceArray = session.empty((nbytes,), "uint8")
        """This rank's buffer: peers' `remote`."""
        self._words: DeviceArray = session.empty((self.words.total,), "uint64")
        self._at = {
            "engine": blocks * n * CHANNEL.itemsize,
            "home": blocks * n * (CHANNEL.itemsize + ENGINE.itemsize),
        }
        size = self._at["home"] + PARAMS.itemsize
        self._table: DeviceArray = session.empty((size,), "uint8")
        for array in (self.buffer, self._words):
            ask("cuMemsetD8", array.pointer, 0, array.nbytes)
        self._bases = _bases(session, self.buffer), _bases(session, self._words)
        self.ring: Ring | None = self._open_ring(session) if kind == "engine" else None
        raw = b"".join(
            part.tobytes()
            for part in (self._memory(), self._engines(), self._home(session))
        )
        source = ctypes.create_string_buffer(raw, len(raw))
        ask("cuMemcpyHtoD", self._table.pointer, ctypes.addressof(source), len(raw))
        ask("cuCtxSynchronize")
        session.group.exchange({"channels": nbytes})  # zeroed before anybody signals

    @property
    def pointer(self) -> int:
        """Return the address of the memory channels, `[block][rank]`."""
        return self._table.pointer

    @property
    def engine_pointer(self) -> int:
        """Return the address of the engine channels, `[block][rank]`."""
        if self.ring is None:
            raise CallError(
                "these channels have no engine: want comm.channels(..., kind='engine')"
            )
        return self._table.pointer + self._at["engine"]

    @property
    def home(self) -> int:
        """Return the address of what the channels share (waiting.cuh: Home)."""
        return self._table.pointer + self._at["home"]

    def kernel(self, text: str, symbol: str, *, threads: int = 128) -> OwnKernel:
        """Compile a CUDA kernel that uses these channels, one block for each of theirs.

        It finds the headers by itself. Blocks that wait for peers must all be resident,
        which is checked.
        """
        return OwnKernel(self._session, text, symbol, self.blocks, threads)

    def _refuse(self, session: SessionServices) -> None:
        asked = {"channels": (self.nbytes, self.blocks)}
        said = [m["channels"] for m, _ in session.group.exchange(asked)]
        if len({tuple(s) for s in said}) != 1:
            raise CallError(
                f"channels of {[tuple(s) for s in said]} (bytes, blocks) by rank; they "
                "are collective: want the same on every rank"
            )
        if self.nbytes < 1 or not 1 <= self.blocks <= MAX_BLOCKS:
            raise CallError(
                f"channels of {self.nbytes} bytes for {self.blocks} blocks; want at "
                f"least 1 byte, and 1 to {MAX_BLOCKS} blocks"
            )

    def _pairs(self) -> list[tuple[int, int, int]]:
        n = self.num_ranks
        return [(b * n + q, b, q) for b in range(self.blocks) for q in range(n)]

    def _memory(self) -> NDArray[Any]:
        """Return the memory channels."""
        handles = np.zeros(self.blocks * self.num_ranks, CHANNEL)
        (mine, peers), (ours, theirs) = self._mine_and_all()
        for index, b, q in self._pairs():
            one = handles[index]
            one["local"], one["remote"] = mine, peers[q]
            one["inbox"] = ours + self.words.inbox(b, q)
            one["outbox"] = theirs[q] + self.words.inbox(b, self.rank)
            one["counts"] = ours + self.words.counts(b, q)
            one["calls"] = ours + self.words.calls(b)
            one["home"] = self.home
            one["rank"], one["peer"] = self.rank, q
        return handles

    def _engines(self) -> NDArray[Any]:
        """Return the engine channels; zeros where there is no engine."""
        handles = np.zeros(self.blocks * self.num_ranks, ENGINE)
        if self.ring is None:
            return handles
        _, (ours, _) = self._mine_and_all()
        for index, b, q in self._pairs():
            one = handles[index]
            one["inbox"] = ours + self.words.engine_inbox(b, q)
            one["counts"] = ours + self.words.engine_counts(b, q)
            one["flushed"] = ours + self.words.flushed(b, q)
            one["numbers"] = ours + self.words.numbers
            one["ring"] = self.ring.pointer
            one["home"] = self.home
            one["rank"], one["peer"], one["block"] = self.rank, q, b
        return handles

    def _home(self, session: SessionServices) -> NDArray[Any]:
        home = np.zeros(1, PARAMS)
        control = session.regions[0].control
        for q, base in enumerate(session.space.peers):
            home["control"][0, q] = base + control
        home["record"] = session.watch.record
        home["deadline_ns"] = int(session.group.deadline_s * 1e9)
        return home

    def _mine_and_all(self) -> tuple[tuple[int, Sequence[int]], ...]:
        return tuple((all_[self.rank], all_) for all_ in self._bases)

    def _open_ring(self, session: SessionServices) -> Ring:
        (_, buffers), (ours, words) = self._mine_and_all()
        first = self.words.engine_inbox(0, 0)
        proxy = session.proxy()
        ring = proxy.open(
            Mailbox(
                buffers=tuple(buffers),
                nbytes=self.nbytes,
                blocks=self.blocks,
                inboxes=tuple(w + first for w in words),
                flushed=ours + self.words.flushed(0, 0),
            )
        )
        weakref.finalize(self, proxy.drop, ring)
        return ring


def _bases(session: SessionServices, array: DeviceArray) -> list[int]:
    """Return where everybody's array of an `empty()` is mapped here."""
    offset = session.offset(array)
    assert offset is not None, "it was registered when it was made"
    n = session.group.num_ranks
    return [session.space.peer_address(q, offset) for q in range(n)]


def _refuse_kind(kind: str) -> None:
    """Raise unless channels of a kind can be made."""
    if kind == "switch":
        raise DeviceError(
            'channels(kind="switch"): reductions inside the switch need NVLink '
            "multicast, which stretto does not use on any machine; "
            'want kind="memory" or "engine" (the header compile_only/'
            "switch_channel.cuh says what they would be)"
        )
    if kind not in KINDS:
        raise CallError(f'channels(kind={kind!r}); want "memory" or "engine"')
