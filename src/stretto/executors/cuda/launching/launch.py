"""A call, ready to be launched: its parts, each with what was packed for its arrays.

A part is a kernel (here) or copies by copy engines (copies.py). Most calls are one
kernel, and its launch is two look-ups and a call of the driver. Nothing that changes
between calls is in a kernel's parameters but addresses and a few words, which are the
key of what was packed. Epochs live on the device: a captured launch may be replayed for
ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.arrays import pointer, require_near
from stretto.compiler.plan import Plan, PlanLayout, Space
from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import mixed, pack
from stretto.executors.cuda.device.driver import (
    current_stream,
    stream_handle,
    stream_question,
)
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.launching.kernels import Loaded, enqueue
from stretto.executors.cuda.launching.names import CallName
from stretto.executors.cuda.launching.parameters import Args, Key, Parameters
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

AddedWords: TypeAlias = Callable[[Key, Any, Any, Sequence[Any]], Sequence[int]]
"""Words that a call adds to its key, of input, output, and extra arrays."""
OwnKey: TypeAlias = Callable[[FlagRegion, Key], Key]
"""The key of a part, of that of its call."""


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
            raise _second_thread()
        self._inside[0] = 1  # nothing is called between: no thread comes between
        try:
            if self._state[0] or self._watch.fault is not None:
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
        """Return the call on arrays at these addresses, on the current stream.

        For whoever knows that the arrays are still the same: they are not asked again.
        A stream that is said waits for another before each call and is in no capture:
        nothing could begin early there. Of such a call an event and the other stream
        may be given, each as its handle: then the driver is told so, too, and the event
        is one of the call's end; False: it could not be, and nothing was launched.
        """
        ordinal, key = self._ordinal, (source or 0, target or 0)
        state, watch, streams = self._state, self._watch, self._streams
        launch, inside, note = self._launch, self._inside, self.note
        stream_of = stream_question()
        if stream is not None:
            stream_of = lambda _: stream  # noqa: E731
            launch = self._kernel and self._kernel.loaded.launch_late
        direct: dict[int, Callable[[int, None], int]] = {}
        """What the driver is asked by, on streams that were seen."""
        behind: list[Callable[[int, int, int], int]] = []
        """Of the stream that is said: what launches behind another."""

        def launch_behind(event: int, caller: int) -> bool:
            parameters = streams.get(stream or 0)
            if parameters is None:
                return False
            if not behind:
                made = self._kernel.loaded.behind(stream or 0)
                if made is None:
                    return False
                behind.append(made)
            found = parameters.kept.get(key)
            if found is None:
                found = parameters.pack(key)
            if note is not None:
                note(stream or 0)
            return not behind[0](event, caller, found)

        def again(event: int = 0, caller: int = 0) -> bool:
            if inside[0]:
                raise _second_thread()
            inside[0] = 1
            try:
                if state[0] or watch.fault is not None:
                    watch.check()
                if event:
                    return launch_behind(event, caller)
                handle = stream_of(ordinal)
                if note is not None:
                    note(handle)
                parameters = streams.get(handle)
                if parameters is None:
                    self._in_turn(handle, key)
                    return True
                found = parameters.kept.get(key)
                if found is None:
                    found = parameters.pack(key)
                if handle in direct:
                    error = direct[handle](found, None)
                else:
                    error = launch(handle, found)
                    if at_once := self._kernel.loaded.directly(handle, stream):
                        direct[handle] = at_once
                if error:
                    self._kernel.enqueue(handle, found)
                return True
            finally:
                inside[0] = 0

        return again

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


def _second_thread() -> CallError:
    return CallError(
        "another thread, or what a signal has broken into, is just launching a call of "
        "this communicator; one thread at a time may use it: give each one of its own, "
        "by split(0)"
    )
