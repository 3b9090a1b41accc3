"""From a kind of call to its launch: chosen, proved, lowered, bound to an executor."""

from __future__ import annotations

from collections.abc import Mapping

from stretto import collectives, executors
from stretto.arrays.operands import CPU
from stretto.calls.fused import fused_choice
from stretto.calls.launch_keys import LaunchKey, full_size, not_shared, shared_arrays
from stretto.calls.logs import say_chosen
from stretto.choice.measured import Measured
from stretto.choice.plans import frozen, proved_plan, touches_callers
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
from stretto.collectives import Operator, Shape
from stretto.errors import CallError
from stretto.executors import Call, Launch, Session

__all__ = ["Chooser"]


class Chooser:
    """Chooses algorithms and schedules for one rank's calls, from what was measured."""

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        sessions: Mapping[str, Session],
        profiles: Measured,
        hosts: tuple[int, ...] = (),
    ) -> None:
        self.rank, self.num_ranks, self.hosts = rank, num_ranks, hosts
        self._sessions, self._profiles = sessions, profiles
        self._selectors: dict[str, Selector] = {}

    def prepare(self, kind: LaunchKey, session: Session) -> Launch:
        """Choose for a kind of call, prove, and bind it to an executor."""
        choice = self.choose(kind)
        if kind.pin is None and kind.device != CPU:
            choice = fused_choice(choice, kind, self.num_ranks, self.rows(kind.device))
        schedule = choice.schedule
        if touches_callers(schedule) and kind.memory != ZERO_COPY:
            raise CallError(
                f"rank {self.rank}: {kind.collective}: schedule {schedule} "
                f"{not_shared(kind, self.num_ranks)}"
            )
        in_place = kind.in_place or not touches_callers(schedule)
        plan = proved_plan(
            choice.algorithm,
            self.num_ranks,
            kind.params,
            schedule,
            in_place,
            self.hosts,
        )
        call = Call(
            dtype=kind.dtype,
            op=kind.op,
            counts=kind.counts,
            epilogue=kind.epilogue,
            rows=kind.rows,
            aside=kind.aside,
        )
        say_chosen(kind, choice, self.rank, self.num_ranks)
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

    def choose(self, kind: LaunchKey) -> Choice:
        """Return the algorithm and schedule for a kind of call."""
        asked = Question(
            executor=kind.device,
            collective=kind.collective,
            num_ranks=self.num_ranks,
            nbytes=full_size(kind, self.num_ranks),
            memory=kind.memory,
            in_place=kind.in_place,
            params=kind.params,
            dtypes=dtype_class(kind.dtype),
            hosts=self.hosts,
        )
        return self._selector(kind.device).choose(asked, kind.pin)

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
        kind = LaunchKey(
            device,
            collective,
            dtype,
            Operator.SUM,
            (count,) * parts,
            frozen(params),
            ZERO_COPY
            if registered and shared_arrays(collective, frozen(params), self.num_ranks)
            else STAGED,
            True,
            pin,
        )
        choice = self.choose(kind)
        in_place = kind.in_place or not touches_callers(choice.schedule)
        plan = proved_plan(
            choice.algorithm,
            self.num_ranks,
            kind.params,
            choice.schedule,
            in_place,
            self.hosts,
        )
        call = Call(dtype=dtype, counts=kind.counts)
        trusted = executors.get(device).trusted(plan, call)
        notes = [f"trusted: {trusted}"] if trusted else []
        if self.hosts:
            notes.append(executors.get(device).between_hosts())
        return f"{choice}  # {'; '.join(notes)}" if notes else str(choice)
