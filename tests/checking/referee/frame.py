"""What calls of one layout have in common, however their lanes move things about.

Mutants of a plan differ in a step or two. Where elements are, what callers write and
want, and what the lanes do that were not touched is the same for all of them: it is
worked out once and kept here, for the layouts that were judged last.

Legend: r rank, b block, t tile, e epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tests.checking.referee.actions import (
    GIVE,
    MEET,
    NOWHERE,
    SIGNAL,
    TAKE,
    WAIT,
    Action,
)
from tests.checking.referee.calls import Call, LaidOut, Want, lay_out, wanted
from tests.checking.referee.cells import Cells
from tests.checking.referee.lanes import Lanes, Ways
from tests.checking.referee.values import NOTHING, Values

__all__ = ["Frame", "frame_of"]


class _Between(NamedTuple):
    """What a caller does in one call: before its lanes begin, and once they ended."""

    before: list[Action]
    after: list[Action]
    event: int
    """The one that says that the call begins."""


class Frame:
    """The layout of calls, one after the other, and what their callers do."""

    def __init__(self, calls: Sequence[Call], ways: Ways) -> None:
        """Lay the calls out; `Fault` when their atoms or buffers are none."""
        self.ways = ways
        self.num_ranks = calls[0].plan.num_ranks
        self.programs = [call.program for call in calls]  # none shall go away
        self.laid: list[LaidOut] = []
        epoch = 1
        for call in calls:
            self.laid.append(lay_out(call, epoch))
            epoch += self.laid[-1].tiles
        self.cells = Cells(self.num_ranks, self.laid)
        self.lanes = Lanes(self.laid, self.cells, ways)
        self.values, wants = _sums_of(self.laid)
        self.between: list[list[_Between]] = []
        """By call and rank."""
        for number in range(len(calls)):
            ranks = range(self.num_ranks)
            made = [self._between(number, r, wants[number][r]) for r in ranks]
            self.between.append(made)
        self.at_last: list[list[Action]] = []
        for rank in range(self.num_ranks):
            event = self.lanes.event((rank, len(calls), "frees its memory"))
            own = self.cells.own[rank]
            self.at_last.append([(GIVE, event, cell, NOTHING) for cell in own])

    def _between(self, number: int, rank: int, wants: list[Want]) -> _Between:
        everybody = range(self.num_ranks) if self.ways.roll_call else ()
        first, out = self.cells.inputs[number][rank], self.cells.outputs[number][rank]
        given = {
            first + i: self.values.given(number, rank, i)
            for i in range(self.laid[number].buffers[rank].inputs)
        }
        begins = self.lanes.event((rank, number, "begins"))
        before: list[Action] = [
            (GIVE, begins, cell, given.get(cell, NOTHING))
            for cell in self.cells.own[rank]
        ]
        before += [
            (SIGNAL, begins, self.lanes.channel((rank, q)), number + 1, False, NOWHERE)
            for q in everybody
        ]
        after: list[Action] = [
            (WAIT, begins, self.lanes.channel((q, rank)), number + 1) for q in everybody
        ]
        event = self.lanes.event((rank, number, "reads its result"))
        for i, want in enumerate(wants):
            after.append((TAKE, event, out + i, want))
        for cell, value in given.items():
            if not out <= cell < out + len(wants):
                want = Want(value, (), False, self.cells.name(cell))
                after.append((TAKE, event, cell, want))
        return _Between(before, after, begins)

    def meets(self, number: int, rank: int, agents: int) -> tuple[Action, Action]:
        """Return how a caller and the agents of its lanes begin a call, and end it."""
        event = self.between[number][rank].event
        begin = (MEET, event, (number, rank, "begin"), 1 + agents)
        return begin, (MEET, event, (number, rank, "end"), 1 + agents)


_KEPT = 64
_frames: OrderedDict[tuple[object, ...], Frame] = OrderedDict()
"""The frames that were asked for last."""
_sums: OrderedDict[tuple[object, ...], _Sums] = OrderedDict()
"""What was wanted last, by programs and counts: it is the same in any layout."""


def frame_of(calls: Sequence[Call], ways: Ways) -> Frame:
    """Return the frame of some calls, made anew unless it is known."""
    if any(call.groups is not None for call in calls):
        return Frame(calls, ways)
    key = (ways, *(call.layout() for call in calls))
    return _remembered(_frames, key, lambda: Frame(calls, ways))


def _sums_of(every: Sequence[LaidOut]) -> tuple[Values, list[list[list[Want]]]]:
    """Return expressions, and what callers want, by call and rank."""

    def made() -> _Sums:
        values = Values()
        wants = [wanted(laid, values, number) for number, laid in enumerate(every)]
        return values, wants, [laid.call.program for laid in every]

    key = tuple(laid.call.asked() for laid in every)
    values, wants, _ = _remembered(_sums, key, made)
    return values, wants


_Sums = tuple[Values, list[list[list[Want]]], list[object]]
"""Expressions, what is wanted, and the programs, so that none goes away."""
_T = TypeVar("_T")


def _remembered(
    known: OrderedDict[tuple[object, ...], _T],
    key: tuple[object, ...],
    make: Callable[[], _T],
) -> _T:
    found = known.get(key)
    if found is None:
        found = known[key] = make()
        if len(known) > _KEPT:
            known.popitem(last=False)
    else:
        known.move_to_end(key)
    return found
