"""Counts on the GPU: a launch whose sizes are read in the call, not packed before.

A mixture of experts knows only on the device how many tokens go where. The host says
how many there may be at most; that decides staging, blocks and the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.arrays import packed_view, pointer
from stretto.compiler.plan import Plan, ProvedPlan
from stretto.errors import CallError, PlanError
from stretto.executors import Call, describe
from stretto.executors.cuda.codegen.counts import received_counts
from stretto.executors.cuda.flags.regions import FlagRegion
from stretto.executors.cuda.launching.bind import bind_kernel, bind_plan
from stretto.executors.cuda.launching.introduce import introduce
from stretto.executors.cuda.launching.launch import AddedWords, Key, Launch
from stretto.executors.cuda.launching.names import CallName, fingerprint
from stretto.executors.cuda.launching.peers import peer_spaces
from stretto.executors.cuda.launching.plain import places_in
from stretto.executors.cuda.launching.services import SessionServices
from stretto.program.elements import storage


def prepare_counted(
    session: SessionServices,
    plan: ProvedPlan,
    gather: ProvedPlan,
    call: Call,
) -> Launch:
    """Bind a plan to counts on the GPU; `call` says how large they may be.

    A launch is two kernels: an all_gather brings every rank the counts of all, and the
    plan's kernel makes its table of them (kernels/counts.cuh). So a graph may be
    replayed on other counts, and nothing waits for the host. Its `extra` arrays are
    this rank's counts, as int64, and what is told how much came of each rank, or None.
    """
    _refuse_shared(plan.value)
    plan = plan.closed()  # how many tiles there are, nobody here knows
    value, itemsize, most = plan.value, storage(call.dtype).itemsize, max(call.counts)
    n = value.num_ranks
    row = Call(dtype="int64", counts=(len(call.counts) // n,) * n)
    mark = fingerprint(value, call.dtype, call.op.value, (*call.counts, -1))
    name = CallName(mark, f"{describe(value, call)}, with counts on the GPU")
    number = value.kind.num_parts(value.shape)

    def matrix(region: FlagRegion) -> int:
        """Return where launches with a set of flags find the counts of all ranks."""
        return session.slab.base + region.counts

    def of_gather(region: FlagRegion, key: Key) -> Key:
        return key[2], matrix(region)

    def of_main(region: FlagRegion, key: Key) -> Key:
        return (*key[:2], matrix(region), number, most, *key[3:])

    main = bind_kernel(
        session,
        plan.batched(),
        call,
        places_in(session.regions[0], value, call),
        name,
        counted=True,
        own_key=of_main,
    )
    second = name.of_second_part()
    first = bind_plan(session, gather, row, second, own_key=of_gather)
    added = _counted_words(itemsize, len(received_counts(value, session.group.rank)))
    launch = Launch(session, first, main, added=added)
    introduce(session, launch)
    return launch


def _counted_words(itemsize: int, received: int) -> AddedWords:
    """Return what a key says beside arrays: where counts lie, and how much fits."""

    def added(key: Key, x: Any, out: Any, extra: Sequence[Any]) -> Sequence[int]:
        counts, told = extra
        if told is not None:
            at = packed_view(told)
            if at.nbytes < 8 * received or at.start % 8:
                raise CallError(
                    f"received has {at.nbytes} bytes; want {received} numbers of 64 "
                    "bits"
                )
        sizes = (packed_view(array).nbytes // itemsize for array in (x, out))
        return (pointer(counts), *sizes, pointer(told))

    return added


def _refuse_shared(plan: Plan) -> None:
    """Raise unless a kernel stages: where peers' parts begin, only their GPUs know."""
    shared = peer_spaces(plan, 0)
    if not shared and plan.schedule.protocol != "engine":
        return
    what = " and ".join(sorted(space.name.lower() for space in shared))
    why = f"peers touch the {what}" if shared else "copy engines take sizes from here"
    raise PlanError(
        f"plan {plan.name} ({plan.schedule}): {why}, and with counts on the GPU nobody "
        "here knows where a part begins; want 'staged' and packets or bulk"
    )
