"""Where ranks stand: of each communicator, the last call of every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.trace import STATES, CallKind, Comm, LaneWait, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """The last call of a rank in a communicator."""

    rank: int
    """Of the communicator."""
    world: int
    comm: int
    seq: int
    """0: it has made no call."""
    kind: CallKind | None = None
    state: str = "done"
    enqueue: int = 0
    start: int = 0
    end: int = 0
    waits: tuple[LaneWait, ...] = ()

    @property
    def is_inside(self) -> bool:
        """Return whether it is in the call, as far as anybody knows.

        Who gave up was in it, and makes no other.
        """
        return self.state != "done" and self.seq > 0

    @property
    def is_enqueued(self) -> bool:
        """Return whether it was handed to a GPU, which says nothing more."""
        return self.state == "enqueued"

    @property
    def call(self) -> str:
        """Return the call in words."""
        if self.kind is None:
            return "no call"
        return self.kind.text or self.kind.collective


def stands(recording: Recording) -> list[list[Stand]]:
    """Return, by communicator, the last call of each rank that is known of."""
    known = [info.rank for info in recording.ranks]
    last: dict[tuple[int, int], int] = {}
    calls = recording.calls
    order = np.lexsort((calls["seq"], calls["rank"], calls["comm"]))
    if len(order):
        sorted_calls = calls[order]
        ends = np.ones(len(order), bool)
        ends[:-1] = (sorted_calls["comm"][1:] != sorted_calls["comm"][:-1]) | (
            sorted_calls["rank"][1:] != sorted_calls["rank"][:-1]
        )
        for row in order[ends].tolist():
            last[int(calls["comm"][row]), int(calls["rank"][row])] = row
    waits: dict[tuple[int, int, int], list[LaneWait]] = {}
    for wait in recording.waits:
        waits.setdefault((wait.comm, wait.rank, wait.seq), []).append(wait)
    return [
        [
            _stand(recording, number, comm, world, last.get((number, world)), waits)
            for world in comm.members
            if world in known
        ]
        for number, comm in enumerate(recording.comms)
    ]


def _stand(
    recording: Recording,
    number: int,
    comm: Comm,
    world: int,
    row: int | None,
    waits: dict[tuple[int, int, int], list[LaneWait]],
) -> Stand:
    rank = comm.members.index(world)
    if row is None:
        return Stand(rank=rank, world=world, comm=number, seq=0)
    call = recording.calls[row]
    seq = int(call["seq"])
    return Stand(
        rank=rank,
        world=world,
        comm=number,
        seq=seq,
        kind=recording.kinds[int(call["kind"])],
        state=STATES[int(call["state"])],
        enqueue=int(call["enqueue"]),
        start=int(call["start"]),
        end=int(call["end"]),
        waits=tuple(waits.get((number, world, seq), ())),
    )


def current(by_comm: list[list[Stand]]) -> dict[int, Stand]:
    """Return, by world rank, the call that a rank is in: the one it began last.

    One that was enqueued on a GPU does not hold the rank.
    """
    found: dict[int, Stand] = {}
    for stand in (one for each in by_comm for one in each):
        if not stand.is_inside or stand.is_enqueued:
            continue
        other = found.get(stand.world)
        if other is None or other.enqueue < stand.enqueue:
            found[stand.world] = stand
    return found
