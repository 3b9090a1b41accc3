"""Dispatch and combine on CPUs: the steps of both, on NumPy arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, StrettoError
from stretto.experts import compiled, elements
from stretto.experts.buffers import SpareMemory
from stretto.experts.geometry import QUANTISERS, Geometry
from stretto.experts.hosts import HostRows, record_words
from stretto.experts.ways import Line, before, past_caches, way_of
from stretto.runtime.calls import Communicator

__all__ = ["CpuExperts", "ReceivedRows", "Routing", "Underway"]

Table = NDArray[np.int64]
_DISPATCH, _COMBINE = 1, 2
_CALLED = {_DISPATCH: "dispatch", _COMBINE: "combine"}
Take = Callable[[Table], Any]
"""Takes what came, of what all ranks have told."""


@dataclass(slots=True, kw_only=True)
class Routing:
    """Where this rank's tokens go: of one dispatch."""

    ids: Table
    weights: NDArray[np.float32]
    slots: Table
    """T x n: a token's row among those to each rank, or -1."""
    pairs: Table
    """T x k: a choice's number among those of its expert's rank, or -1."""
    counts: Line
    num_pairs: Line


@dataclass(slots=True, kw_only=True)
class ReceivedRows:
    """What a dispatch brought to a rank, and how it goes back."""

    number: int
    """Which operation it was: the same on every rank."""
    routing: Routing
    rows: NDArray[Any]
    scales: NDArray[np.float32] | None
    ids: NDArray[np.int32]
    """R x k: experts of this rank, by their number here, or -1."""
    weights: NDArray[np.float32]
    sources: Line
    """How many rows came from each rank."""
    counts: Line
    """How many rows each expert of this rank has."""
    starts: Line
    """Where the rows of each expert begin; all end at the last."""
    places: Table
    """R x k choices, or R x 1 rows: where each lies in `rows`, or -1."""
    row_matrix: Table
    pair_matrix: Table


class Underway:
    """An operation that was started; other work may be done until `wait`."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        """Finish as that does, once."""
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._error: BaseException | None = None

    def wait(self) -> Any:
        """Return what the operation brings, or raise its error; again, the same."""
        finish, self._finish = self._finish, None
        if finish is not None:
            try:
                self._result = finish()
            except BaseException as e:
                self._error = e
        if self._error is not None:
            raise self._error
        return self._result


class CpuExperts:
    """One rank's memory for dispatches and combines of a geometry."""

    def __init__(self, comm: Communicator, geometry: Geometry) -> None:
        """Make inboxes (collective)."""
        self._comm, self.geometry = comm, geometry
        self._generation = comm.generation
        self._way = way_of(comm, geometry.inbox_bytes, geometry.outbox_bytes)
        self._hosts = HostRows(comm, geometry) if comm.hosts else None
        n, g = geometry.num_ranks, geometry
        wide = 2 * n + (self._hosts.num_hosts if self._hosts is not None else 0)
        self._owner, self._local = g.owners(), g.local()
        self._head = [np.zeros(4 + wide, np.int64) for _ in range(2)]
        self._heads = [np.zeros((n, 4 + wide), np.int64) for _ in range(2)]
        self._buffers = SpareMemory()
        self._choices = np.zeros(g.top_k, np.int32)
        self._turn = self._number = 0
        self._pending: Underway | None = None

    # Both operations: store, tell, hear, take.

    def _begin(
        self, kind: int, number: int, store: Callable[[int], tuple[Any, Take]], *,
        background: bool,
    ) -> Underway:  # fmt: skip
        """Store rows and tell the ranks; what takes them runs when all were heard."""
        self.settle()
        if self._comm.generation != self._generation:
            raise CallError("the ranks have changed; want comm.experts() anew")
        self._number += 1
        turn, self._turn = self._turn, 1 - self._turn
        refused, head = "", self._head[turn]
        head[:4] = kind, number, 0, 0
        take: Take | None = None
        try:
            head[4:], take = store(turn)
        except StrettoError as e:
            refused, head[2], head[4:] = str(e), 1, 0
        heads, work = self._heads[turn], None
        if background:
            work = self._comm.all_gather_async(head, out=heads)
        else:
            self._comm.all_gather(head, out=heads)

        def finish() -> Any:
            self._pending = None
            if work is not None:
                work.wait()
            self._agreed(heads, refused)
            assert take is not None, "nobody has refused"
            return take(heads[:, 4:])

        self._pending = pending = Underway(finish)
        return pending

    def _agreed(self, heads: Table, refused: str) -> None:
        """Raise what any rank has refused, or that ranks do different things."""
        if heads[:, 2].any():
            said = self._comm.all_gather_object(refused)
            raise CallError(next(text for text in said if text))
        first = heads[0, :2]
        for rank, head in enumerate(heads[:, :2].tolist()):
            if head != first.tolist():
                mine, other = (
                    f"{_CALLED[k]} (operation {number})"
                    for k, number in (head, first.tolist())
                )
                raise CallError(
                    f"rank {rank} called {mine} and rank 0 {other}; want the same "
                    "operations in the same order on every rank"
                )

    def settle(self) -> None:
        """Finish what was started: one operation is under way at a time."""
        if self._pending is not None:
            with contextlib.suppress(StrettoError):  # whoever waits for it hears
                self._pending.wait()

    # Dispatch.

    def dispatch(
        self, rows: Callable[[], tuple[Any, Table, NDArray[np.float32]]],
        *, background: bool = False,
        check: Callable[[ReceivedRows], None] | None = None,
    ) -> Underway:  # fmt: skip
        """Start a dispatch of what a function returns, or refuses: x, ids, weights.

        A `check` that is collective is made when it ends, as all ranks end it in turn.
        """
        g, number = self.geometry, self._number + 1

        def store(turn: int) -> tuple[Line, Take]:
            x, ids, weights = rows()
            routing = self.routing(ids, weights)
            own = x, scales = self._quantised(x)
            past = past_caches(routing.counts, g.row_bytes)
            words = record_words(g, _at(x), _at(scales), self._comm.rank, past)
            told = [routing.counts, routing.num_pairs]
            if self._hosts is not None:
                told.append(self._hosts.send(turn, routing, words))
            else:
                starts = np.full(g.num_ranks, self._comm.rank * g.slot_bytes, np.int64)
                sizes = routing.counts * g.record_bytes
                compiled.send_records(
                    routing.slots, ids, weights, self._owner, self._local,
                    self._choices, self._way.open(turn, sizes, starts),
                    np.array(words, np.int64),
                )  # fmt: skip

            def take(heads: Table) -> ReceivedRows:
                found = self._received(turn, heads.copy(), routing, own, number)
                if check is not None:
                    check(found)
                return found

            return np.concatenate(told), take

        return self._begin(_DISPATCH, number, store, background=background)

    def routing(self, ids: Table, weights: NDArray[np.float32]) -> Routing:
        """Return where tokens go."""
        n, (tokens, k) = self.geometry.num_ranks, ids.shape
        routing = Routing(
            ids=ids, weights=weights, slots=np.empty((tokens, n), np.int64),
            pairs=np.empty((tokens, k), np.int64), counts=np.zeros(n, np.int64),
            num_pairs=np.zeros(n, np.int64),
        )  # fmt: skip
        bad = compiled.mapped(
            ids, self._owner, routing.slots, routing.counts, routing.pairs,
            routing.num_pairs,
        )  # fmt: skip
        if bad >= 0:
            raise CallError(
                f"rank {self._comm.rank}: dispatch: ids[{bad // k}, {bad % k}]="
                f"{ids[bad // k, bad % k]}; want experts 0 to "
                f"{self.geometry.num_experts - 1}, or -1 for none"
            )
        return routing

    def _quantised(self, x: Any) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        g = self.geometry
        if isinstance(x, tuple):  # fp8 already
            return x
        return quantised(x, g.dtype, g.quantise) if g.quantise else (x, None)

    def _received(
        self, turn: int, heads: Table, routing: Routing,
        own: tuple[NDArray[Any], NDArray[np.float32] | None], number: int,
    ) -> ReceivedRows:  # fmt: skip
        """Read what came, and lay it out."""
        g, rank, n = self.geometry, self._comm.rank, self.geometry.num_ranks
        row_matrix, pair_matrix = heads[:, :n], heads[:, n : 2 * n]
        counts = np.ascontiguousarray(row_matrix[:, rank])
        if self._hosts is not None:
            sources = self._hosts.receive(turn, heads[:, 2 * n :])
        else:
            starts = np.arange(n, dtype=np.int64) * g.slot_bytes
            sources = self._way.close(turn, row_matrix * g.record_bytes, starts)
        num_rows = int(counts.sum())
        ids = np.empty((num_rows, g.top_k), np.int32)
        weights = np.empty((num_rows, g.top_k), np.float32)
        record = np.array([g.record_bytes, g.ids_at], np.int64)
        compiled.read_choices(sources, counts, ids, weights, record)
        loads, expert_starts, places, num_out = self.laid_out(ids, counts)
        kind = np.uint8 if g.quantise else elements.STORED[g.dtype]
        rows = self._buffers.empty((num_out, g.hidden), kind)
        scales = None
        if g.quantise:
            scales = self._buffers.empty((num_out, g.scale_bytes // 4), "float32")
        if g.layout == "expert" and g.align > 1:  # who multiplies whole tiles reads it
            ends = expert_starts[:-1] + loads
            for first, last in zip(ends, expert_starts[1:], strict=True):
                rows[first:last] = 0
                if scales is not None:
                    scales[first:last] = 0
        words = (g.record_bytes, g.row_bytes, g.scale_bytes, rank, _at(own[0]),
                 _at(own[1]), past_caches(loads, g.row_bytes))  # fmt: skip
        compiled.spread(
            sources, counts, places, np.array([_at(rows), _at(scales)], np.int64),
            routing.slots, np.array(words, np.int64),
        )  # fmt: skip
        return ReceivedRows(
            number=number, routing=routing, rows=rows, scales=scales, ids=ids,
            weights=weights, sources=counts, counts=loads, starts=expert_starts,
            places=places, row_matrix=row_matrix, pair_matrix=pair_matrix,
        )  # fmt: skip

    def laid_out(self, ids: Any, counts: Line) -> tuple[Line, Line, Table, int]:
        """Return loads of experts, where they begin, places of rows, how many lines."""
        g = self.geometry
        loads = np.zeros(g.num_local(self._comm.rank), np.int64)
        starts, places = np.zeros(len(loads) + 1, np.int64), np.empty(ids.shape, int)
        compiled.placed(ids, loads, starts, places, g.align)
        if g.layout == "expert":
            return loads, starts, places, int(starts[-1])
        wide = g.max_tokens if g.layout == "rank" else counts
        places = _lines(counts, np.broadcast_to(wide, counts.shape))
        return loads, starts, places, g.slots if g.layout == "rank" else len(ids)

    # Combine.

    def combine(
        self, sent: ReceivedRows, given: Callable[[], tuple[NDArray[Any], Any, str]],
        *, order: str, places: Table | None = None, background: bool = False,
    ) -> Underway:  # fmt: skip
        """Start a combine of what a function returns, or refuses.

        That is rows, their type, and weights: of a rank's choices here where `order`
        is "rank", of the tokens' choices where it is "k"; None: sums only. With
        `places`, R x 1, rows lie there and are not summed here.
        """
        rank = self._comm.rank
        matrix = sent.pair_matrix if order == "k" else sent.row_matrix
        if places is None and self.geometry.layout != "expert":
            places = sent.places
        adds_here = order == "rank" and places is None

        def store(turn: int) -> tuple[int, Take]:
            rows, weights, dtype = given()
            if weights is None and (adds_here or order == "k"):
                like = sent.places if adds_here else sent.routing.ids
                weights = np.ones(like.shape, np.float32)
            row_bytes = rows.shape[1] * rows.itemsize
            starts = np.array([before(line)[rank] for line in matrix], np.int64)
            sizes = np.ascontiguousarray(matrix[:, rank])
            targets = self._way.open(turn, sizes * row_bytes, starts * row_bytes)
            if adds_here:
                self._send_sums(sent, rows, weights, dtype, targets)
            else:
                at = sent.places if places is None else places
                past = past_caches(sizes, row_bytes)
                compiled.send_back(
                    sent.sources, at, _at(rows), targets, row_bytes, past
                )

            def take(heads: Table) -> NDArray[Any]:
                mine = np.ascontiguousarray(matrix[rank])
                starts = before(mine)
                self._way.close(turn, matrix.T * row_bytes, starts * row_bytes)
                inbox = self._way.inbox(turn)[: int(mine.sum()) * row_bytes]
                came = inbox.view(rows.dtype).reshape(-1, rows.shape[1])
                how = order, weights, elements.KINDS[dtype]
                return self._summed(sent.routing, came, starts, *how)

            return 0, take

        return self._begin(_COMBINE, sent.number, store, background=background)

    def _send_sums(
        self, sent: ReceivedRows, rows: NDArray[Any], weights: NDArray[np.float32],
        dtype: str, targets: Line,
    ) -> None:  # fmt: skip
        """Store sums of rows at the ranks that they came from."""
        line = np.empty(rows.shape[1], rows.dtype)
        total = np.empty(rows.shape[1], np.float32)
        compiled.send_sums(
            sent.sources, sent.places, weights, rows, line, total, targets,
            elements.KINDS[dtype], past_caches(sent.sources, rows[:1].nbytes),
        )  # fmt: skip

    def _summed(
        self, routing: Routing, came: NDArray[Any], starts: Line, order: str,
        weights: Any, kind: int,
    ) -> NDArray[Any]:  # fmt: skip
        """Return the sum of each token's rows that came back."""
        out = np.empty((routing.ids.shape[0], came.shape[1]), came.dtype)
        total = np.empty(came.shape[1], np.float32)
        if order == "k":
            compiled.sum_pairs(
                routing.ids, routing.pairs, self._owner, starts, weights, came,
                out, total, kind,
            )  # fmt: skip
        else:
            compiled.sum_slots(routing.slots, starts, came, out, total, kind)
        return out


def _at(array: NDArray[Any] | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


def _lines(counts: Line, wide: Line) -> Table:
    """Return where each row lies, of ranks whose parts are so many rows wide."""
    found = [
        np.arange(count) + start
        for count, start in zip(counts, before(wide), strict=True)
    ]
    return np.concatenate(found).astype(np.int64).reshape(-1, 1)


def quantised(
    x: NDArray[Any], dtype: str, how: str
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return rows as fp8, and their scales."""
    out = np.empty(x.shape, np.uint8)
    scales = np.empty((x.shape[0], x.shape[1] // elements.GROUP), np.float32)
    if dtype == "float32":
        elements.quantised32(x, out, scales, QUANTISERS[how])
    else:
        kind, line = elements.KINDS[dtype], np.empty(x.shape[1], np.float32)
        elements.quantised16(x, out, scales, QUANTISERS[how], kind, line)
    return out, scales
