"""Kinds of calls: what is alike in calls that share one plan and one launch."""

from __future__ import annotations

from typing import Any, NamedTuple

from stretto import collectives
from stretto.calls.request import Request
from stretto.choice.plans import FrozenParams, frozen
from stretto.choice.select import STAGED, Pin
from stretto.collectives import Operator, storage
from stretto.epilogues import Spec
from stretto.ir import members_of

__all__ = ["LaunchKey", "full_size", "launch_key", "not_shared", "shared_arrays"]

_BOTH = ("x", "out")
_SHARED = {
    "all_gather": _BOTH,
    "all_reduce": _BOTH,
    "all_to_all": _BOTH,
    "reduce_scatter": _BOTH,
    "permute": _BOTH,
    "broadcast": ("out",),
    "scatter": ("out",),
    "gather": ("x",),
    "reduce": ("x",),
}


class LaunchKey(NamedTuple):
    """What identifies a kind of call: those alike share one launch."""

    device: str
    collective: str
    dtype: str
    op: Operator
    counts: tuple[int, ...]
    params: FrozenParams
    memory: str
    in_place: bool
    pin: Pin
    epilogue: Spec | None = None
    rows: tuple[int, int] = (0, 0)
    """Of an all_to_all with a permutation: see `Call.rows`."""
    aside: bool = False
    """Whether this rank works on a copy of its input: see `Call.aside`."""


def launch_key(
    request: Request, memory: str, pin: Pin, epilogue: Spec | None = None
) -> LaunchKey:
    """Return the kind of a request's call."""
    return LaunchKey(
        request.device,
        request.collective,
        request.dtype,
        request.op,
        request.counts,
        frozen(request.params),
        memory,
        _plans_in_place(request, memory),
        pin,
        epilogue,
        request.rows,
        request.aside,
    )


def _plans_in_place(request: Request, memory: str) -> bool:
    """Return whether the plan must allow a call in place.

    Staged plans always do: ranks may differ in it, and their plans must not. With
    registered memory all ranks' arrays lie alike, so all know; except where the root
    alone has both arrays.
    """
    if memory == STAGED:
        return True
    return request.in_place or collectives.get(request.collective).rooted


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
    return _SHARED.get(collective, ())


def not_shared(kind: LaunchKey, num_ranks: int) -> str:
    """Return why peers may not touch the arrays of a staged call, and what to do."""
    names = shared_arrays(kind.collective, kind.params, num_ranks)
    if not names:
        return (
            "lets peers touch arrays that some ranks do not have; want 'staged' in it"
        )
    return (
        f"is for arrays of comm.empty() ({' and '.join(names)} on every rank, in parts "
        f"of one size), and these are not; want 'staged' in it"
    )


def full_size(kind: LaunchKey, num_ranks: int) -> int:
    """Return S of a call: the bytes of the longest vector that a rank holds."""
    item = storage(kind.dtype).itemsize
    counts = kind.counts
    n = len(members_of(num_ranks, dict(kind.params)))
    if len(counts) == n**2 and n > 1:
        rows = [sum(counts[r * n :][:n]) for r in range(n)]
        return max(rows) * item
    if kind.collective == "permute":
        return max(counts, default=0) * item
    return sum(counts) * item
