"""From a checked request to its launch: known by its key, or chosen, proved and bound.

In: a request, the session of its device, a pin, an epilogue. Out: what runs it. Calls
with one key share one plan and one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stretto import collectives, executors
from stretto.arrays.operands import CPU, Operand
from stretto.calls.keys import LaunchKey
from stretto.calls.logs import say_chosen
from stretto.calls.requests.request import Request
from stretto.calls.requests.verb import VERBS
from stretto.choice.fused import fused_choice
from stretto.choice.measured import Measured
from stretto.choice.plans import FrozenParams, proved_plan
from stretto.choice.rowrules import RowRule
from stretto.choice.select import (
    STAGED,
    ZERO_COPY,
    Choice,
    Pin,
    Question,
    dtype_class,
    members_of_pin,
)
from stretto.choice.selector import Selector
from stretto.collectives import Operator, Shape, storage
from stretto.epilogues import Spec
from stretto.errors import CallError
from stretto.executors import Call, Launch, Session
from stretto.ir import members_of

__all__ = ["Chooser"]

_MOST_KINDS = 4096


class Chooser:
    """Chooses algorithms and schedules for one rank's calls, from what was measured."""

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        sessions: Mapping[str, Session],
        profiles: Measured,
        hosts: tuple[int, ...] = (),
        full: Callable[[], None] = lambda: None,
    ) -> None:
        """`full` is called when all launches are forgotten, as there are too many."""
        self.rank, self.num_ranks, self.hosts = rank, num_ranks, hosts
        self.launches: dict[LaunchKey, Launch] = {}
        self._sessions, self._profiles, self._full = sessions, profiles, full
        self._selectors: dict[str, Selector] = {}

    def launch(
        self,
        request: Request,
        session: Session,
        pin: Pin = None,
        epilogue: Spec | None = None,
    ) -> Launch:
        """Return what runs a request: a launch that is known, or a new one."""
        params = tuple(sorted(request.params.items()))
        rooted = collectives.get(request.collective).rooted
        memory = self._memory(request, params, session)
        # Staged plans always allow calls in place: ranks may differ in it, and their
        # plans must not. With registered memory all ranks' arrays lie alike, so all
        # know; except where the root alone has both arrays.
        in_place = memory == STAGED or request.in_place or rooted
        key = LaunchKey(
            request.device,
            request.collective,
            request.dtype,
            request.op,
            request.counts,
            params,
            memory,
            in_place,
            pin,
            epilogue,
            request.rows,
            request.aside,
        )
        launch = self.launches.get(key)
        if launch is None:
            if len(self.launches) >= _MOST_KINDS:
                self.launches.clear()
                self._full()
            launch = self.launches[key] = self.prepare(key, session)
        return launch

    def _memory(self, request: Request, params: FrozenParams, session: Session) -> str:
        """Return zero_copy when all that peers may touch is registered.

        Only where every rank can tell what the others do: not when parts differ in
        size, as an empty array lies nowhere.
        """
        shared = shared_arrays(request.collective, params, self.num_ranks)
        if not (shared and request.equal and any(request.counts)):
            return STAGED
        for name in shared:
            operand = request.x if name == "x" else request.out
            assert operand is not None, "every rank has what is shared"
            if operand.staged:
                return STAGED
            if not _is_registered(operand, session):
                return STAGED
        return ZERO_COPY

    def prepare(self, key: LaunchKey, session: Session) -> Launch:
        """Choose for a kind of call, prove, and bind it to an executor."""
        nbytes = full_size(key, self.num_ranks)
        choice = self._choose(key, nbytes)
        beside = key.epilogue is not None or any(key.rows)
        if beside and key.pin is None and key.device != CPU:
            choice = fused_choice(
                choice,
                self.rows(key.device),
                collective=key.collective,
                num_ranks=self.num_ranks,
                nbytes=nbytes,
                epilogue=key.epilogue,
                pitched=any(key.rows),
            )
        if choice.schedule.zero_copy and key.memory != ZERO_COPY:
            raise CallError(
                f"rank {self.rank}: {key.collective}: schedule {choice.schedule} "
                f"{not_shared(key, self.num_ranks)}"
            )
        plan = proved_plan(
            choice.algorithm,
            self.num_ranks,
            key.params,
            choice.schedule,
            key.in_place,
            self.hosts,
        )
        call = Call(
            dtype=key.dtype,
            op=key.op,
            counts=key.counts,
            epilogue=key.epilogue,
            rows=key.rows,
            aside=key.aside,
        )
        say_chosen(key, nbytes, choice, self.rank, self.num_ranks)
        return session.prepare(plan, call)

    def rows(self, device: str) -> RowRule:
        """Return what was measured of calls that end with an epilogue of rows."""
        return self._selector(device).rows(self.num_ranks)

    def _selector(self, device: str) -> Selector:
        selector = self._selectors.get(device)
        if selector is None:
            measured = self._profiles.profile(device)
            selector = Selector(device, measured, self._sessions)
            self._selectors[device] = selector
        return selector

    def _choose(self, kind: LaunchKey, nbytes: int) -> Choice:
        """Return the algorithm and schedule for a kind of call."""
        selector = self._selector(kind.device)
        asked = Question(
            executor=kind.device,
            collective=kind.collective,
            num_ranks=self.num_ranks,
            nbytes=nbytes,
            memory=kind.memory,
            in_place=kind.in_place,
            params=kind.params,
            dtypes=dtype_class(kind.dtype),
            hosts=self.hosts,
        )
        return selector.choose(asked, kind.pin)

    def explain(
        self,
        asked: tuple[str, int, str],
        pin: Pin,
        params: Mapping[str, object],
        *,
        registered: bool,
        device: str,
    ) -> str:
        """Return what would serve a call of a collective, a count and a type."""
        collective, count, dtype = asked
        members = members_of_pin(pin)
        if members:
            params = {**params, "members": members}
        shape = Shape(num_ranks=self.num_ranks, params=params)
        parts = collectives.get(collective).num_parts(shape)
        given = tuple(sorted(params.items()))
        kind = LaunchKey(
            device,
            collective,
            dtype,
            Operator.SUM,
            (count,) * parts,
            given,
            ZERO_COPY
            if registered and shared_arrays(collective, given, self.num_ranks)
            else STAGED,
            True,
            pin,
        )
        choice = self._choose(kind, full_size(kind, self.num_ranks))
        plan = proved_plan(
            choice.algorithm,
            self.num_ranks,
            kind.params,
            choice.schedule,
            kind.in_place,
            self.hosts,
        )
        call = Call(dtype=dtype, counts=kind.counts)
        trusted = executors.get(device).trusted(plan, call)
        notes = [f"trusted: {trusted}"] if trusted else []
        if self.hosts:
            notes.append(executors.get(device).between_hosts())
        return f"{choice}  # {'; '.join(notes)}" if notes else str(choice)


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
