"""From a checked request to its launch: known by its key, or chosen, proved and bound.

In: a request, the session of its device, a pin, an epilogue. Out: what runs it. Calls
with one key share one plan and one launch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from stretto.arrays import CPU, Operand
from stretto.errors import CallError
from stretto.executors import Call, Launch, Session
from stretto.program import collectives
from stretto.program.collectives import storage
from stretto.program.ir import members_of
from stretto.runtime.calls.fused import Fused
from stretto.runtime.calls.logs import logger, say_chosen
from stretto.runtime.calls.requests.request import Request
from stretto.runtime.calls.requests.verb import VERBS
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.calls.tuning import say_where_measured
from stretto.runtime.choice.bits import ANY, INVARIANT, PAIRS, PROMISING, bits_in
from stretto.runtime.choice.fused import fused_choice
from stretto.runtime.choice.plans import plan_of, why_bits_vary, why_not_in_place
from stretto.runtime.choice.question import (
    STAGED,
    ZERO_COPY,
    Choice,
    FrozenParams,
    Question,
    dtype_class,
)
from stretto.runtime.choice.select import Pin
from stretto.runtime.choice.selector import Selector

_MOST_KINDS = 4096
_WANTED = {
    INVARIANT: "all ranks at once, in their order, such as one_shot or two_shot",
    PAIRS: "neighbours, then neighbouring sums, such as recursive_doubling",
}
_ACROSS = (
    "want plain calls by processes of one host, for which `stretto doctor` says that "
    "it does, or 'staged' in it"
)


class LaunchKind(NamedTuple):
    """What identifies a kind of call: those alike share one plan and one launch."""

    asked: Question
    call: Call
    pin: Pin


def launch_of(
    calls: CallRunner, request: Request, session: Session, fused: Fused | None
) -> Launch:
    """Return what runs a request: a launch that is known, or a new one."""
    if request.sums.wire is not None:
        return _quantised(calls, request, session, fused)
    params = tuple(sorted(request.params.items()))
    rooted = collectives.get(request.collective).rooted
    memory = _memory(request, params, session, calls.num_ranks)
    asked = Question(
        executor=request.device,
        collective=request.collective,
        num_ranks=calls.num_ranks,
        nbytes=full_size(request.collective, request.call, params, calls.num_ranks),
        memory=memory,
        across=memory == STAGED and _may_go_across(request, session, params),
        # Staged plans always allow calls in place: ranks may differ in it, and their
        # plans must not. With registered memory all ranks' arrays lie alike, so all
        # know; except where the root alone has both arrays.
        in_place=memory == STAGED or request.in_place or rooted,
        params=params,
        hosts=calls.hosts,
        seats=calls.seats,
        bits=_bits(calls, request),
    )
    call = request.call
    if fused is not None:
        call = replace(call, epilogue=fused.spec)
    kind = LaunchKind(asked, call, request.pin)
    launch: Launch = known_launch(calls, kind, lambda: prepare(calls, kind, session))
    return launch


def _quantised(
    calls: CallRunner, request: Request, session: Session, fused: Fused | None
) -> Launch:
    """Return what runs a sum whose data are quantised on the wire."""
    where = f"rank {calls.rank}: {request.collective}: wire"
    if fused is not None:
        raise CallError(
            f"{where}={request.sums.wire!r:.60} with an epilogue; want one of the two"
        )
    if (bits := _bits(calls, request)) != ANY:
        raise CallError(
            f"{where}={request.sums.wire!r:.60} where bits are {bits!r}: a scale "
            "depends on the 128 elements that share it; want one of the two"
        )
    room = importlib.import_module("stretto.quantised")  # it stands on this one
    wire, call = room.wire_in(request.sums.wire, where), request.call
    key = "wire", wire, request.device, call, request.pin, request.sums.bits
    bound: Launch = known_launch(
        calls, key, lambda: room.bound(calls, request, session)
    )
    return bound


def _bits(calls: CallRunner, request: Request) -> str:
    """Return what a call's sums promise: what it says, or else all calls do."""
    if request.collective not in PROMISING:
        return ANY
    if request.sums.bits is None:
        return calls._profiles.bits if request.collective == PROMISING[0] else ANY
    where = f"rank {calls.rank}: {request.collective}: bits"
    return bits_in(request.sums.bits, where)


def known_launch(
    calls: CallRunner, key: tuple[Any, ...], prepare: Callable[[], Any]
) -> Any:
    """Return the launch of a key, prepared once; when there are too many, all go."""
    launch = calls._launches.get(key)
    if launch is None:
        if len(calls._launches) >= _MOST_KINDS:
            calls._launches.clear()
            calls._calls.clear()
        launch = calls._launches[key] = prepare()
    return launch


def _memory(
    request: Request, params: FrozenParams, session: Session, num_ranks: int
) -> str:
    """Return zero_copy when all that peers may touch is registered.

    Only where every rank can tell what the others do: not when parts differ in size, as
    an empty array lies nowhere.
    """
    shared = shared_arrays(request.collective, params, num_ranks)
    if not (shared and request.equal and any(request.call.counts)):
        return STAGED
    for name in shared:
        operand = request.x if name == "x" else request.out
        assert operand is not None, "every rank has what is shared"
        if operand.staged or not _is_registered(operand, session):
            return STAGED
    return ZERO_COPY


def _may_go_across(request: Request, session: Session, params: FrozenParams) -> bool:
    """Return whether the kernel may copy from the arrays that ranks have of their own.

    Every rank can tell: it does not depend on which arrays these are.
    """
    plain = request.call.epilogue is None and not any(request.call.rows)
    return session.across and plain and "members" not in dict(params)


def copies_across(calls: CallRunner, device: str) -> bool:
    """Return whether the kernel copies between ranks, where a session is open."""
    session = calls._sessions.get(device)
    return session is not None and session.across


def prepare(calls: CallRunner, kind: LaunchKind, session: Session) -> Launch:
    """Choose for a kind of call, prove, and bind it to an executor."""
    asked, call, pin = kind
    selector = selector_of(calls, asked.executor)
    asked = replace(asked, dtypes=dtype_class(call.dtype))
    choice = selector.choose(asked, pin)
    pitched = any(call.rows)
    more = call.epilogue is not None or pitched
    if more and pin is None and asked.executor != CPU:
        rule = selector.rows(asked.num_ranks)
        choice = fused_choice(choice, rule, asked, call.epilogue, pitched=pitched)
    if choice.schedule.zero_copy and asked.memory != ZERO_COPY:
        raise CallError(
            f"rank {calls.rank}: {asked.collective}: schedule {choice.schedule} "
            f"{not_shared(asked)}"
        )
    if choice.schedule.across and not asked.across:
        raise CallError(
            f"rank {calls.rank}: {asked.collective}: schedule {choice.schedule}: the "
            f"kernel does not copy between these ranks' memories; {_ACROSS}"
        )
    if asked.bits != ANY:
        check_bits(choice, asked, calls.rank)
    asks = pin is not None or more  # else it was chosen among those that serve
    if asks and (why := why_not_in_place(choice, asked)):
        raise CallError(
            f"rank {calls.rank}: {asked.collective}: schedule {choice.schedule} {why}; "
            "want the other direction, or 'staged' in it"
        )
    plan = plan_of(choice, asked)
    if calls._ahead is not None and pin is None:
        calls._ahead.note(asked)
    say_chosen(asked, call, pin, choice, calls.rank)
    return session.prepare(plan, call)


def check_bits(choice: Choice, asked: Question, rank: int) -> None:
    """Refuse what a caller named, where it does not keep the bits asked for."""
    if asked.bits != ANY and (why := why_bits_vary(choice, asked)):
        raise CallError(
            f"rank {rank}: {asked.collective}: bits={asked.bits!r}, and "
            f"{choice.algorithm.name} {why}; want an algorithm that adds "
            f"{_WANTED[asked.bits]}, or bits={ANY!r}"
        )


def selector_of(calls: CallRunner, device: str) -> Selector:
    """Return what chooses for an executor, from what was measured with it."""
    selector = calls._selectors.get(device)
    if selector is None:
        measured = calls._profiles.profile(device)
        shipped = calls._profiles.shipped(device)
        selector = Selector(device, measured, calls._sessions, shipped)
        if not calls.rank and (said := say_where_measured(device, measured, shipped)):
            logger().warning("%s", said)
        calls._selectors[device] = selector
    return selector


def _is_registered(operand: Operand, session: Session) -> bool:
    """Return whether peers reach all of an array."""
    if operand.registered is not None:
        return operand.registered
    if operand.place is None:
        return session.offset(operand.flat) is not None
    return session.offset_at(*operand.place) is not None


def shared_arrays(
    collective: str, params: FrozenParams, num_ranks: int
) -> tuple[str, ...]:
    """Return which arrays peers may touch: those that every rank has.

    Who has none cannot tell whether the others' are registered, nor where they lie. So
    peers never reach into what the root alone has; and in a permutation every rank must
    send and receive.
    """
    asked = dict(params)
    if "members" in asked:
        return ()
    pairs: Any = asked.get("pairs", ())
    moving = {a for a, _ in pairs} & {b for _, b in pairs}
    if collective == "permute" and len(moving) < num_ranks:
        return ()
    return VERBS[collective].everywhere


def not_shared(asked: Question) -> str:
    """Return why peers may not touch the arrays of a staged call, and what to do."""
    names = shared_arrays(asked.collective, asked.params, asked.num_ranks)
    if not names:
        return (
            "lets peers touch arrays that some ranks do not have; want 'staged' in it"
        )
    return (
        f"is for arrays of comm.empty() ({' and '.join(names)} on every rank, in parts "
        f"of one size), and these are not; want 'staged' in it"
    )


def full_size(collective: str, call: Call, params: FrozenParams, num_ranks: int) -> int:
    """Return S of a call: the bytes of the longest vector that a rank holds."""
    item, counts = storage(call.dtype).itemsize, call.counts
    n = len(members_of(num_ranks, dict(params)))
    if len(counts) == n**2 and n > 1:
        rows = [sum(counts[r * n :][:n]) for r in range(n)]
        return max(rows) * item
    if collective == "permute":
        return max(counts, default=0) * item
    return sum(counts) * item
