"""Steps that kernels write themselves: their memory, their clock, and what they mean.

A GPU has one memory for all kernels of this process that write (kernels/steps.cuh).
Whoever collects recordings reads it now and then, beside what runs. Times are brought
onto the host's clock: a small kernel answers what its clock says, some times, and each
answer lies between question and receipt; what all of them leave is the stated error.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.compiler.plan import Move, Plan, PlanLayout, primitive
from stretto.errors import DeviceError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.device.driver import Device, Pinned, api, ask, attempt
from stretto.executors.cuda.words import (
    MAX_LANES,
    STEP_RECORD,
    STEP_RECORDS,
    STEP_WORKERS,
    WHOLE_CALL,
)
from stretto.program.elements import storage
from stretto.trace import (
    CALL,
    NOBODY,
    STEP,
    STEP_KINDS,
    CallKind,
    Comm,
    Taken,
    add_source,
)

NBYTES = 8 * STEP_WORKERS + STEP_WORKERS * STEP_RECORDS * STEP_RECORD.itemsize
ROUNDS = 64
"""Questions to a GPU's clock at a time."""
PATIENCE_NS = 2_000_000
"""How long the kernel waits for a question, and the host for an answer."""
ANEW_S = 0.5
"""How often the clocks are compared: they drift."""

CLOCK_KERNEL = Kernel(
    text=f"""// What this GPU's clock says, each time the host asks.
#include "memory.cuh"
using namespace stretto;

extern "C" __global__ void stretto_clock(u64 ask, u64 answers, u64 rounds) {{
  for (u64 i = 1; i <= rounds; ++i) {{
    const u64 began = clock_ns();
    while (load_relaxed_word(reinterpret_cast<u64*>(ask)) < i) {{
      if (clock_ns() - began > {PATIENCE_NS}ull) return;
    }}
    store_relaxed_word(reinterpret_cast<u64*>(answers) + i - 1, clock_ns());
  }}
  const u64 now = clock_ns();
  u64 next = now, after = now;
  while (next == now) next = clock_ns();
  for (after = next; after == next;) after = clock_ns();
  store_relaxed_word(reinterpret_cast<u64*>(answers) + rounds, after - next);
}}
""",
    symbol="stretto_clock",
    ranks=(0,),
    grid=1,
    threads=1,
)


class Anchor(NamedTuple):
    """One comparison of clocks: the device's time, what to add, and the error."""

    device_ns: int
    offset_ns: int
    error_ns: int


def bounds(
    asked: Sequence[int], answered: Sequence[int], heard: Sequence[int], tick: int
) -> Anchor:
    """Return what to add to a device's time, from questions and answers.

    The host's time of an answer is between that of its question and of its receipt. A
    clock that ticks coarsely is behind by up to a tick.
    """
    sent, told, got = (np.array(x, np.int64) for x in (asked, answered, heard))
    low, high = int((sent - told).max()) - tick, int((got - told).min())
    error = abs(high - low) // 2 + 1
    return Anchor(int(told[-1]), (low + high) // 2, error)


class KnownSteps(NamedTuple):
    """What kernels of a fingerprint do, on one rank."""

    kind: CallKind
    plan: Plan
    where: PlanLayout
    rank: int


class FlagPlace(NamedTuple):
    """Whose a set of flags is."""

    comm: Comm
    world: int
    known: Mapping[int, KnownSteps]


class StepsMemory:
    """The memory of one GPU in this process, and its clock."""

    def __init__(self, device: Device) -> None:
        """Allocate it; kernels find it by a variable of their module."""
        self._device = device
        self._address = int(ask("cuMemAlloc", NBYTES))
        ask("cuMemsetD8", self._address, 0, NBYTES)
        nonblocking = int(api().CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._stream = ask("cuStreamCreate", nonblocking)
        self._counts = np.zeros(STEP_WORKERS, np.uint64)
        self._words = Pinned(2 + ROUNDS)
        self._clock: Any = None
        self._anchors: list[Anchor] = []
        self._compared = 0.0
        self._lock = threading.Lock()
        self.places: dict[int, FlagPlace] = {}
        """By the address of their control memory."""

    def attach(self, module: Any) -> None:
        """Tell a module's kernels where to write."""
        where, _ = ask("cuModuleGetGlobal", module, b"stretto_steps")
        value = np.array([self._address], np.uint64)
        ask("cuMemcpyHtoD", where, value.ctypes.data, 8)

    def load_clock(self, image: bytes) -> None:
        """Load the kernel that answers; while nothing runs that loading waits for."""
        if self._clock is None:
            module = ask("cuModuleLoadData", image)
            self._clock = ask("cuModuleGetFunction", module, b"stretto_clock")
            self.compare()

    def compare(self) -> None:
        """Compare the clocks; where the GPU is too busy to answer, later."""
        words = self._words.words
        words[:] = 0
        self._compared = time.monotonic()
        base = self._words.device_pointer
        values = [ctypes.c_uint64(v) for v in (base, base + 8, ROUNDS)]
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(v) for v in values))
        ask(
            "cuLaunchKernel", self._clock, 1, 1, 1, 1, 1, 1, 0, self._stream,
            ctypes.addressof(pointers), 0,
        )  # fmt: skip
        asked, heard = [], []
        for i in range(1, ROUNDS + 1):
            sent = time.monotonic_ns()
            words[0] = i
            while not words[i]:
                if time.monotonic_ns() - sent > PATIENCE_NS:
                    words[0] = ROUNDS  # whoever comes late answers at once
                    ask("cuStreamSynchronize", self._stream)
                    return
            asked.append(sent)
            heard.append(time.monotonic_ns())
        ask("cuStreamSynchronize", self._stream)
        *answers, tick = words[1:].tolist()
        found = bounds(asked, answers, heard, tick)
        self._anchors = [*self._anchors[-1:], found]

    @property
    def error_ns(self) -> int:
        """Return by how much times may be wrong against the host's clock."""
        return max((a.error_ns for a in self._anchors), default=-1)

    def host_ns(self, device_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the host's time of a device's."""
        times = device_ns.astype(np.int64)
        if not self._anchors:
            return times
        first, last = self._anchors[0], self._anchors[-1]
        slope = 0.0
        if last.device_ns - first.device_ns > 100_000_000:
            slope = (last.offset_ns - first.offset_ns) / (
                last.device_ns - first.device_ns
            )
        away = last.offset_ns + slope * (times - last.device_ns)
        moved: NDArray[np.int64] = times + np.rint(away).astype(np.int64)
        return moved

    def take(self) -> list[Taken]:
        """Return what kernels have written since the last time."""
        if not self.places:
            return []
        with self._lock:
            try:
                records, lost = self._read()
            except DeviceError:  # the context has ended, or met a fault: it says so
                return []
        return [
            taken
            for control, place in tuple(self.places.items())
            if (taken := decoded(records, control, place, lost)) is not None
        ]

    def _read(self) -> tuple[NDArray[Any], int]:
        self._device.enter()
        relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = ask("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            due = time.monotonic() - self._compared > ANEW_S
            if self._clock is not None and due:
                self.compare()
            counts = self._copied(self._address, STEP_WORKERS, np.dtype("<u8"))
            found, lost = [np.zeros(0, STEP_RECORD)], 0
            for worker in np.flatnonzero(counts != self._counts).tolist():
                start, stop = int(self._counts[worker]), int(counts[worker])
                at = 8 * STEP_WORKERS + worker * STEP_RECORDS * STEP_RECORD.itemsize
                ring = self._copied(self._address + at, STEP_RECORDS, STEP_RECORD)
                again = self._copied(self._address + 8 * worker, 1, np.dtype("<u8"))
                # a kernel that runs has written more than it has counted: a call's
                kept = max(start, int(again[0]) - STEP_RECORDS + 256)
                lost += max(0, min(kept, stop) - start)
                found.append(ring[np.arange(kept, stop) % STEP_RECORDS])
            self._counts = counts
        finally:
            ask("cuThreadExchangeStreamCaptureMode", before)
        return on_host(np.concatenate(found), self.host_ns), lost

    def _copied(self, at: int, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
        made = np.empty(count, kind)
        ask(
            "cuMemcpyDtoHAsync", made.ctypes.data, at, made.nbytes, self._stream
        )  # fmt: skip
        ask("cuStreamSynchronize", self._stream)
        return made

    def close(self) -> None:
        """Free it; no kernel that writes may run any more."""
        attempt("cuStreamSynchronize", self._stream)
        attempt("cuStreamDestroy", self._stream)
        attempt("cuMemFree", self._address)
        self._words.close()


def on_host(
    records: NDArray[Any], host_ns: Callable[[NDArray[np.uint64]], NDArray[np.int64]]
) -> NDArray[Any]:
    """Return records by the host's clock: waits, too, or one may outlast its step."""
    made = records.copy()
    waited = host_ns(records["begin"] + records["wait"])
    for column in ("begin", "end"):
        made[column] = host_ns(records[column])
    made["wait"] = waited - made["begin"].astype(np.int64)
    return made


def decoded(
    records: NDArray[Any], control: int, place: FlagPlace, lost: int
) -> Taken | None:
    """Return the calls and steps of one set of flags, as recordings have them.

    A call begins with the first of its blocks and ends with the last. Its number is the
    epoch of its first tile: that grows with every call, and is the same on all ranks.
    """
    mine = records[records["control"] == control]
    mark = (mine["what"] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    known = np.isin(mark, list(place.known))
    mine, mark = mine[known], mark[known]
    if not len(mine):
        return None
    marks = [m for m in place.known if m in set(mark.tolist())]
    kinds = [place.known[m].kind for m in marks]
    worker = (mine["what"] >> np.uint64(48)).astype(np.int64)
    step = (mine["what"] >> np.uint64(32) & np.uint64(0xFFFF)).astype(np.int64)
    steps = np.zeros(len(mine), STEP)
    steps["rank"], steps["seq"] = place.world, mine["epoch"] + 1
    steps["lane"] = worker % MAX_LANES * 256 + worker // MAX_LANES
    steps["tile"], steps["step"] = mine["tile"], np.where(step == WHOLE_CALL, -1, step)
    for column in ("begin", "wait", "end"):
        steps[column] = mine[column]
    steps["kind"], steps["peer"] = STEP_KINDS.index("kernel"), NOBODY
    for m in marks:
        _explain(steps, mark == m, worker % MAX_LANES, place.known[m])
    whole = np.flatnonzero(step == WHOLE_CALL)
    numbers, call = np.unique(steps["seq"][whole], return_inverse=True)
    calls = np.zeros(len(numbers), CALL)
    calls["rank"], calls["seq"], calls["state"] = place.world, numbers, 1
    calls["start"] = np.iinfo(np.int64).max
    np.minimum.at(calls["start"], call, steps["begin"][whole])
    np.maximum.at(calls["end"], call, steps["end"][whole])
    calls["enqueue"] = calls["start"]
    order = {m: i for i, m in enumerate(marks)}
    calls["kind"][call] = [order[m] for m in mark[whole].tolist()]
    calls["nbytes"] = np.array([k.nbytes for k in kinds])[calls["kind"]]
    return Taken(place.comm, kinds, calls, steps, 0, lost)


def _explain(
    steps: NDArray[Any],
    rows: NDArray[np.bool_],
    lane: NDArray[np.int64],
    known: KnownSteps,
) -> None:
    """Fill in what the steps of a plan are: those of a batch by its first one."""
    plan, where = known.plan, known.where
    itemsize = storage(known.kind.dtype).itemsize if known.kind.dtype else 1
    share = plan.schedule.blocks * max(1, where.tiles)
    for number, mine in enumerate(plan.ranks[known.rank]):
        here = np.flatnonzero(rows & (lane == number) & (steps["step"] >= 0))
        for index in np.unique(steps["step"][here]).tolist():
            if index >= len(mine):
                continue
            at = here[steps["step"][here] == index]
            one = mine[index]
            peers = {one.rank} if not isinstance(one, Move) else _ranks(one)
            peers -= {known.rank}
            steps["kind"][at] = STEP_KINDS.index(primitive(known.rank, one).value)
            steps["peer"][at] = peers.pop() if len(peers) == 1 else NOBODY
            if isinstance(one, Move):
                atoms = int(where.atom_sizes[one.start : one.stop].sum())
                steps["nbytes"][at] = atoms * itemsize // share


def _ranks(move: Move) -> set[int]:
    return {loc.rank for loc in (*move.dsts, *move.srcs)}


def known_kernel(
    plan: Plan, where: PlanLayout, rank: int, kind: CallKind | None, text: str
) -> KnownSteps:
    """Return what a kernel does; of a part of a call that has no kind of its own."""
    if kind is None:
        kind = CallKind(
            collective=plan.collective,
            algorithm=plan.name,
            schedule=str(plan.schedule),
            plan=plan.digest,
            executor="cuda",
            text=text,
        )
    return KnownSteps(kind, plan, where, rank)


_memories: weakref.WeakKeyDictionary[Any, dict[int, StepsMemory]]
_memories = weakref.WeakKeyDictionary()


def memory_of(device: Device) -> StepsMemory:
    """Return a GPU's memory for steps, made at its first use."""
    mine = _memories.setdefault(api(), {})
    found = mine.get(device.ordinal)
    if found is None:
        found = mine[device.ordinal] = StepsMemory(device)
        add_source(found.take)
    return found
