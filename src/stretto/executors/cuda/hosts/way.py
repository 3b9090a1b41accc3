"""A session's way to ranks on other hosts: pinned memory, a carrier, and a thread.

Kernels write what goes to another host into pinned memory, and ask for it in a ring
there; what comes from another host lands in pinned memory, where kernels read it. So
the thread that sends and receives calls nothing of the driver, and launches that were
captured are replayed for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stretto.errors import DeviceError, StrettoError
from stretto.executors import Group, far_ranks
from stretto.executors.cuda.device.driver import Device, Pinned, ask
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.flags.watch import SessionWatch
from stretto.executors.cuda.hosts.layout import FarLayout
from stretto.fabric import hop
from stretto.fabric.jit.loading import load
from stretto.fabric.jit.together import load_together

_SERVING = "stretto.executors.cuda.hosts.serving"
_CLOSE_S = 2.0
"""How long what was asked for may take to be sent when a session is closed."""


class Server:
    """The words of the compiled loop, for memory that lies at an address."""

    def __init__(self, layout: FarLayout, address: int, num_ranks: int) -> None:
        """Lay out the words; `use` gives it a carrier."""
        serving = self._serving = _serving()
        word, of_ring = serving.ServingWord, serving.HostRingWord
        self._words = np.zeros(word.END, np.int64)
        self._rings = np.zeros((layout.sets, of_ring.END), np.int64)
        self._mirrors = np.zeros((layout.sets, num_ranks), np.int64)
        for nth in range(layout.sets):
            for rank in layout.far_ranks:
                self._mirrors[nth, rank] = address + layout.mirror(nth, rank)
            ring = self._rings[nth]
            ring[of_ring.RING] = address + layout.ring(nth)
            ring[of_ring.FAR] = layout.far(nth)
            ring[of_ring.INBOX] = layout.inbox(nth)
            ring[of_ring.MIRRORS] = self._mirrors[nth].ctypes.data
        self._words[word.RINGS] = self._rings.ctypes.data
        self._words[word.NUM_RINGS] = layout.sets
        self._words[word.SIDE] = layout.side
        self._words[word.FAR_BYTES] = layout.far_bytes
        self._words[word.STAGE_BYTES] = 2 * layout.half
        self._words[word.NUM_RANKS] = num_ranks

    def use(self, way: hop.Hop) -> None:
        """Send by a hop that is connected."""
        way.write_calls(self._words, self._serving.ServingWord.HOP)

    def serve(self) -> int:
        """Serve for a while, without the interpreter's lock; return why no longer."""
        return int(self._serving.serve(int(self._words.ctypes.data)))

    def stop(self) -> None:
        """Have `serve` return when all that was asked for has been sent."""
        self._words[self._serving.ServingWord.STOP] = 1

    def said(self, code: int) -> str:
        """Return the name of what `serve` has returned."""
        return str(self._serving.ServingEnd(code).name)

    @property
    def stuck(self) -> int | None:
        """Return the rank to which nothing can be sent now, if there is one."""
        told = int(self._words[self._serving.ServingWord.TOLD])
        return told - 1 if told else None

    @property
    def times_ns(self) -> list[int]:
        """Return how long the last requests took this thread, in nanoseconds."""
        first, served = self._serving.ServingWord.TIMES, self.served
        kept = min(served, self._serving.KEPT)
        return [int(t) for t in self._words[first : first + kept]]

    @property
    def served(self) -> int:
        """Return how many requests have been served."""
        return int(self._words[self._serving.ServingWord.SERVED])


def _serving() -> ModuleType:
    """Return the compiled loop."""
    (module,) = load("GPU ranks on several hosts", _SERVING)
    return module


def _load() -> None:
    """Load the loop, and what carries bytes to other hosts."""
    _serving()
    hop.get(hop.chosen()).missing()  # opening it says why


class FarWay:
    """What one session has for ranks on other hosts."""

    def __init__(
        self, device: Device, group: Group, regions: Sequence[FlagRegion]
    ) -> None:
        """Take pinned memory and connect with all far ranks (collective)."""
        load_together(group, _load)
        self._group, self._device = group, device
        self.far_ranks = far_ranks(group)
        self.layout = FarLayout(
            sets=len(regions), half=regions[0].halves["stage"], far_ranks=self.far_ranks
        )
        self._regions = list(regions)
        self._pinned = Pinned(-(-self.layout.nbytes // 8))
        self._base = self._pinned.device_pointer
        address = int(self._pinned.words.ctypes.data)
        self.server = Server(self.layout, address, group.num_ranks)
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._watch: SessionWatch | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._pinned.close)
            self._hop = hop.open_for(
                group,
                address=address,
                puts=self.layout.puts,
                words=self.layout.words,
                sources=self.layout.mirrors,
            )
            undo.callback(self._hop.close)
            said = [m["hop"] for m, _ in group.exchange({"hop": self._hop.share()})]
            self._hop.connect(said, self.far_ranks, group.deadline_s)
            undo.pop_all()
        self.carrier = self._hop.carrier.name
        """By what bytes go to other hosts."""
        self.server.use(self._hop)

    def start(self, watch: SessionWatch) -> None:
        """Begin to serve; what goes wrong is told to the session's watch."""
        self._watch = watch
        name = f"stretto-hosts-{self._group.rank}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def fields(self, region: FlagRegion) -> Mapping[str, Any]:
        """Return parameters of kernels that use a set of flags (abi.py)."""
        nth = self._regions.index(region)
        at, base = self.layout, self._base
        return {
            "far": base + at.far(nth),
            "inbox": base + at.inbox(nth),
            "ring": base + at.ring(nth),
        }

    def mirrors(self, region: FlagRegion) -> Mapping[int, int]:
        """Return, by far rank, where its staging is mirrored."""
        nth = self._regions.index(region)
        at = self.layout
        return {rank: self._base + at.mirror(nth, rank) for rank in self.far_ranks}

    def close(self) -> None:
        """Send what was asked for, end the thread and the connections, free memory."""
        self._stopping = True
        self.server.stop()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join(timeout=_CLOSE_S)
        if thread.is_alive():  # it reads this memory: it must stay
            return
        self._hop.close()
        self._pinned.close()

    # The thread.

    def _run(self) -> None:
        try:
            _stay_near(self._device)
            while (said := self.server.said(self.server.serve())) != "STOPPED":
                if said == "NONSENSE":
                    raise StrettoError(
                        f"rank {self._group.rank}: a kernel asked for what lies "
                        "outside of its staging: the communicator's memory was written "
                        "over"
                    )
                self._look()
                if self._stopping and self.server.stuck is not None:
                    return
        except Exception as e:  # peers wait for what will not come
            said = str(e) if isinstance(e, StrettoError) else f"{type(e).__name__}: {e}"
            if self._watch is not None:
                self._watch.fail(self._group.fail((), said))

    def _look(self) -> None:
        """Raise when something is to be sent to a rank that cannot be reached."""
        faults, peer = self._hop.faults(), self.server.stuck  # rails are tended, too
        if peer is None or self._stopping:
            return
        how = faults.get(peer)
        if how is not None and self._watch is not None:
            text = (
                f"rank {self._group.rank} sends to rank {peer} by {self.carrier}: {how}"
            )
            self._watch.fail(self._group.fail((peer,), text))
            self._stopping = True


def _stay_near(device: Device) -> None:
    """Keep this thread on cores that are near the GPU, where the system tells them."""
    with contextlib.suppress(DeviceError, OSError, ValueError):
        bus = bytes(ask("cuDeviceGetPCIBusId", 32, device.handle)).split(b"\0")[0]
        where = Path("/sys/bus/pci/devices") / bus.decode().lower() / "local_cpulist"
        cores = _listed(where.read_text())
        if allowed := cores & os.sched_getaffinity(0):
            os.sched_setaffinity(threading.get_native_id(), allowed)


def _listed(text: str) -> set[int]:
    """Return the cores of a list such as `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
