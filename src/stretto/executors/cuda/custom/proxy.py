"""A kernel asks, a copy engine moves: the thread that stands between them.

Kernels write requests into a ring in host memory (`engine_channel.cuh`). This thread
takes them in order and enqueues copies and flag writes on one stream for each peer. It
belongs to a session and ends with it. What it meets (a request outside the buffer, a
driver error) breaks the session: kernels that wait leave, and `check()` raises it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.errors import CallError, StrettoError
from stretto.executors import Group
from stretto.executors.cuda.device.driver import Device, Pinned, api, ask
from stretto.executors.cuda.flags.watch import Watch

__all__ = ["REQUEST", "RING_SLOTS", "Mailbox", "Proxy", "Ring"]

RING_SLOTS = 256
RING_WORDS = 8 + 8 * RING_SLOTS
REQUEST = np.dtype(
    [
        ("turn", "<u8"),
        ("what", "<u8"),
        ("to", "<u8"),
        ("from", "<u8"),
        ("amount", "<u8"),
        ("padding", "<u8", 3),
    ]
)
"""`stretto::Request`, as C lays it out."""
PUT, SIGNAL, FLUSH = 1, 2, 3
BUSY_S = 0.002
"""How long the thread looks without pause after a request."""
IDLE_S = 0.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailbox:
    """Where one set of channels has its memory, as this rank maps it."""

    buffers: Sequence[int]
    """Everybody's buffer, by rank."""
    nbytes: int
    blocks: int
    inboxes: Sequence[int]
    """Everybody's words for engine signals: `[block][from rank]`."""
    flushed: int
    """Our words for flushes: `[block][peer]`."""


class Ring:
    """Requests of one set of channels, in host memory that the device writes to."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._pinned = Pinned(RING_WORDS)
        self.pointer = self._pinned.device_pointer
        self._words = self._pinned.words
        self._requests = self._words[8:].view(REQUEST)
        self._taken = 0

    def take(self) -> tuple[int, int, int, int, int] | None:
        """Return the next request (what, to, from, amount, turn), or None."""
        at = self._taken % RING_SLOTS
        if int(self._words[8 + 8 * at]) != self._taken + 1:
            return None
        _, what, to, source, amount, _ = self._requests[at].tolist()
        self._taken += 1
        return what, to, source, amount, self._taken

    def done(self) -> None:
        """Say that everything taken has been enqueued: its slots are free."""
        self._words[0] = self._taken

    def reuse(self, mailbox: Mailbox) -> None:
        """Begin anew for other channels, whose numbers begin at 0, too."""
        self.mailbox, self._taken = mailbox, 0
        self._words[:] = 0

    def close(self) -> None:
        """Free the memory."""
        self._words = np.zeros(8, np.uint64)
        self._requests = np.zeros(0, REQUEST)
        self._pinned.close()


class Proxy:
    """The thread of one session that serves all of its rings."""

    def __init__(self, device: Device, group: Group, watch: Watch) -> None:
        self._device, self._group = device, group
        self._rank, self._num_ranks = group.rank, group.num_ranks
        self._watch = watch
        nonblocking = int(api().CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._streams = [
            ask("cuStreamCreate", nonblocking) for _ in range(group.num_ranks)
        ]
        self._rings: tuple[Ring, ...] = ()
        self._dropped: list[Ring] = []
        self._spare: list[Ring] = []
        """Kept: to free memory that the GPU writes to waits for all that runs there."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"stretto-proxy-{group.rank}", daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the thread still serves."""
        return self._thread.is_alive()

    def open(self, mailbox: Mailbox) -> Ring:
        """Serve one more ring."""
        with self._lock:
            if self._spare:
                ring = self._spare.pop()
                ring.reuse(mailbox)
            else:
                ring = Ring(mailbox)
            self._rings = (*self._rings, ring)  # the thread reads one or the other
        return ring

    def drop(self, ring: Ring) -> None:
        """Serve a ring no more. Whoever collects garbage may say so, at any time."""
        self._dropped.append(ring)

    def _sort_out(self) -> None:
        """Take away what was dropped; by the thread, which is not reading it then."""
        with self._lock:
            while self._dropped:
                ring = self._dropped.pop()
                self._rings = tuple(r for r in self._rings if r is not ring)
                self._spare.append(ring)

    def close(self) -> None:
        """End the thread, wait for its copies, free the rings."""
        self._stop.set()
        self._thread.join(timeout=5)
        for stream in self._streams:
            ask("cuStreamSynchronize", stream)
            ask("cuStreamDestroy", stream)
        self._streams = []
        for ring in (*self._rings, *self._spare):
            ring.close()
        self._rings, self._spare, self._dropped = (), [], []

    def _run(self) -> None:
        try:
            self._device.enter()
            relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            ask("cuThreadExchangeStreamCaptureMode", relaxed)
            self._serve()
        except Exception as e:  # the peers wait for what will not come
            said = str(e) if isinstance(e, StrettoError) else f"{type(e).__name__}: {e}"
            self._watch.fail(self._group.fail((), said))

    def _serve(self) -> None:
        busy_until = 0.0
        while not self._stop.is_set():
            if self._look():
                busy_until = time.monotonic() + BUSY_S
            else:
                time.sleep(0 if time.monotonic() < busy_until else IDLE_S)

    def _look(self) -> bool:
        """Do all that is asked for now; return whether there was anything."""
        found = False
        if self._dropped:
            self._sort_out()
        for ring in self._rings:
            while (request := ring.take()) is not None:
                self._do(ring.mailbox, *request)
                found = True
            if found:
                ring.done()
        return found

    def _do(
        self, box: Mailbox, what: int, to: int, source: int, amount: int, turn: int
    ) -> None:
        kind, peer, block = what & 0xFF, what >> 8 & 0xFF, what >> 16 & 0xFFFF
        inside = peer < self._num_ranks and peer != self._rank and block < box.blocks
        if kind not in (PUT, SIGNAL, FLUSH) or not inside:
            raise CallError(
                f"rank {self._rank}, engine channel, request {turn}: kind {kind}, rank "
                f"{peer}, block {block}; want put, signal or flush, a peer among "
                f"{self._num_ranks} ranks, and one of {box.blocks} blocks"
            )
        stream = self._streams[peer]
        if kind == PUT:
            if max(to, source) + amount > box.nbytes:
                raise CallError(
                    f"rank {self._rank}, engine channel, request {turn}: put of "
                    f"{amount} bytes from {source} to {to} of rank {peer}; both ends "
                    f"must lie inside the channels' {box.nbytes} bytes"
                )
            if amount:
                ends = box.buffers[peer] + to, box.buffers[self._rank] + source
                ask("cuMemcpyDtoDAsync", *ends, amount, stream)
            return
        place = block * self._num_ranks
        if kind == SIGNAL:
            word = box.inboxes[peer] + 8 * (place + self._rank)
        else:
            word = box.flushed + 8 * (place + peer)
        ask("cuStreamWriteValue64", stream, word, amount, 0)
