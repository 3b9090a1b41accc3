"""Launches of kernels with an epilogue: more addresses in their parameters."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto.collectives import storage
from stretto.epilogues import Spec
from stretto.errors import CallError, PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.epilogue import words
from stretto.executors.cuda.codegen.rowwise import EACH_ITS_OWN, shared_by
from stretto.executors.cuda.device.arrays import pointer, require_near
from stretto.executors.cuda.flags.regions import fit, symbol_sizes
from stretto.executors.cuda.launching.bound import KernelLaunch
from stretto.executors.cuda.launching.engine import runs_on_engine
from stretto.executors.cuda.launching.host import Host
from stretto.executors.cuda.launching.launch import Arguments, TooManyBlocks, mixed
from stretto.ir import Verified
from stretto.lower import batched, closed, hands_round_on_engine
from stretto.plan import Layout, Plan
from stretto.verify import verify_plan

__all__ = ["FusedLaunch", "fused_launch"]

KEPT = 512
"""Sets of an epilogue's arrays whose parameters are kept."""


class FusedLaunch(KernelLaunch):
    """Run one kernel on (input, output) and what its epilogue reads and writes."""

    def __init__(self, *args: Any, epilogue: Spec, **options: Any) -> None:
        super().__init__(*args, **options)
        self._epilogue = epilogue
        self._sets_of_arrays: dict[tuple[int, ...], Arguments] = {}

    def __call__(
        self, x: Any, out: Any = None, stream: Any = None, *, extra: Sequence[Any] = ()
    ) -> None:
        """Enqueue the collective on the caller's stream, and return at once."""
        handle = self.begin(stream)
        key = (handle, *words(self._epilogue, extra))
        arguments = self._sets_of_arrays.get(key)
        if arguments is None:
            self._in_turn_with(key, x, out, extra)
            return
        found = arguments.kept.get((pointer(x), pointer(out)))
        self.enqueue(handle, found or self.place(arguments, x, out))

    def _in_turn_with(
        self, key: tuple[int, ...], x: Any, out: Any, extra: Sequence[Any]
    ) -> None:
        """Launch with arrays that are new here, or on a stream that shares flags."""
        handle, arguments = key[0], None
        flags = self._flags.of(handle)
        if not flags.is_owned_by(handle):
            key = (-1 - flags.nth, *key[1:])
            arguments = self._sets_of_arrays.get(key)
        if arguments is None:
            if len(self._sets_of_arrays) >= KEPT:
                self._sets_of_arrays.clear()
            arguments = Arguments(self.packed(flags.region, key[1:]), self._bind)
            for one in extra:
                require_near(one, self._ordinal)
            self._sets_of_arrays[key] = arguments
        found = self.place(arguments, x, out)
        with flags.turn(handle) as early:
            self.enqueue(handle, found, early)

    def share(self) -> None:
        """Ask for a turn from now on: a stream's flags are no longer its own."""
        super().share()
        self._sets_of_arrays.clear()

    def forget(self) -> None:
        """Look up anew where arrays lie: what was registered has changed."""
        super().forget()
        self._sets_of_arrays.clear()

    def _examine(self, x: Any, out: Any) -> None:
        super()._examine(x, out)
        self._check(out)

    def _check(self, out: Any) -> None:
        """Refuse a result that rows of whole cells cannot be read from."""
        spec, at = self._epilogue, pointer(out)
        if spec.row and spec.row % spec.cell == 0 and at % 16:
            raise CallError(
                f"epilogue: the collective's result begins {at % 16} bytes after a "
                "multiple of 16, and rows are moved by 16 bytes; pass a copy as out="
            )


def fused_launch(
    session: Host, proved: Verified[Plan], call: Call, epilogue: Spec, mark: int
) -> FusedLaunch:
    """Bind a plan whose kernel ends with an epilogue; its rows stay whole.

    Each block has one row, or a part of one (`shared_by`), unless there are more rows
    than blocks, or this GPU holds fewer of such blocks at once: then blocks have rows
    one after the other. Where two blocks do not find room on an SM, there are half.
    """
    plan = proved.value
    if runs_on_engine(plan) or hands_round_on_engine(plan):
        raise PlanError(
            f"plan {plan.name} ({plan.schedule}): the call has an epilogue, and copy "
            "engines compute nothing; want packets or bulk"
        )
    grain = epilogue.row or 1
    itemsize = storage(call.dtype).itemsize
    sizes = symbol_sizes(plan, call, grain)
    where = fit(plan, sizes, itemsize, grain=grain)
    rows = int(where.atom_sizes.max(initial=0)) // grain
    share = shared_by(epilogue, plan.schedule.blocks, rows)
    if share == 1 or (share > 1 and session.device.arch >= (9, 0)):
        shared = fit(plan, sizes, itemsize, grain=grain, share=share)
        try:
            return _bound(session, proved, call, epilogue, mark, shared, share)
        except TooManyBlocks:
            pass
    try:
        return _bound(session, proved, call, epilogue, mark, where, 0)
    except TooManyBlocks:
        if plan.schedule.blocks <= EACH_ITS_OWN:
            raise
    half = replace(plan.schedule, blocks=plan.schedule.blocks // 2)
    proved = verify_plan(replace(plan, schedule=half), proved)
    where = fit(proved.value, sizes, itemsize, grain=grain)
    return _bound(session, proved, call, epilogue, mark, where, 0)


def _bound(
    session: Host,
    proved: Verified[Plan],
    call: Call,
    epilogue: Spec,
    mark: int,
    where: Layout,
    share: int,
) -> FusedLaunch:
    plan = batched(closed(proved) if where.tiles > 1 else proved)
    said = f"{share} {plan.plan.schedule.blocks} {epilogue}".encode()
    return FusedLaunch(
        session,
        plan.plan,
        session.load_call(plan, call, share),
        where=where,
        fingerprint=session.watch.part(
            mixed(mark, (zlib.crc32(said),)), mark, f", with the epilogue {epilogue}"
        ),
        epilogue=epilogue,
    )
