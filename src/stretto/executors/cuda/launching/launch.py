"""A call, ready to be launched: its parts, each with what was packed for its arrays.

A part is a kernel (here) or copies by copy engines (copies.py). Most calls are one
kernel, and its launch is two look-ups and a call of the driver. Nothing that changes
between calls is in a kernel's parameters but addresses and a few words, which are the
key of what was packed. Epochs live on the device: a captured launch may be replayed for
ever.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.arrays import pointer, require_near
from stretto.compiler.plan import Plan, PlanLayout, Space
from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import mixed, pack
from stretto.executors.cuda.device.driver import (
    current_stream,
    stream_handle,
)
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.launching.again import repeat, second_thread
from stretto.executors.cuda.launching.kernels import Loaded, enqueue
from stretto.executors.cuda.launching.names import CallName
from stretto.executors.cuda.launching.services import SessionServices
from stretto.executors.cuda.words import PARAMS

_INPUT, _OUTPUT, _MARK = (
    PARAMS.fields[name][1] // 8  # type: ignore[index]
    for name in ("input", "output", "fingerprint")
)
"""Words of the parameters; the fingerprint is the upper half of its word."""
_TILES = 0xFFFFFFFF
"""The lower half of that word: how many tiles there are."""
_TABLE = PARAMS.itemsize // 8
"""The first word of the table."""

KEPT = 512
"""Keys whose parameters are kept, of each launch and set of flags."""
PADDING = 64
"""Bytes after the parameters: an empty table is a word in C."""

Key: TypeAlias = tuple[int, ...]
"""Where input and output lie, then the words that a call adds."""
T = TypeVar("T")
AddedWords: TypeAlias = Callable[[Key, Any, Any, Sequence[Any]], Sequence[int]]
"""Words that a call adds to its key, of input, output, and extra arrays."""
OwnKey: TypeAlias = Callable[[FlagRegion, Key], Key]
"""The key of a part, of that of its call."""


class Args(int):
    """A kernel's parameters in memory: the address of its argument array."""

    words: memoryview
    """The parameters, as words of 64 bits."""
    _array: Any

    @classmethod
    def of(cls, packed: NDArray[np.uint8]) -> Args:
        """Return a copy of packed parameters."""
        # A table that is empty here is one word for the driver, which copies it.
        padded = packed.tobytes() + bytes(PADDING)
        raw = (ctypes.c_uint8 * len(padded)).from_buffer_copy(padded)
        array = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
        block = cls(ctypes.addressof(array))
        block.words, block._array = memoryview(raw).cast("B").cast("Q"), array
        return block


class Parameters(Generic[T]):
    """What was packed for each key, with one set of flags.

    A launch copies its parameters, so those of the key that was packed first may be
    written over when there are many: arrays may lie elsewhere in every call.
    """

    def __init__(self, make: Callable[[Key, T | None], T]) -> None:
        """`make` packs for a key, and may write over what it is given."""
        self._make = make
        self.kept: dict[Key, T] = {}

    def pack(self, key: Key) -> T:
        """Pack for a key that is not kept."""
        full = len(self.kept) >= KEPT
        # The driver has copied what was launched: its memory may be written over.
        oldest = self.kept.pop(next(iter(self.kept))) if full else None
        found = self.kept[key] = self._make(key, oldest)
        return found

    def forget(self) -> None:
        """Pack all anew."""
        self.kept.clear()


class LaunchPart(Protocol):
    """What a call enqueues: a kernel, or copies."""

    name: CallName
    plan: Plan
    peers: frozenset[Space]
    """Which of everybody's own arrays peers touch."""

    def parameters(self, region: FlagRegion) -> Parameters[Any]:
        """Return what is packed for calls with a set of flags; at first nothing."""

    def enqueue(self, handle: int, packed: Any, early: bool) -> None:
        """Enqueue on a stream what was packed for a call."""


class BoundKernel:
    """A kernel with all of its parameters but addresses."""

    def __init__(
        self,
        session: SessionServices,
        plan: Plan,
        loaded: Loaded,
        *,
        where: PlanLayout,
        name: CallName,
        shares: frozenset[Space],
        words: Sequence[int] = (),
        own_key: OwnKey | None = None,
    ) -> None:
        """`shares` are the spaces that peers touch.

        Extra words of its table are `words`, or else those that a key ends with.
        """
        space = session.space
        self.plan = plan
        self.kernel = loaded.kernel
        self.loaded = loaded
        self.where = where
        self.name = name
        self.peers = shares
        self._space, self._watch = space, session.watch
        self._recorded, self._far = session.recorded, session.far
        self._deadline_ns = int(session.group.deadline_s * 1e9)
        self._words = words
        self._own_key = own_key
        self._added = [
            (_TABLE + at, 2 + nth)
            for at, (kind, nth, _) in enumerate(loaded.kernel.table)
            if kind == "extra" and not words
        ]
        """Words of the parameters that a key says, and where it does."""

    def parameters(self, region: FlagRegion) -> Parameters[Args]:
        """Return what is packed for calls with a set of flags; at first nothing."""
        return Parameters(functools.partial(self._pack, region, self.packed(region)))

    def enqueue(self, handle: int, packed: int, early: bool = True) -> None:
        """Launch with parameters that lie at an address."""
        loaded = self.loaded
        if (loaded.launch if early else loaded.launch_late)(handle, packed):
            enqueue(self._space.device, loaded, handle, packed, early)

    def packed(self, region: FlagRegion) -> NDArray[np.uint8]:
        """Return the parameters of launches with a set of flags, without arrays."""
        bases = self._space.peers
        stage = [b + region.stage for b in bases]
        if self._far is not None:
            for rank, mirror in self._far.mirrors(region).items():
                stage[rank] = mirror
        return pack(
            self.kernel,
            self.where,
            {
                **({} if self._far is None else self._far.fields(region)),
                "control": [b + region.control if b else 0 for b in bases],
                "stage": stage,
                "packets": [b + region.packets if b else 0 for b in bases],
                "record": self._watch.record,
                "deadline_ns": self._deadline_ns,
                "fingerprint": self.name.fingerprint,
                "stage_half": region.halves["stage"],
                "packet_half": region.halves["packets"],
            },
            self._words or (0,) * len(self.kernel.table),
        )

    def _pack(
        self, region: FlagRegion, packed: NDArray[np.uint8], key: Key, old: Args | None
    ) -> Args:
        """Return parameters for a key, in the place of old ones."""
        if self._own_key is not None:
            key = self._own_key(region, key)
        block = Args.of(packed) if old is None else old
        self._bind(block.words, key)
        return block

    def _bind(self, words: memoryview, key: Key) -> None:
        """Write the arrays' addresses, the peers' too where the plan touches them."""
        rank, source, target = self._space.rank, key[0], key[1]
        words[_INPUT + rank], words[_OUTPUT + rank] = source, target
        for at, nth in self._added:
            words[at] = key[nth]
        # Peers touch nothing of the callers': where arrays lie is this rank's business.
        if not self.peers:
            return
        offsets: list[int | None] = []
        for name, first, space, address in (
            ("input", _INPUT, Space.INPUT, source),
            ("output", _OUTPUT, Space.OUTPUT, target),
        ):
            if space not in self.peers:
                continue
            offset = self._space.offset(address) if address else None
            offsets.append(offset)
            if offset is None:
                raise CallError(
                    f"plan {self.plan.name} ({self.plan.schedule}): peers touch the "
                    f"{name}, which is not registered memory; use comm.empty(), or an "
                    "algorithm that stages"
                )
            for q in range(self._space.num_ranks):
                words[first + q] = self._space.peer_address(q, offset)
            words[first + rank] = address
        of = self.name.fingerprint
        # Ranks compare it: arrays at different offsets are different calls.
        fingerprint = mixed(of, tuple(offsets))
        self._watch.know(fingerprint, self.plan, of, offsets)
        self._recorded.also(fingerprint, of)
        words[_MARK] = words[_MARK] & _TILES | fingerprint << 32


class Launch:
    """Run a call's parts on (input, output) arrays, on the caller's stream."""

    def __init__(
        self,
        session: SessionServices,
        *parts: LaunchPart,
        added: AddedWords | None = None,
    ) -> None:
        """With `added` words the call takes extra arrays."""
        self.parts = parts
        self.note: Callable[[int], object] | None = None
        """Records that the call is enqueued, on a stream."""
        self._watch = session.watch
        self._state, self._inside = session.watch.state, session.watch.inside
        self._flags = session.flags
        self._device = session.device
        self._ordinal = session.device.ordinal
        self._added = added
        self.kernels = [part for part in parts if isinstance(part, BoundKernel)]
        self._is_one_kernel = len(parts) == len(self.kernels) == 1
        self._kernel: Any = None
        self._launch: Any = None
        if self._is_one_kernel:
            self._kernel = self.kernels[0]
            self._launch = self._kernel.loaded.launch
        self._streams: dict[int, Parameters[Any]] = {}
        """Of one kernel, by streams whose flags nobody shares: what most calls need."""
        self._opened: dict[int, tuple[Parameters[Any], ...]] = {}
        """Of all parts, by set of flags."""
        if any(part.peers for part in parts):
            session.space.tell(self.forget)

    def share(self) -> None:
        """Ask for a turn from now on: a stream's flags are no longer its own."""
        self._streams.clear()

    def forget(self) -> None:
        """Look up anew where arrays lie: what was registered has changed."""
        for opened in self._opened.values():
            for parameters in opened:
                parameters.forget()

    def __call__(
        self, x: Any, out: Any = None, stream: Any = None, *, extra: Sequence[Any] = ()
    ) -> None:
        """Enqueue the collective on the caller's stream, and return at once.

        An array may be given as its address, once one like it has been looked at.
        """
        if self._inside[0]:
            raise second_thread()
        self._inside[0] = 1  # nothing is called between: no thread comes between
        try:
            if self._watch.fault is not None or self._state[0]:
                self._watch.check()
            # Asked of torch each time: the current stream is the thread's, and changes.
            handle = (
                current_stream(self._ordinal)
                if stream is None
                else stream_handle(stream)
            )
            if self.note is not None:
                self.note(handle)
            source = x if type(x) is int else pointer(x, self._ordinal)
            target = source if out is x else pointer(out, self._ordinal)
            key: Key = source, target
            if self._added is not None:
                if type(x) is not int:
                    for array in extra:
                        require_near(array, self._ordinal)
                key = (*key, *self._added(key, x, out, extra))
            # Only streams that have their flags for themselves are in it; the rest take
            # turns.
            parameters = self._streams.get(handle)
            if parameters is None:
                self._in_turn(handle, key)
                return
            found = parameters.kept.get(key)
            if found is None:
                found = parameters.pack(key)
            if self._launch(handle, found):
                self._kernel.enqueue(handle, found)
        finally:
            self._inside[0] = 0

    def repeat(
        self, source: int | None, target: int | None, stream: int | None = None
    ) -> Callable[..., bool]:
        """Return the call on arrays at these addresses, to be made again: `again`."""
        return repeat(self, (source or 0, target or 0), stream)

    def _in_turn(self, handle: int, key: Key) -> None:
        """Launch on a stream that is new here, or whose flags others use too."""
        flags = self._flags.of(handle)
        is_own = self._is_one_kernel and flags.own(handle, self)
        opened = self._opened.get(flags.nth)
        if opened is None:
            opened = tuple(part.parameters(flags.region) for part in self.parts)
            self._opened[flags.nth] = opened
        if not self._is_one_kernel:
            self._device.require_context()
        placed = []
        for parameters in opened:
            found = parameters.kept.get(key)
            placed.append(parameters.pack(key) if found is None else found)
        if is_own:
            self._streams[handle] = opened[0]
            self._kernel.enqueue(handle, placed[0])
            return
        with flags.turn(handle) as early:
            for part, packed in zip(self.parts, placed, strict=True):
                part.enqueue(handle, packed, early)
