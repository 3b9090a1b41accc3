"""One communicator's memory and calls, as one rank sees them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.collectives import check, dtype_name, storage
from stretto.epilogues import Spec, evaluate
from stretto.errors import CallError, CommunicationError
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
from stretto.executors.cpu.peers.crowding import is_crowded, where
from stretto.executors.cpu.peers.far import FarSlab, Way
from stretto.executors.cpu.peers.faults import Watch
from stretto.executors.cpu.running.encode import Memory, encode
from stretto.executors.cpu.running.explain import explained
from stretto.executors.cpu.running.interpreters import (
    Interpreter,
    interpreter_named,
    is_loaded,
    lacks_compiler,
)
from stretto.executors.cpu.shared.heap import Heap
from stretto.executors.cpu.shared.memory import (
    create_file,
    prefault,
    require_shared_memory,
)
from stretto.executors.cpu.shared.slab import ABI, CALL, Slab, SlabLayout
from stretto.executors.cpu.words import Header, SessionWord
from stretto.ir import Verified
from stretto.plan import Plan, settled_hosts
from stretto.trace import close_ring, open_ring

__all__ = ["CpuSession"]

_SPIN_US = 40.0
_CROWDED_SPIN_US = 0.5
_YIELDS, _CROWDED_YIELDS = 50, 400
_FAR_YIELDS, _FAR_SLEEPS = 4, 100
_FAR_TURN_NS = 1500
"""What one turn of a spin takes that asks connections, too."""
_SLEEPS = 10


class CpuSession(Session):
    """Slabs of all ranks, the heap, and what turns plans into launchers."""

    def __init__(self, group: Group, *, interpreter: str | None = None) -> None:
        """Make this rank's slab and map everybody's (collective)."""
        require_shared_memory()
        self._group, self._hosts = group, hosts_of(group)
        self._interpreter: Interpreter = _first_interpreter(group, interpreter)
        self._renewed: Interpreter | None = None
        """What calls that are prepared after `renew` are run by."""
        self._layout = SlabLayout(num_ranks=group.num_ranks)
        self._words = np.zeros(int(SessionWord.END), dtype=np.int64)
        shared = _share(group, self._layout, self._words, self._interpreter)
        self._slabs, self._way = shared.slabs, shared.way
        self._mine = shared.mine
        group.on_exchange.append(self._begin_exchange)
        self._heap = Heap(group)
        self._heap_at = self._heap.addresses[group.rank]
        self._heap_bytes = 0
        self._use_compiled()
        self._words[SessionWord.EPOCH] = 1
        self._words[SessionWord.CALL] = self._mine.address + CALL
        self._words[SessionWord.HEAP] = self._heap.addresses[group.rank]
        self._ring = open_ring(group, *comm_of(group), few=group.only_transfers)
        self._words[SessionWord.RING] = self._ring.address if self._ring else 0
        self._is_crowded = shared.crowded
        self._set_patience()
        self._known: set[str] = set()
        self._memory: Memory | None = Memory(
            rank=group.rank,
            slabs=tuple(s.address for s in self._slabs),
            heaps=self._heap.addresses,
            session=self._words.ctypes.data,
            layout=self._layout,
            cache_bytes=_cache_bytes(),
        )

    def _use_compiled(self) -> None:
        """Take what the interpreter has for calls: looked up here, not in each."""
        self._address = self._interpreter.address
        self.same_arrays = self._interpreter.same_arrays

    def _begin_exchange(self, number: int, text: str) -> None:
        """Let peers see that this rank is in an exchange, and not in a call."""
        self._mine.begin_exchange(number, text)
        if self._way is not None:
            self._way.tell()

    def _set_patience(self) -> None:
        """Spin long when every rank has a core, and hardly when not."""
        crowded = self._is_crowded
        spin_us = _CROWDED_SPIN_US if crowded else _SPIN_US
        turn_ns = self._interpreter.spin_ns if self._way is None else _FAR_TURN_NS
        spins = max(int(spin_us * 1e3 / turn_ns), 1)
        brief = max(int(_CROWDED_SPIN_US * 1e3 / turn_ns), 1)
        self._words[SessionWord.SPINS] = self._words[SessionWord.LONG_SPINS] = spins
        self._words[SessionWord.BRIEF_SPINS] = brief
        self._words[SessionWord.SLEEPS] = _SLEEPS if self._way is None else _FAR_SLEEPS
        yields = _CROWDED_YIELDS if crowded else _YIELDS
        if self._way is not None:  # who sleeps is woken by what comes
            yields = _FAR_YIELDS
        self._words[SessionWord.YIELDS] = self._words[SessionWord.MOST_YIELDS] = yields

    @property
    def interpreter(self) -> str:
        """Return the name of the interpreter: numba or numpy."""
        return self._interpreter.name

    def empty(self, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """Return registered memory, at the same offset on every rank (collective)."""
        name = dtype_name(dtype)
        array = self._heap.empty(shape, storage(name), name)
        self._words[SessionWord.HEAP_BYTES] = self._heap_bytes = self._heap.nbytes
        return array

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

    def tell_renewed(self, tell: Callable[[], None]) -> None:
        """Call `tell`, by a thread, when the compiled interpreter can be used."""
        if self._interpreter.name != "numba" and _may_be_compiled(self._group):
            from stretto.executors.cpu.running.beside import when_ready

            def take(engine: Interpreter) -> None:
                self._renewed = engine
                tell()

            when_ready(take)

    def renew(self) -> None:
        """Run calls that are prepared from now on by the compiled interpreter."""
        if self._renewed is not None:
            self._interpreter, self._renewed = self._renewed, None
            self._use_compiled()
            self._set_patience()

    def inside(self) -> int:
        """Return the thread that is in a call of this session, or 0."""
        return int(self._words[SessionWord.INSIDE])

    def asked(self, ns: int) -> None:
        """Say when the next call was asked for, where that was before its start."""
        if self._ring is not None:
            self._ring.enqueued(ns)

    def prepare(self, plan: Verified[Plan], call: Call) -> Launch:
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
        if text not in self._known:
            self._known.add(text)
            self._mine.register(int(encoded.table[Header.FINGERPRINT]), text)
        if self._ring is not None:
            said = plan.value, self._group.rank, encoded.table
            encoded.table[Header.KIND] = self._ring.define(
                call_kind(plan.value, call, "cpu"), functools.partial(explained, *said)
            )
        watch = Watch(
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
        if call.aside:
            return _aside(launch)
        if any(call.rows):
            return _repacking(launch, call.rows, self._group.num_ranks)
        return launch if call.epilogue is None else _ending(launch, call.epilogue)

    def close(self) -> None:
        """Give memory back; what launchers and arrays still hold goes with them."""
        self._words[SessionWord.RING] = 0
        if self._ring is not None:
            self._ring = None
            close_ring(self._group)
        if self._way is not None:
            self._way.close()
        self._slabs = ()
        self._memory = None
        self._known.clear()


def _first_interpreter(group: Group, name: str | None) -> Interpreter:
    """Return what runs the first calls: that which need not be compiled or loaded.

    Ranks understand each other, whichever they have.
    """
    if name is None and _may_be_compiled(group) and not is_loaded():
        name = "numpy"
    return interpreter_named(name, warn=group.rank == 0)


def _may_be_compiled(group: Group) -> bool:
    """Return whether the compiled interpreter is made ready beside the first calls.

    Between hosts it also carries the bytes, from the start.
    """
    late = getattr(group, "opens_late", False) and len(set(hosts_of(group))) == 1
    return late and not lacks_compiler()


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


class _Shared(NamedTuple):
    """Everybody's memory, and who runs where."""

    slabs: tuple[Slab | FarSlab, ...]
    mine: Slab
    way: Way | None
    crowded: bool
    """Whether ranks exceed cores."""


def _share(
    group: Group, places: SlabLayout, words: NDArray[np.int64], engine: Interpreter
) -> _Shared:
    """Make my slab, give it to everybody here, map theirs, and connect with others."""
    hosts = hosts_of(group)
    fd = create_file(places.nbytes)
    fds = {fd}
    said: dict[str, Any] = {"abi": ABI, **where()}
    way = None
    try:
        mine = Slab(places, fd)
        mine.begin()
        prefault(mine.address, places.packets(0))
        if len(set(hosts)) > 1:
            way = Way(group, places, mine, words)
            said["hop"] = way.share(engine)
        slabs: list[Slab | FarSlab] = []
        mine_too = (fd, *(way.wakers.share() if way else ()))
        fds.update(mine_too)
        parts = group.exchange(said, mine_too)
        fds.update(each for _, theirs in parts for each in theirs)
        for rank, (payload, theirs) in enumerate(parts):
            here = hosts[rank] == hosts[group.rank]
            if payload["abi"] != ABI:
                raise CommunicationError(
                    f"rank {rank} lays its memory out by ABI {payload['abi']}, want "
                    f"{ABI}: run the same version of stretto everywhere"
                )
            if rank == group.rank:
                slabs.append(mine)
            elif here:
                slabs.append(Slab(places, theirs[0]))
            else:
                slabs.append(FarSlab(mine, rank))
        if way is not None:
            way.connect([part["hop"] for part, _ in parts], group.deadline_s)
            near = {r: s for r, s in enumerate(slabs) if isinstance(s, Slab)}
            numbers = {r: parts[r][1][1] for r in near if len(parts[r][1]) > 1}
            way.wakers.connect(words, group.rank, near, numbers)
    except BaseException:
        if way is not None:
            way.close()
        raise
    finally:
        for each in fds:
            os.close(each)
    for slab in slabs:
        if isinstance(slab, Slab):
            prefault(slab.address, places.packets(0))
    crowded = is_crowded(group.rank, [part for part, _ in parts], hosts)
    return _Shared(tuple(slabs), mine, way, crowded)


def _cache_bytes() -> int:
    """Return the size of the largest cache."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * scale)
    return max(sizes, default=16 << 20)
