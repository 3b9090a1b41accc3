"""A recording as a trace that ui.perfetto.dev opens.

A rank is a process. It has a track for the calls of each communicator, and one for each
lane that has steps. The same call of all ranks has one correlation id; an arrow goes
from each signal, and from packets, to the step that waited for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stretto.caches import private
from stretto.trace import STATES, STEP_KINDS, CallKind, Comm, Recording
from stretto.watch.wire import fixed, nested, text, varint, whole

MOST_SLICES = 2_000_000
"""What a browser holds with ease; of more, the last are written."""

# Fields of the messages, by their numbers in Perfetto's .proto files.
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS = 8, 10, 11, 12, 13
_TRACK = 60
_UUID, _NAME, _PROCESS, _PARENT, _ORDERING, _ORDER = 1, 2, 3, 5, 11, 12
_PID, _PROCESS_NAME = 1, 6
_ANNOTATION, _TYPE, _NAME_IID, _TRACK_UUID = 4, 9, 10, 11
_FLOW, _END_FLOW, _CORRELATION = 47, 48, 52
_SAID, _SAID_INT, _SAID_TEXT = 10, 4, 6
_EVENT_NAMES = 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_COUNT, _COUNT_VALUE = 4, 30
_COUNTER, _UNIT = 8, 6
_COUNTERS = (("main thread", "%"), ("all threads", "%"), ("memory", "MB"))
_EXPLICIT = 3
"""Child tracks are in the order of their rank among siblings."""
_CLEARED, _NEEDS = 1, 2
_SENDS = ("signal", "put_packets", "hop_signal")
_RECEIVES = ("wait", "read_packets", "reduce_packets")


def write_perfetto(
    path: str | Path, recording: Recording, *, most: int = MOST_SLICES
) -> int:
    """Write a recording; return how many slices were left out, the first ones."""
    left = max(0, recording.num_events - most)
    with private(path) as file:
        _Writer(file, recording, most).write()
    return left


class _Writer:
    def __init__(self, file: BinaryIO, recording: Recording, most: int) -> None:
        self._file, self._recording = file, recording
        keep = min(len(recording.calls), most)
        self._calls = _latest(recording.calls, "enqueue", keep)
        self._steps = _latest(recording.steps, "begin", most - keep)
        self._tracks: dict[tuple[int, int, int], int] = {}
        self._names: dict[str, int] = {}

    def write(self) -> None:
        """Write processes and names first, then slices."""
        pids = [info.pid for info in self._recording.ranks]
        if len(set(pids)) < len(pids) or 0 in pids:  # of several hosts, or unknown
            pids = [info.rank + 1 for info in self._recording.ranks]
        out = [
            self._process(info.rank, pid, f"rank {info.rank} on {info.host}")
            for info, pid in zip(self._recording.ranks, pids, strict=True)
        ]
        for rank in sorted(set(self._recording.samples["rank"].tolist())):
            out += [self._counter(rank, *one) for one in enumerate(_COUNTERS)]
        out += [self._track(*pair, -1) for pair in _pairs(self._calls, "comm")]
        out += [self._track(*triple) for triple in _triples(self._steps)]
        kinds = [kind.collective for kind in self._recording.kinds]
        for name in (*kinds, *STEP_KINDS):
            self._names.setdefault(name, len(self._names) + 1)
        names = b"".join(
            nested(_EVENT_NAMES, whole(1, iid) + text(2, name))
            for name, iid in self._names.items()
        )
        flags = whole(_FLAGS, _CLEARED | _NEEDS) + nested(_INTERNED, names)
        out.append(_packet(flags))
        self._file.write(b"".join(out))
        self._write_all(self._call_slices())
        self._write_all(self._step_slices())
        self._write_all(self._counts())

    def _write_all(self, packets: Iterator[bytes]) -> None:
        batch: list[bytes] = []
        for packet in packets:
            batch.append(packet)
            if len(batch) >= 1 << 14:
                self._file.write(b"".join(batch))
                batch.clear()
        self._file.write(b"".join(batch))

    def _counter(self, rank: int, number: int, counter: tuple[str, str]) -> bytes:
        """Return a track of figures: of processors, or of memory."""
        name, unit = counter
        body = whole(_UUID, _uuid_of_counter(rank, number)) + text(_NAME, name)
        body += whole(_PARENT, _uuid_of_rank(rank))
        return _packet(nested(_TRACK, body + nested(_COUNTER, text(_UNIT, unit))))

    def _counts(self) -> Iterator[bytes]:
        """Yield what each sample says of its time."""
        columns = ["rank", "time", "period", "main", "cpu", "memory"]
        for row in self._recording.samples[columns].tolist():
            rank, at, period, main, cpu, memory = row
            shares = [100 * used // max(1, period) for used in (main, cpu)]
            for number, value in enumerate((*shares, memory >> 20)):
                track = whole(_TRACK_UUID, _uuid_of_counter(rank, number))
                body = whole(_TYPE, _COUNT) + track + whole(_COUNT_VALUE, value)
                yield _event(at, body)

    def _process(self, rank: int, pid: int, name: str) -> bytes:
        process = whole(_PID, pid) + text(_PROCESS_NAME, name)
        body = whole(_UUID, _uuid_of_rank(rank)) + nested(_PROCESS, process)
        return _packet(nested(_TRACK, body + whole(_ORDERING, _EXPLICIT)))

    def _track(self, rank: int, comm: int, lane: int) -> bytes:
        """Return a track: of a communicator's calls, or of a lane of its plans."""
        uuid = (1 << 32) + len(self._tracks)
        self._tracks[rank, comm, lane] = uuid
        name = self._recording.comms[comm].name
        if lane >= 0:
            name = f"{name} lane {lane}"
        order = 4096 * comm + lane + 1
        body = whole(_UUID, uuid) + whole(_PARENT, _uuid_of_rank(rank))
        body += text(_NAME, name) + whole(_ORDER, order)
        return _packet(nested(_TRACK, body))

    def _call_slices(self) -> Iterator[bytes]:
        """Yield calls; of one that has no start only an instant is known."""
        fixed_parts = [self._said(kind) for kind in self._recording.kinds]
        for call in self._calls.tolist():
            rank, comm, seq, kind, state, _, stream, enqueue, start, end = call
            track = whole(_TRACK_UUID, self._tracks[rank, comm, -1])
            body = fixed_parts[kind] + track
            body += whole(_CORRELATION, comm << 40 | seq)
            body += _int("call", seq) + _int("thread", stream)
            if state != 1:
                body += _text("state", STATES[state])
            if not start or not end:
                at = start or enqueue
                yield _event(at, whole(_TYPE, _INSTANT) + body)
                continue
            if enqueue < start:
                body += _int("queued_ns", start - enqueue)
            yield _event(start, whole(_TYPE, _BEGIN) + body)
            yield _event(max(end, start), whole(_TYPE, _END) + track)

    def _said(self, kind: CallKind) -> bytes:
        body = whole(_NAME_IID, self._names[kind.collective])
        body += _int("bytes", kind.nbytes)
        for name in ("dtype", "op", "algorithm", "schedule", "plan", "executor"):
            if value := getattr(kind, name):
                body += _text(name, value)
        return body

    def _step_slices(self) -> Iterator[bytes]:
        sent, received = flows(self._recording.comms, self._steps)
        named = [whole(_NAME_IID, self._names[name]) for name in STEP_KINDS]
        for row, step in enumerate(self._steps.tolist()):
            rank, comm, seq, lane, kind, index, peer, tile, begin, wait, end, n = step
            track = whole(_TRACK_UUID, self._tracks[rank, comm, lane])
            body = named[kind] + track
            body += _int("call", seq) + _int("step", index) + _int("tile", tile)
            if peer >= 0:
                body += _int("peer", peer)
            if n:
                body += _int("bytes", n)
            if wait:
                body += _int("wait_ns", wait)
            if row in sent:
                body += fixed(_FLOW, sent[row])
            if row in received:
                body += fixed(_END_FLOW, received[row])
            yield _event(begin, whole(_TYPE, _BEGIN) + body)
            yield _event(max(end, begin), whole(_TYPE, _END) + track)


def flows(comms: Sequence[Comm], steps: Any) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by row, the arrow that begins in a step, and the one that ends there.

    The n-th that a rank sends another in a tile of a call is the n-th that it waits
    for: signals are counted, and packets are read in the order of their places.
    """
    sends = {STEP_KINDS.index(name) for name in _SENDS}
    receives = {STEP_KINDS.index(name) for name in _RECEIVES}
    ways: tuple[dict[Any, list[int]], dict[Any, list[int]]]
    ways = defaultdict(list), defaultdict(list)
    ranks = [{world: r for r, world in enumerate(comm.members)} for comm in comms]
    for row in np.argsort(steps["begin"], kind="stable").tolist():
        kind, peer = int(steps["kind"][row]), int(steps["peer"][row])
        if peer < 0 or not (kind in sends or kind in receives):
            continue
        one = steps[row]
        place = int(one["comm"]), int(one["seq"]), int(one["tile"])
        packets = "packets" in STEP_KINDS[kind]
        mine = ranks[place[0]][int(one["rank"])]
        if kind in sends:
            ways[0][(*place, packets, mine, peer)].append(row)
        else:
            ways[1][(*place, packets, peer, mine)].append(row)
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    for key, rows in ways[0].items():
        for one, other in zip(rows, ways[1].get(key, ()), strict=False):
            sent[one] = received[other] = len(sent) + 1
    return sent, received


def _latest(table: Any, column: str, most: int) -> Any:
    """Return the rows that began last, in the order in which they were."""
    if len(table) <= most:
        return table
    if most <= 0:
        return table[:0]
    rows = np.argpartition(table[column], len(table) - most)[len(table) - most :]
    return table[np.sort(rows)]


def _pairs(table: Any, column: str) -> list[tuple[int, int]]:
    both = np.unique(table[["rank", column]])
    return [(int(a), int(b)) for a, b in both.tolist()]


def _triples(table: Any) -> list[tuple[int, int, int]]:
    found = np.unique(table[["rank", "comm", "lane"]])
    return [(int(a), int(b), int(c)) for a, b, c in found.tolist()]


def _uuid_of_counter(rank: int, number: int) -> int:
    return (1 << 48) + rank * len(_COUNTERS) + number


def _uuid_of_rank(rank: int) -> int:
    return rank + 1


def _packet(body: bytes) -> bytes:
    return nested(_PACKET, body + whole(_SEQUENCE, 1))


def _event(at: int, body: bytes) -> bytes:
    said = nested(_TRACK_EVENT, body)
    return nested(
        _PACKET,
        b"%s%s%s%s" % (_STAMP, varint(max(0, at)), said, _TAIL),
    )


_STAMP = varint(_TIMESTAMP << 3)
_TAIL = whole(_SEQUENCE, 1) + whole(_FLAGS, _NEEDS)


def _int(name: str, value: int) -> bytes:
    return nested(_ANNOTATION, text(_SAID, name) + whole(_SAID_INT, value))


def _text(name: str, value: str) -> bytes:
    return nested(_ANNOTATION, text(_SAID, name) + text(_SAID_TEXT, value))
