"""Device primitives for kernels of your own: the layer under ours, with handles.

    channels = comm.channels(nbytes)  # collective

A kernel includes `channel.cuh` (`stretto.include_path()`) and takes `channels.pointer`:
a table of `stretto::MemoryChannel`, that of block b to rank q at `b * ranks + q`.
docs/guides/kernels.md says what each operation promises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.custom.own import OwnKernel
from stretto.executors.cuda.device.arrays import DeviceArray
from stretto.executors.cuda.device.driver import ask
from stretto.executors.cuda.launching.names import fingerprint_of
from stretto.executors.cuda.launching.services import SessionServices
from stretto.executors.cuda.words import CHANNEL, MAX_BLOCKS, PARAMS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsLayout:
    """Where each word of a set of channels lies, as an offset in bytes.

    Legend: B blocks, n ranks. Peers write `inbox`; the rest is ours.
    """

    blocks: int
    num_ranks: int

    def inbox(self, block: int, peer: int) -> int:
        """Return where a peer's block counts its signals."""
        return 8 * (block * self.num_ranks + peer)

    def counts(self, block: int, peer: int) -> int:
        """Return the counts of signals sent and seen."""
        pairs = self.blocks * self.num_ranks
        return 8 * (pairs + 2 * (block * self.num_ranks + peer))

    def calls(self, block: int) -> int:
        """Return the count of calls that a block has ended."""
        return 8 * (3 * self.blocks * self.num_ranks + block)

    @property
    def total(self) -> int:
        """Return how many words there are."""
        return self.calls(self.blocks) // 8


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
        name: str = "",
    ) -> None:
        """Make them; `name` is what errors call a kernel that waits in them."""
        self._session = session
        self.rank, self.num_ranks = session.group.rank, session.group.num_ranks
        self.nbytes, self.blocks = nbytes, blocks
        self._name = name or f"a kernel on channels of {nbytes} bytes"
        self._refuse(session)
        n = self.num_ranks
        self.words = ChannelsLayout(blocks=blocks, num_ranks=n)
        self.buffer: DeviceArray = session.empty((nbytes,), "uint8")
        """This rank's buffer: peers' `remote`."""
        self._words: DeviceArray = session.empty((self.words.total,), "uint64")
        self._home_at = blocks * n * CHANNEL.itemsize
        size = self._home_at + PARAMS.itemsize
        self._table: DeviceArray = session.empty((size,), "uint8")
        for array in (self.buffer, self._words):
            ask("cuMemsetD8", array.pointer, 0, array.nbytes)
        self._bases = _bases(session, self.buffer), _bases(session, self._words)
        raw = self._memory().tobytes() + self._home(session).tobytes()
        source = ctypes.create_string_buffer(raw, len(raw))
        ask("cuMemcpyHtoD", self._table.pointer, ctypes.addressof(source), len(raw))
        ask("cuCtxSynchronize")
        session.group.exchange({"channels": nbytes})  # zeroed before anybody signals

    @property
    def pointer(self) -> int:
        """Return the address of the memory channels, `[block][rank]`."""
        return self._table.pointer

    @property
    def epochs(self) -> int:
        """Return the address of each block's count of calls, one after the other."""
        return self._words.pointer + self.words.calls(0)

    @property
    def home(self) -> int:
        """Return the address of what the channels share (waiting.cuh: Home)."""
        return self._table.pointer + self._home_at

    def kernel(
        self,
        text: str,
        symbol: str,
        *,
        threads: int = 128,
        options: Sequence[str] = (),
    ) -> OwnKernel:
        """Compile a CUDA kernel that uses these channels, one block for each of theirs.

        It finds the headers by itself. Blocks that wait for peers must all be resident,
        which is checked. `options` are the compiler's: "--fmad=false" rounds a product
        before it is added, as CPUs do.
        """  # fmt: skip
        kernel = Kernel(
            text=text, symbol=symbol, ranks=(self._session.group.rank,),
            grid=self.blocks, threads=threads, options=tuple(options),
        )  # fmt: skip
        return OwnKernel(self._session, kernel)

    def named(self, call: str) -> int:
        """Return a fingerprint of a call, of 32 bits, which errors tell in its words.

        A kernel that waits may pass it (waiting.cuh): ranks that wait for each other in
        different calls are then told of both.
        """
        mark = fingerprint_of(call)
        self._session.watch.name(mark, call)
        return mark

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

    def _home(self, session: SessionServices) -> NDArray[Any]:
        home = np.zeros(1, PARAMS)
        control = session.regions[0].control
        for q, base in enumerate(session.space.peers):
            home["control"][0, q] = base + control
        home["record"] = session.watch.record
        home["deadline_ns"] = int(session.group.deadline_s * 1e9)
        home["fingerprint"] = self.named(self._name)
        return home

    def _mine_and_all(self) -> tuple[tuple[int, Sequence[int]], ...]:
        return tuple((all_[self.rank], all_) for all_ in self._bases)


def _bases(session: SessionServices, array: DeviceArray) -> list[int]:
    """Return where everybody's array of an `empty()` is mapped here."""
    offset = session.offset(array)
    assert offset is not None, "it was registered when it was made"
    n = session.group.num_ranks
    return [session.space.peer_address(q, offset) for q in range(n)]
