"""A plan bound to a kind of call: what `prepare` returns for plans that are kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.executors import Group
from stretto.executors.cuda.codegen.abi import (
    PARAMS,
    Footprint,
    Kernel,
    footprint,
    pack,
)
from stretto.executors.cuda.device.arrays import pointer, require_near
from stretto.executors.cuda.device.driver import current_stream
from stretto.executors.cuda.device.space import AddressSpace
from stretto.executors.cuda.flags.flagsets import FlagSets
from stretto.executors.cuda.flags.regions import Region
from stretto.executors.cuda.flags.watch import Watch
from stretto.executors.cuda.launching.launch import Arguments, Loaded, enqueue, mixed
from stretto.plan import Layout, Move, Plan, Space

__all__ = ["Home", "KernelLaunch", "peer_spaces", "stream_handle"]

_INPUT, _OUTPUT, _MARK = (
    PARAMS.fields[name][1] // 8  # type: ignore[index]
    for name in ("input", "output", "fingerprint")
)
"""Words of the parameters; the fingerprint is the upper half of its word."""
_TILES = 0xFFFFFFFF
"""The lower half of that word: how many tiles there are."""


class Home(Protocol):
    """What a kernel's launches need of the session that made them."""

    group: Group
    space: AddressSpace
    watch: Watch
    flags: FlagSets


class KernelLaunch:
    """Run one kernel on (input, output) arrays, on the caller's stream."""

    def __init__(
        self,
        home: Home,
        plan: Plan,
        loaded: Loaded,
        *,
        where: Layout,
        fingerprint: int,
        needs: Footprint | None = None,
        shares: frozenset[Space] | None = None,
        extra: Sequence[int] = (),
    ) -> None:
        """`needs` and `shares` are the plan's, unless a kernel has others."""
        space, watch = home.space, home.watch
        self.plan = plan
        self.kernel: Kernel = loaded.kernel
        self._loaded = loaded
        self._space = space
        self._watch = watch
        self._state = watch.state
        self._flags = home.flags
        self._where = where
        self._needs = needs or footprint(plan, where, space.rank)
        self._fingerprint = fingerprint
        self._deadline_ns = int(home.group.deadline_s * 1e9)
        self._extra = extra
        self._ordinal = space.device.ordinal
        self._peers = peer_spaces(plan, space.rank) if shares is None else shares
        self._streams: dict[int, Arguments] = {}
        """Those of streams whose flags nobody shares: all that most calls look up."""
        self._opened: dict[int, Arguments] = {}
        """Those of each set of flags."""
        watch.know(fingerprint, plan)
        if self._peers:
            space.tell(self.forget)
        self._flags.tell(self.share)

    def share(self) -> None:
        """Ask for a turn from now on: a stream's flags are no longer its own."""
        self._streams.clear()

    def forget(self) -> None:
        """Look up anew where arrays lie: what was registered has changed."""
        for arguments in self._opened.values():
            arguments.forget()

    def __call__(self, x: Any, out: Any = None, stream: Any = None) -> None:
        """Enqueue the collective on the caller's stream, and return at once.

        An array may be given as its address, once one like it has been looked at.
        """
        if self._state[0] or self._watch.fault is not None:
            self._watch.check()
        handle = (
            current_stream(self._ordinal) if stream is None else stream_handle(stream)
        )
        arguments = self._streams.get(handle)
        if arguments is None:
            self._in_turn(handle, x, out)
            return
        source = x if type(x) is int else pointer(x)
        target = source if out is x else pointer(out)
        found = arguments.kept.get((source, target))
        if found is None:
            self._examine(x, out)
            found = arguments.pack(source, target)
        if self._loaded.launch(handle, found):
            enqueue(self._space.device, self._loaded, handle, found)

    def repeat(self, source: int | None, target: int | None) -> Callable[[], None]:
        """Return the call on arrays at these addresses, on the current stream.

        For whoever knows that the arrays are still the same: they are not asked again.
        """
        ordinal, key = self._ordinal, (source or 0, target or 0)
        state, watch, streams = self._state, self._watch, self._streams
        launch = self._loaded.launch

        def again() -> None:
            if state[0] or watch.fault is not None:
                watch.check()
            handle = current_stream(ordinal)
            arguments = streams.get(handle)
            if arguments is None:
                self._in_turn(handle, *key)
                return
            found = arguments.kept.get(key)
            if found is None:
                found = arguments.pack(*key)
            if launch(handle, found):
                self.enqueue(handle, found)

        return again

    def _in_turn(self, handle: int, x: Any, out: Any) -> None:
        """Launch on a stream that is new here, or whose flags others use too."""
        flags = self._flags.of(handle)
        arguments = self._opened.get(flags.nth)
        if arguments is None:
            arguments = Arguments(self.packed(flags.region), self._bind)
            self._opened[flags.nth] = arguments
        if flags.is_owned_by(handle):
            self._streams[handle] = arguments
        found = self.place(arguments, x, out)
        with flags.turn(handle) as early:
            self.enqueue(handle, found, early)

    def place(self, arguments: Arguments, x: Any, out: Any) -> int:
        """Return where the parameters for a pair of arrays lie."""
        pair = pointer(x), pointer(out)
        found = arguments.kept.get(pair)
        if found is None:
            self._examine(x, out)
            found = arguments.pack(*pair)
        return found

    def _examine(self, x: Any, out: Any) -> None:
        """Refuse arrays that are not on this rank's GPU."""
        require_near(x, self._ordinal)
        require_near(out, self._ordinal)

    def packed(self, region: Region, extra: Sequence[int] = ()) -> NDArray[np.uint8]:
        """Return the parameters of launches with a set of flags, without arrays."""
        bases = self._space.peers
        return pack(
            self.kernel,
            self._where,
            {
                "control": [b + region.control for b in bases],
                "stage": [b + region.stage for b in bases],
                "packets": [b + region.packets for b in bases],
                "record": self._watch.record,
                "deadline_ns": self._deadline_ns,
                "fingerprint": self._fingerprint,
                "stage_unit": self._needs.stage_unit,
                "packet_unit": self._needs.packet_unit,
                "stage_half": region.half("stage"),
                "packet_half": region.half("packets"),
            },
            extra or self._extra,
        )

    def begin(self, stream: Any) -> int:
        """Return the handle of a call's stream; raise what an earlier call met."""
        if self._state[0] or self._watch.fault is not None:
            self._watch.check()
        if stream is None:
            return current_stream(self._ordinal)
        return stream_handle(stream)

    def enqueue(self, handle: int, arguments: int, early: bool = True) -> None:
        """Launch with parameters that lie at an address."""
        launch = self._loaded.launch if early else self._loaded.launch_late
        if launch(handle, arguments):
            enqueue(self._space.device, self._loaded, handle, arguments, early)

    def _bind(self, words: memoryview, source: int, target: int) -> None:
        """Write the arrays' addresses, the peers' too where the plan touches them."""
        rank = self._space.rank
        words[_INPUT + rank], words[_OUTPUT + rank] = source, target
        if not self._peers:
            return
        offsets: list[int | None] = []
        for name, first, space, address in (
            ("input", _INPUT, Space.INPUT, source),
            ("output", _OUTPUT, Space.OUTPUT, target),
        ):
            if space not in self._peers:
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
        fingerprint = mixed(self._fingerprint, tuple(offsets))
        self._watch.know(fingerprint, self.plan, self._fingerprint, offsets)
        words[_MARK] = words[_MARK] & _TILES | fingerprint << 32


def peer_spaces(plan: Plan, rank: int) -> frozenset[Space]:
    """Return which of everybody's own arrays a plan lets peers touch.

    Asked of the whole plan, so that every rank mixes the same offsets.
    """
    assert 0 <= rank < plan.num_ranks, "sessions prepare plans of their own size"
    return frozenset(
        loc.space
        for owner, _, _, step in plan.steps()
        if isinstance(step, Move)
        for loc in (*step.dsts, *step.srcs)
        if loc.rank != owner and loc.space is not Space.STAGE
    )


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an int, torch's, or any `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise CallError(f"stream={stream!r}; want an int or a CUDA stream object")
