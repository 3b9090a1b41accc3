"""One communicator's memory and calls, as one rank sees them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.arrays import host_view
from stretto.compiler.plan import Plan, ProvedPlan, settled_hosts
from stretto.errors import CallError, SharedMemoryError
from stretto.executors import (
    Call,
    Group,
    Launch,
    Session,
    call_kind,
    comm_of,
    describe,
    hosts_of,
)
from stretto.executors.cpu.peers.far import FarHosts, FarSlab
from stretto.executors.cpu.peers.faults import CallWatch
from stretto.executors.cpu.running.crossing import keeps_own, why_not_across
from stretto.executors.cpu.running.encode import encode
from stretto.executors.cpu.running.explain import explained
from stretto.executors.cpu.running.places import Memory
from stretto.executors.cpu.shared.heap import Heap
from stretto.executors.cpu.shared.slab import Slab
from stretto.executors.cpu.sharing import OwnSlab, share
from stretto.executors.cpu.words import BETWEEN_BYTES, Common, Header
from stretto.fabric.jit import require
from stretto.fabric.memory import (
    PAGE,
    Span,
    give_back,
    held,
    prefault,
    require_shared_memory,
)
from stretto.program.elements import check, dtype_name, storage
from stretto.program.epilogues import Spec, evaluate
from stretto.trace import close_ring, open_ring

__all__ = ["CpuSession"]

_SPIN_US, _CROWDED_SPIN_US = 40.0, 0.5
_YIELDS, _CROWDED_YIELDS = 50, 400
_SLEEPS, _FAR_YIELDS, _FAR_SLEEPS = 10, 4, 100
_FAR_TURN_NS = 1500
"""What one turn of a spin takes that asks connections, too."""


class CpuSession(Session):
    """Slabs of all ranks, the heap, and what turns plans into launchers."""

    renews = True

    def __init__(self, group: Group) -> None:
        """Make this rank's slab and map everybody's (collective)."""
        require_shared_memory()
        require("executor 'cpu'")
        self._group = group
        self._words = np.zeros(int(Common.END), dtype=np.int64)
        self._words[Common.EPOCH] = 1
        self._between = np.empty(BETWEEN_BYTES + 2 * PAGE, np.uint8)
        self._words[Common.BETWEEN] = -(-self._between.ctypes.data // PAGE) * PAGE
        self._mine = OwnSlab(group, self._words)
        self._heap = Heap(group)
        self._slabs: tuple[Slab | FarSlab, ...] = ()
        self._way: FarHosts | None = None
        self._memory: Memory | None = None
        self._touched: set[tuple[int, int]] = set()
        """What launches stage in: address and bytes, of every rank's slab."""
        self._copy = np.empty(0, np.uint8)
        """Of the last input that peers copied from while its place was written."""
        self._ring = None
        try:
            self._share((None,) * group.num_ranks)
            self._ring = open_ring(group, *comm_of(group), few=group.only_transfers)
        except BaseException:
            self.close()  # descriptors are numbers: nobody else would close them
            raise
        group.on_exchange.append(self._begin_exchange)
        self._address = self._interpreter.address  # looked up here, not in each call
        self.same_arrays = self._interpreter.same_arrays
        self._words[Common.RING] = self._ring.address if self._ring else 0

    def _share(self, kept: Sequence[int | None]) -> None:
        """Map the memory of ranks that come, and connect (collective)."""
        if self._way is not None:
            self._way.close()
            self._way = None
        have = [None if r is None else self._slabs[r] for r in kept]
        spare = [None if r in kept else one for r, one in enumerate(self._slabs)]
        spare += [None] * len(have)
        heap = {**self._heap.said(), "new": all(r is None for r in kept)}
        shared = share(self._group, self._mine, self._words, have, spare, heap)
        try:
            self._heap.renew(kept, shared.heaps)
        except BaseException:
            if shared.way is not None:
                shared.way.close()
            raise
        self._interpreter = shared.interpreter
        self._slabs, self._way = shared.slabs, shared.way
        self._hosts = hosts_of(self._group)
        self._words[Common.EPOCH] = shared.epoch
        self._is_crowded, self.across = shared.crowded, not shared.none_across
        self._set_patience()
        self._memory = Memory(
            rank=self._group.rank,
            slabs=tuple(s.address for s in self._slabs),
            heaps=(),
            session=self._words.ctypes.data,
            layout=self._mine.slab.layout,
            cache_bytes=_cache_bytes(),
            none_across=shared.none_across,
        )
        self._see_heap()

    def _see_heap(self) -> None:
        """See where everybody's heap is: nowhere, until there is something in it."""
        assert self._memory is not None, "it is open"
        self._memory = self._memory._replace(heaps=self._heap.addresses)
        self._heap_at = self._memory.heaps[self._group.rank]
        self._heap_bytes = self._heap.nbytes
        self._words[[Common.HEAP, Common.HEAP_BYTES]] = self._heap_at, self._heap_bytes

    def renew(self, kept: Sequence[int | None]) -> bool:
        """Go on with the group's new ranks: only what changes is mapped anew."""
        before, far = self._memory, self._way is not None
        self._mine.make_room()
        self._mine.slab.begin()
        hooks = self._group.on_exchange  # peers see exchanges of calls, not of sharing
        hooks.remove(self._begin_exchange)
        try:
            self._share(kept)
        finally:
            hooks.append(self._begin_exchange)
        # An address that is mapped anew is that of whoever was there.
        goes_on = not far and self._way is None and before == self._memory
        if not goes_on:
            self._touched.clear()
        return goes_on

    def _begin_exchange(self, number: int, text: str) -> None:
        """Let peers see that this rank is in an exchange, and not in a call."""
        self._mine.slab.begin_exchange(number, text)
        if self._way is not None:
            self._way.tell()

    def _set_patience(self) -> None:
        """Spin long when every rank has a core, and hardly when not."""
        crowded = self._is_crowded
        spin_us = _CROWDED_SPIN_US if crowded else _SPIN_US
        turn_ns = self._interpreter.spin_ns if self._way is None else _FAR_TURN_NS
        spins = max(int(spin_us * 1e3 / turn_ns), 1)
        brief = max(int(_CROWDED_SPIN_US * 1e3 / turn_ns), 1)
        self._words[Common.SPINS] = self._words[Common.LONG_SPINS] = spins
        self._words[Common.BRIEF_SPINS] = brief
        self._words[Common.SLEEPS] = _SLEEPS if self._way is None else _FAR_SLEEPS
        yields = _CROWDED_YIELDS if crowded else _YIELDS
        if self._way is not None:  # who sleeps is woken by what comes
            yields = _FAR_YIELDS
        self._words[Common.YIELDS] = self._words[Common.MOST_YIELDS] = yields

    def empty(self, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return registered memory, at the same offset on every rank (collective)."""
        name = dtype_name(dtype)
        array = self._heap.empty(shape, storage(name), name)
        self._see_heap()
        return array

    def inherited(self) -> list[NDArray[Any]]:
        """Return arrays of what others had registered when this rank came to them."""
        return self._heap.inherited

    def offset(self, array: NDArray[Any]) -> int | None:
        """Return where registered memory begins in the heap, or None."""
        if not self._heap_bytes or self._way is not None:
            return None  # peers on other hosts cannot reach it
        at = self._address(array) - self._heap_at
        return at if 0 <= at < self._heap_bytes else None

    def offset_at(self, address: int, nbytes: int) -> int | None:
        """Return the same of memory that is known by where it lies."""
        at = address - self._heap_at
        if self._way is not None:
            return None
        return at if 0 <= at < self._heap_bytes else None

    def peers(self, array: Any) -> list[NDArray[Any]]:
        """Return every rank's array like this one, as this process maps them."""
        seen, _ = host_view(array, f"rank {self._group.rank}: peers")
        offset = self.offset(seen) if seen.size else None
        if offset is None or not seen.flags.c_contiguous:
            raise CallError(
                f"rank {self._group.rank}: peers() of {seen.nbytes} bytes that peers "
                "do not reach; want contiguous memory of empty(), all ranks on a host"
            )
        spans = [Span(at + offset, seen.nbytes, array) for at in self._heap.addresses]
        return [np.asarray(s).view(seen.dtype).reshape(seen.shape) for s in spans]

    def inside(self) -> int:
        """Return the thread that is in a call of this session, or 0."""
        return int(self._words[Common.INSIDE])

    def asked(self, ns: int) -> None:
        """Say when the next call was asked for, where that was before its start."""
        if self._ring is not None:
            self._ring.enqueued(ns)

    def prepare(self, plan: ProvedPlan, call: Call) -> Launch:
        """Bind a plan to a kind of call. Nothing is exchanged."""
        if plan.value.num_ranks != self._group.num_ranks:
            raise CallError(
                f"plan {plan.value.name} is for {plan.value.num_ranks} ranks; "
                f"want {self._group.num_ranks}"
            )
        assert self._memory is not None, "it is open"
        if plan.value.hosts != settled_hosts(self._hosts, self._group.num_ranks):
            raise CallError(
                f"plan {plan.value.name} is for hosts {plan.value.hosts or 'in one'}; "
                f"ranks are on {self._hosts}: lower it with hosts=comm.hosts"
            )
        check(call.op, call.dtype)
        text, kernel_of = describe(plan.value, call), self._interpreter.kernel_of
        encoded = encode(plan.value, call, text, self._memory, kernel_of)
        for address, nbytes in encoded.touched:
            prefault(address, nbytes)
        self._touched.update(encoded.touched)
        self._mine.register(int(encoded.table[Header.FINGERPRINT]), text)
        if self._ring is not None:
            said = plan.value, self._group.rank, encoded.table
            encoded.table[Header.KIND] = self._ring.define(
                call_kind(plan.value, call, "cpu"), functools.partial(explained, *said)
            )
        watch = CallWatch(
            group=self._group,
            slabs=self._slabs,
            words=self._words,
            plan=plan.value,
            encoded=encoded,
            resume=self._interpreter.resume,
            way=self._way,
            ring=self._ring,
        )
        launch = self._interpreter.launcher(encoded.table, watch.until_done)
        if self._way is not None:
            launch = self._way.tending(launch)
        if call.aside:
            return _aside(launch)
        if plan.value.schedule.across:
            return self._apart(launch, self._own_place(plan.value, call))
        if any(call.rows):
            return _repacking(launch, call.rows, self._group.num_ranks)
        return launch if call.epilogue is None else _ending(launch, call.epilogue)

    def refuses(self, plan: ProvedPlan) -> str:
        """Return why a plan does not run here, alike on every rank, or ""."""
        assert self._memory is not None, "it is open"
        if not plan.value.schedule.across:
            return ""
        return self._memory.none_across or why_not_across(plan.value)

    def _own_place(self, plan: Plan, call: Call) -> int | None:
        """Return behind how many inputs the output has this rank's own, or None."""
        if not keeps_own(plan, self._group.rank):
            return None
        if plan.collective == "broadcast":
            return 0
        gathers = plan.collective in ("all_gather", "gather")
        alike = plan.num_members == plan.num_ranks and len(set(call.counts)) == 1
        return self._group.rank if gathers and alike else None

    def _apart(self, launch: Launch, place: int | None) -> Launch:
        """Return a launch that reads a copy of its input where the output overlaps it.

        Peers copy from the input for as long as the call lasts. An input that lies at
        its own `place` in the output is not written.
        """

        def run(x: Any, out: Any) -> None:
            both = x is not None and out is not None
            if both and place is not None:
                both = self._address(x) != self._address(out) + place * x.nbytes
            if both and np.may_share_memory(x, out):
                if self._copy.nbytes < x.nbytes:
                    self._copy = np.empty(x.nbytes, np.uint8)
                copy = self._copy[: x.nbytes].view(x.dtype)
                np.copyto(copy, x)
                x = copy
            launch(x, out)

        return run

    def memory(self) -> dict[str, int]:
        """Return the bytes that this rank holds, by what they are for; at once."""
        staged = held(*self._staging())
        return {"staging": staged, "registered": self._heap.nbytes}

    def keeps(self) -> str:
        """Return why this rank cannot give memory back now, or ""."""
        if self._way is not None and self._way.carrier != "tcp":
            return f"carrier {self._way.carrier!r} may have pinned it; only tcp has not"
        return ""

    def suspend(self) -> None:
        """Give the pages of this rank's staging back, for all who map them."""
        give_back(*self._staging())
        self._copy = np.empty(0, np.uint8)

    def resume(self) -> None:
        """Take pages for all that launches stage in, on all ranks or on none."""
        why = ""
        try:
            for address, nbytes in sorted(self._touched):
                prefault(address, nbytes)
        except SharedMemoryError as e:
            why = f"rank {self._group.rank}: {e}"
        said = [m["take"] for m, _ in self._group.exchange({"take": why})]
        if refused := next(filter(None, said), ""):
            self.suspend()
            raise CallError(f"resume: {refused}; it is suspended still: free some")

    def _staging(self) -> tuple[int, int]:
        """Return where this rank's slab has packets and bulk units, and their bytes."""
        places, base = self._mine.slab.layout, self._mine.slab.address
        return base + places.packets(0), places.far(0) - places.packets(0)

    def close(self) -> None:
        """Give memory back; what launchers and arrays still hold goes with them."""
        self._words[Common.RING] = 0
        if self._ring is not None:
            self._ring = None
            close_ring(self._group)
        if self._way is not None:
            self._way.close()
        self._mine.close()
        self._heap.close()
        self._slabs = ()
        self._memory = None


def _aside(launch: Launch) -> Launch:
    """Return a launch that reads a copy of its input, which the output overwrites."""

    def copied(x: Any, out: Any) -> None:
        launch(x.copy(), out)

    return copied


def _repacking(launch: Launch, rows: tuple[int, int], num_ranks: int) -> Launch:
    """Return a launch that packs what lies apart before, and unpacks it after."""

    def permuted(x: Any, out: Any) -> None:
        if rows[0]:
            parts = x.reshape(-1, num_ranks, rows[0]).swapaxes(0, 1)
            x = np.ascontiguousarray(parts).reshape(-1)
        target = np.empty_like(out) if rows[1] else out
        launch(x, target)
        if rows[1]:
            parts = target.reshape(num_ranks, -1, rows[1])
            out.reshape(-1, num_ranks, rows[1])[...] = parts.swapaxes(0, 1)

    return permuted


def _ending(launch: Launch, epilogue: Spec) -> Launch:
    """Return a launch after which the rank makes its epilogue's outputs."""

    def fused(x: Any, out: Any, *, extra: Sequence[Any] = ()) -> None:
        launch(x, out)
        inputs = len(epilogue.inputs)
        made = evaluate(epilogue, out, extra[:inputs])
        for target, values in zip(extra[inputs:], made, strict=True):
            target[...] = values

    return fused


def _cache_bytes() -> int:
    """Return the size of the largest cache."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * scale)
    return max(sizes, default=16 << 20)
