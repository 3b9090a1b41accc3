"""Launches of kernels with an epilogue: more addresses in their parameters."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stretto.collectives import storage
from stretto.epilogues import Form, Spec
from stretto.errors import CallError, PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import PARAMS
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

_WORD = 8
"""Bytes of a word of the parameters."""


@functools.lru_cache(maxsize=4096)
def _bits(number: float) -> int:
    """Return the bits of a number in float32; 0 has two of them, and is not asked."""
    return int(np.float32(number).view(np.uint32))


class FusedLaunch(KernelLaunch):
    """Run one kernel on (input, output) and what its epilogue reads and writes."""

    def __init__(self, *args: Any, epilogue: Spec, **options: Any) -> None:
        super().__init__(*args, **options)
        self._epilogue = epilogue
        first, rest = divmod(PARAMS.itemsize, _WORD)
        assert not rest, "the table begins at a word"
        self._extra_at = [
            (first + at, entry[1])
            for at, entry in enumerate(self.kernel.table)
            if entry[0] == "extra"
        ]
        """Where the addresses of the epilogue's arrays go."""
        by_cells = epilogue.row > 0 and epilogue.row % epilogue.cell == 0
        streamed = Form.ELEMENT, Form.ROW
        self._looks = [
            (not named.dtype, by_cells and named.form in streamed)
            for named in (*epilogue.inputs, *epilogue.outputs)
        ]
        """Of what the epilogue takes: is it a number, is it moved by 16 bytes."""

    def __call__(
        self, x: Any, out: Any = None, stream: Any = None, *, extra: Sequence[Any] = ()
    ) -> None:
        """Enqueue the collective on the caller's stream, and return at once."""
        handle = self.begin(stream)
        given = self._given(extra)
        arguments = self._streams.get(handle)
        if arguments is None:
            self._fused_in_turn(handle, x, out, given, extra)
            return
        found = arguments.kept.get((pointer(x), pointer(out), *given))
        if found is None:
            found = self._packed(arguments, x, out, given, extra)
        self.enqueue(handle, found)

    def _given(self, extra: Sequence[Any]) -> tuple[int, ...]:
        """Return the words of an epilogue's arrays and numbers, as `words` does."""
        found: list[int] = []
        for one, (is_number, by_cells) in zip(extra, self._looks, strict=True):
            if is_number:
                found.append(
                    _bits(one) if one else words(self._epilogue, extra)[len(found)]
                )
                continue
            at = one if type(one) is int else pointer(one)
            if by_cells and at % 16:
                words(self._epilogue, extra)  # says which
            found.append(at)
        return tuple(found)

    def _fused_in_turn(
        self,
        handle: int,
        x: Any,
        out: Any,
        given: tuple[int, ...],
        extra: Sequence[Any],
    ) -> None:
        """Launch on a stream that is new here, or whose flags others use too."""
        flags = self._flags.of(handle)
        arguments = self._opened.get(flags.nth)
        if arguments is None:
            template = self.packed(flags.region, [0] * len(given))
            arguments = Arguments(template, self._bind, self._extra_at)
            self._opened[flags.nth] = arguments
        if flags.is_owned_by(handle):
            self._streams[handle] = arguments
        found = arguments.kept.get((pointer(x), pointer(out), *given))
        if found is None:
            found = self._packed(arguments, x, out, given, extra)
        with flags.turn(handle) as early:
            self.enqueue(handle, found, early)

    def _packed(
        self,
        arguments: Arguments,
        x: Any,
        out: Any,
        given: tuple[int, ...],
        extra: Sequence[Any],
    ) -> int:
        """Return where the parameters for arrays lie that are new here."""
        self._examine(x, out)
        for one in extra:
            require_near(one, self._ordinal)
        return arguments.pack(pointer(x), pointer(out), given)

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
