"""Dispatches over several hosts: a row goes once to each host, and is forwarded there.

Of each rank's rows for a host, one rank there takes all: its gate. It counts slots from
the ids that came along, as the sender has counted them, and stores each row in the
inboxes of its host's ranks. So inboxes hold what they would on one host, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.experts import compiled
from stretto.experts.geometry import Geometry
from stretto.experts.ways import Line, MemoryWay, before
from stretto.runtime.calls import Communicator

__all__ = ["HostRows", "record_words"]

Table = NDArray[np.int64]


def record_words(g: Geometry, rows: int, scales: int, me: int, past: int) -> list[int]:
    """Return the words of `send_records`, of rows that lie one after the other."""
    return [rows, g.row_bytes, scales, g.scale_bytes, g.record_bytes, g.ids_at, me,
            past, g.row_bytes, g.scale_bytes]  # fmt: skip


class HostRows:
    """What sends a dispatch's rows where ranks are on several hosts."""

    def __init__(self, comm: Communicator, g: Geometry) -> None:
        """Make inboxes on each host (collective)."""
        self._comm, self._g, self._rank = comm, g, comm.rank
        of = np.array(comm.hosts, np.int64)
        self.num_hosts, self._host = int(of.max()) + 1, int(of[comm.rank])
        mates = [np.flatnonzero(of == host) for host in range(self.num_hosts)]
        own = comm.split(self._host)
        assert own is not None, "every rank has a host"
        self._own, self._way = own, MemoryWay(own, g.num_ranks * g.slot_bytes)
        self._mates, self._remote = mates[self._host], of != self._host
        places = [int(np.flatnonzero(mates[of[s]] == s)[0]) for s in range(len(of))]
        self._gates = np.array(
            [[ranks[at % len(ranks)] for ranks in mates] for at in places], np.int64
        )
        """Of each rank, and each host: who takes its rows there."""
        self._owner, self._local = g.owners(), g.local()
        self._host_of, self._same = of[self._owner], np.arange(g.num_experts)
        self._choices = np.zeros(g.top_k, np.int32)
        comes = int((self._gates[self._remote, self._host] == comm.rank).sum())
        self._out = np.empty((self.num_hosts - 1) * g.slot_bytes, np.uint8)
        self._in = np.empty(comes * g.slot_bytes, np.uint8)

    def _inboxes(self, turn: int, source: int) -> Line:
        """Return where a rank's rows begin at each rank of this host."""
        starts = np.full(len(self._mates), source * self._g.slot_bytes, np.int64)
        found = np.zeros(self._g.num_ranks, np.int64)
        found[self._mates] = self._way.open(turn, starts, starts)
        return found

    def send(self, turn: int, routing: Any, words: list[int]) -> Line:
        """Store rows for this host's ranks, pack those for others; return how many."""
        slots = np.where(self._remote, -1, routing.slots)
        compiled.send_records(
            slots, routing.ids, routing.weights, self._owner, self._local,
            self._choices, self._inboxes(turn, self._rank), np.array(words, np.int64),
        )  # fmt: skip
        counts = np.zeros(self.num_hosts, np.int64)
        once = np.empty((len(slots), self.num_hosts), np.int64)
        pairs, many = np.empty_like(routing.pairs), np.zeros_like(counts)
        compiled.mapped(routing.ids, self._host_of, once, counts, pairs, many)
        once[:, self._host], counts[self._host] = -1, 0
        to = int(self._out.ctypes.data) + before(counts) * self._g.record_bytes
        words = [*words[:6], -1, *words[7:]]
        compiled.send_records(
            once, routing.ids, routing.weights, self._host_of, self._same,
            self._choices, to, np.array(words, np.int64),
        )  # fmt: skip
        return counts

    def receive(self, turn: int, counts: Table) -> Line:
        """Move rows between hosts, forward them; return where each rank's begin.

        `counts` has how many rows each rank has for each host.
        """
        g, n = self._g, self._g.num_ranks
        matrix = np.zeros((n, n), np.int64)
        for host in range(self.num_hosts):
            matrix[np.arange(n), self._gates[:, host]] += counts[:, host]
        goes, comes = int(matrix[self._rank].sum()), matrix[:, self._rank].copy()
        whole = int(comes.sum()) * g.record_bytes
        self._comm.all_to_all_v(
            self._out[: goes * g.record_bytes],
            (matrix * g.record_bytes).reshape(-1), out=self._in[:whole],
        )  # fmt: skip
        at = int(self._in.ctypes.data) + before(comes) * g.record_bytes
        for source in np.flatnonzero(comes):
            self._forward(turn, int(source), int(at[source]), int(comes[source]))
        self._own.barrier()
        return self._way.close(turn, matrix, np.arange(n) * g.slot_bytes)

    def _forward(self, turn: int, source: int, at: int, rows: int) -> None:
        """Store what came from a rank of another host in this one's inboxes."""
        g = self._g
        ids = np.empty((rows, g.top_k), np.int32)
        weights = np.empty(ids.shape, np.float32)
        compiled.read_choices(
            np.array([at]), np.array([rows]), ids, weights,
            np.array([g.record_bytes, g.ids_at]),
        )  # fmt: skip
        slots, pairs = np.empty((rows, g.num_ranks), np.int64), ids.astype(np.int64)
        chosen, counts = pairs.copy(), np.zeros((2, g.num_ranks), np.int64)
        compiled.mapped(chosen, self._owner, slots, counts[0], pairs, counts[1])
        words = record_words(g, at, at + g.row_bytes, -1, 0)
        words[8:] = [g.record_bytes, g.record_bytes]
        compiled.send_records(
            slots, chosen, weights, self._owner, self._local, self._choices,
            self._inboxes(turn, source), np.array(words, np.int64),
        )  # fmt: skip
