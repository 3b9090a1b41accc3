"""From a proved plan and a kind of call to its launch.

A plan is one kernel, unless copy engines run all of it or its second half. What a call
is beside its collective (an epilogue, rows with a pitch, a kernel by hand, counts on
the GPU) changes the kernel, some words of its table, and what ranks must agree on.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.arrays import pointer, require_near
from stretto.compiler.plan import (
    Handwritten,
    Plan,
    PlanLayout,
    ProvedPlan,
    Space,
    hands_round_on_engine,
    layout,
    settled_hosts,
)
from stretto.errors import CallError, PlanError
from stretto.executors import Call, describe, hosts_of
from stretto.executors.cuda.codegen.byhand import hand_kernel
from stretto.executors.cuda.codegen.epilogue import words_of
from stretto.executors.cuda.codegen.rowwise import EACH_ITS_OWN, shared_by
from stretto.executors.cuda.device.driver import api, ask, current_stream, stream_handle
from stretto.executors.cuda.flags.regions import fit, symbol_sizes
from stretto.executors.cuda.launching.bind import bind_kernel, bind_plan
from stretto.executors.cuda.launching.byhand import hand_layout, taken_by_hand
from stretto.executors.cuda.launching.copies import BoundCopies, runs_on_engine
from stretto.executors.cuda.launching.introduce import introduce
from stretto.executors.cuda.launching.kernels import TooManyBlocks
from stretto.executors.cuda.launching.launch import BoundKernel, Key, Launch
from stretto.executors.cuda.launching.names import CallName, fingerprint
from stretto.executors.cuda.launching.peers import peer_spaces
from stretto.executors.cuda.launching.plain import BARRIER, places_in
from stretto.executors.cuda.launching.services import SessionServices
from stretto.program.elements import storage
from stretto.program.epilogues import Spec

LARGEST_PITCHED = 1 << 32
"""Bytes of a part whose rows have a pitch."""


def prepare(session: SessionServices, plan: ProvedPlan, call: Call) -> Launch | OnCopy:
    """Bind a plan to a kind of call: generate, compile, load, pack."""
    value = plan.value
    if value.num_ranks != session.group.num_ranks:
        raise PlanError(
            f"plan {value.name} is for {value.num_ranks} ranks; "
            f"this group has {session.group.num_ranks}"
        )
    _refuse_hosts(session, value, call)
    launch = _launch(session, plan, call)
    if not call.aside:
        return launch
    places = layout(value, symbol_sizes(value, call), 1)
    count = int(places.inputs[session.group.rank][-1])
    nbytes = count * storage(call.dtype).itemsize
    return OnCopy(launch, nbytes, session.device.ordinal)


def _refuse_hosts(session: SessionServices, plan: Plan, call: Call) -> None:
    """Refuse a plan for other hosts than ours, and what does not reach over hosts."""
    hosts = settled_hosts(hosts_of(session.group), session.group.num_ranks)
    if plan.hosts != hosts:
        raise CallError(
            f"plan {plan.name} is for hosts {plan.hosts or 'in one'}; ranks are on "
            f"{hosts or 'one'}: lower it with hosts=comm.hosts"
        )
    if not hosts:
        return
    what = ""
    if runs_on_engine(plan) or hands_round_on_engine(plan):
        what = "copy engines do not reach other hosts; want packets or bulk"
    elif taken_by_hand(plan, call, session.regions[0].share) is not None:
        what = "kernels by hand do not reach other hosts; want another algorithm"
    if what:
        raise PlanError(f"plan {plan.name} ({plan.schedule}), ranks on {hosts}: {what}")


class OnCopy:
    """A launch on a copy of its input.

    For calls whose output lies over their input otherwise than plans are proved for:
    with unequal parts in place, what arrives for one part would land on another that is
    still to be sent. The stream makes the copy before the kernel and frees it after; a
    graph captures all three.
    """

    def __init__(self, launch: Launch, nbytes: int, ordinal: int) -> None:
        """`launch` reads `nbytes` of input."""
        self._launch = launch
        self._nbytes, self._ordinal = nbytes, ordinal

    def __call__(self, x: Any, out: Any = None, stream: Any = None) -> None:
        """Enqueue the copy and the collective on the caller's stream."""
        require_near(x, self._ordinal)
        handle = (
            current_stream(self._ordinal) if stream is None else stream_handle(stream)
        )
        if not self._nbytes:
            self._launch(x, out, stream=handle)
            return
        on = api().CUstream(handle)
        copy = int(ask("cuMemAllocAsync", self._nbytes, on))
        try:
            ask("cuMemcpyDtoDAsync", copy, pointer(x), self._nbytes, on)
            self._launch(copy, out, stream=handle)
        finally:
            ask("cuMemFreeAsync", copy, on)


def _launch(session: SessionServices, plan: ProvedPlan, call: Call) -> Launch:
    """Bind a plan to its parts, under a name, and tell what its calls are."""
    value = plan.value
    mark = fingerprint(value, call.dtype, call.op.value, call.counts)
    name = CallName(mark, describe(value, call))
    own = taken_by_hand(value, call, session.regions[0].share)
    if call.epilogue is not None:
        launch = _fused(session, plan, call, call.epilogue, name)
    elif any(call.rows):
        launch = _pitched(session, plan, call, name)
    elif own is not None:
        launch = _by_hand(session, own, value, call, name)
    elif runs_on_engine(value):
        launch = _copied(session, plan, call, name)
    elif hands_round_on_engine(value):
        launch = _in_halves(session, plan, call, name)
    else:
        launch = Launch(session, bind_plan(session, plan, call, name))
    introduce(session, launch, (mark, value, call))
    return launch


# Copy engines.


def _copied(
    session: SessionServices, plan: ProvedPlan, call: Call, name: CallName
) -> Launch:
    """Bind a plan to copies, between barriers."""
    copies = plan.copied()
    bound = _copies(session, copies, plan.value, call, name)
    barrier = _barrier(session, plan, copies.plan, name)
    return Launch(session, barrier, bound, barrier)


def _in_halves(
    session: SessionServices, plan: ProvedPlan, call: Call, name: CallName
) -> Launch:
    """Bind a kernel for the sums, and copies that hand them round."""
    places = places_in(session.regions[0], plan.value, call)
    halves = plan.in_halves(several_tiles=places.tiles > 1)
    kernel = bind_kernel(session, halves.kernel, call, places, name)
    name = name.of_second_part()
    bound = _copies(session, halves.copies, plan.value, call, name)
    barrier = _barrier(session, plan, halves.copies.plan, name)
    return Launch(session, kernel, bound, barrier)


def _copies(
    session: SessionServices, copies: Any, plan: Plan, call: Call, name: CallName
) -> BoundCopies:
    return BoundCopies(
        session,
        copies,
        sizes=symbol_sizes(plan, call),
        itemsize=storage(call.dtype).itemsize,
        name=name,
    )


def _barrier(
    session: SessionServices, plan: ProvedPlan, copies: Plan, name: CallName
) -> BoundKernel:
    """Return a barrier of everybody as a kernel, for the copies of a plan."""
    meet = plan.barrier()
    places = layout(meet.plan, np.zeros(0, np.int64), 1)
    shares = peer_spaces(copies, session.group.rank)
    return bind_kernel(session, meet, BARRIER, places, name, shares=shares)


# Rows with a pitch: an all_to_all with its permutation.


def _pitched(
    session: SessionServices, plan: ProvedPlan, call: Call, name: CallName
) -> Launch:
    """Bind an all_to_all whose parts are rows with a pitch (kernels/pitched.cuh).

    The plan does not change, and there is no pass before or after: what it takes for a
    contiguous part is spelled as a pitched one.
    """
    value = plan.value
    if runs_on_engine(value) or hands_round_on_engine(value):
        raise PlanError(
            f"plan {value.name} ({value.schedule}): copy engines move what is "
            "contiguous, and the call has a permutation; want packets or bulk"
        )
    table = pitches(value, call, storage(call.dtype).itemsize)
    said = f", in rows of {call.rows[0]} and {call.rows[1]}"
    name = name.of_form(call.rows, said)
    return Launch(session, bind_plan(session, plan, call, name, words=table))


def pitches(plan: Plan, call: Call, itemsize: int) -> tuple[int, ...]:
    """Return the words of the table: bytes of a part and of its rows, twice."""
    part = call.counts[0] * itemsize
    if part >= LARGEST_PITCHED:
        raise PlanError(
            f"plan {plan.name}: parts of {part} bytes with a pitch; want less than "
            f"{LARGEST_PITCHED}"
        )
    return tuple(
        max(1, nbytes) for row in call.rows for nbytes in (part, row * itemsize)
    )


# Kernels by hand.


def _by_hand(
    session: SessionServices, own: Handwritten, plan: Plan, call: Call, name: CallName
) -> Launch:
    """Bind a registered kernel; its text is part of what ranks must agree on."""
    rank = session.group.rank
    kernel = hand_kernel(own, plan, rank=rank, dtype=call.dtype, op=call.op)
    text = zlib.crc32(own.source.encode())
    said = f", by a kernel of its own ({text:#x})"
    sides = {Space.INPUT: plan.inputs, Space.OUTPUT: plan.outputs}
    everybody_has = frozenset(space for space, ends in sides.items() if all(ends))
    zero_copy = plan.schedule.memory == "zero_copy"
    bound = BoundKernel(
        session,
        plan,
        session.load_kernel(kernel),
        where=hand_layout(plan, symbol_sizes(plan, call), call),
        name=name.of_form((text,), said),
        shares=everybody_has if zero_copy else frozenset(),
    )
    return Launch(session, bound)


# Epilogues.


def _fused(
    session: SessionServices,
    plan: ProvedPlan,
    call: Call,
    epilogue: Spec,
    name: CallName,
) -> Launch:
    """Bind a plan whose kernel ends with an epilogue; its rows stay whole.

    Each block has one row, or a part of one (`shared_by`), unless there are more rows
    than blocks, or this GPU holds fewer of such blocks at once: then blocks have rows
    one after the other. Where two blocks do not find room on an SM, there are half.
    """
    value = plan.value
    if runs_on_engine(value) or hands_round_on_engine(value):
        raise PlanError(
            f"plan {value.name} ({value.schedule}): the call has an epilogue, and copy "
            "engines compute nothing; want packets or bulk"
        )
    grain = epilogue.row or 1
    itemsize = storage(call.dtype).itemsize
    sizes = symbol_sizes(value, call, grain)
    region = session.regions[0]
    places = fit(value, sizes, itemsize, grain=grain, region=region)
    rows = int(places.atom_sizes.max(initial=0)) // grain
    share = shared_by(epilogue, value.schedule.blocks, rows)
    if share == 1 or (share > 1 and session.device.arch >= (9, 0)):
        shared = fit(value, sizes, itemsize, grain=grain, share=share, region=region)
        try:
            return _with_epilogue(session, plan, call, epilogue, name, shared, share)
        except TooManyBlocks:
            pass
    try:
        return _with_epilogue(session, plan, call, epilogue, name, places, 0)
    except TooManyBlocks:
        if value.schedule.blocks <= EACH_ITS_OWN:
            raise
    plan = plan.on_blocks(value.schedule.blocks // 2)
    places = fit(plan.value, sizes, itemsize, grain=grain, region=region)
    return _with_epilogue(session, plan, call, epilogue, name, places, 0)


def _with_epilogue(
    session: SessionServices,
    proved: ProvedPlan,
    call: Call,
    epilogue: Spec,
    name: CallName,
    places: PlanLayout,
    share: int,
) -> Launch:
    plan = proved.as_one_kernel(several_tiles=places.tiles > 1)
    said = zlib.crc32(f"{share} {plan.plan.schedule.blocks} {epilogue}".encode())
    name = name.of_form((said,), f", with the epilogue {epilogue}")
    kernel = bind_kernel(session, plan, call, places, name, share=share)
    words = words_of(epilogue)

    def added(key: Key, x: Any, out: Any, extra: Sequence[Any]) -> Sequence[int]:
        """Return addresses and numbers; refuse a result not read by whole cells."""
        if epilogue.row and epilogue.row % epilogue.cell == 0 and key[1] % 16:
            raise CallError(
                f"epilogue: the collective's result begins {key[1] % 16} bytes after a "
                "multiple of 16, and rows are moved by 16 bytes; pass a copy as out="
            )
        return words(extra)

    return Launch(session, kernel, added=added)
