"""NCCL Inspector's JSON lines: ours in its words, and its logs as recordings.

A line is a call of a rank: `header`, `metadata` and `coll_perf`, with its field names,
so that tools that read its logs read ours. It says when a line was made and how long
the call took, so a call that is read ends when its line was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stretto._version import __version__
from stretto.errors import TraceError
from stretto.program.collectives import bus_factor
from stretto.trace import CALL, MARKS, WAITS, CallKind, Comm, RankInfo, Recording, Run

_FORMAT = "v4.0"
_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "gather": "Gather",
    "scatter": "Scatter",
    "barrier": "Barrier",
    "permute": "SendRecv",
}
_OURS = {theirs: ours for ours, theirs in _NAMES.items()}
_LONGEST_LINE = 1 << 20


def inspector_lines(recording: Recording) -> Iterator[str]:
    """Yield a line for every call that has a start and an end."""
    infos = {info.rank: info for info in recording.ranks}
    nodes = len(recording.hosts)
    for call in recording.calls[
        (recording.calls["start"] > 0) & (recording.calls["state"] == 1)
    ]:
        info = infos[int(call["rank"])]
        comm, kind = recording.comms[call["comm"]], recording.kinds[call["kind"]]
        if comm.name.startswith((MARKS, WAITS)):
            continue
        took_us = max(1, int(call["end"]) - int(call["start"])) / 1e3
        nbytes, n = int(call["nbytes"]), len(comm.members)
        rate = nbytes / took_us / 1e3
        name = _NAMES.get(kind.collective, kind.collective)
        end_ns = int(call["end"]) - info.offset_ns + info.realtime_ns
        yield json.dumps(
            {
                "header": {
                    "id": comm.name,
                    "rank": comm.members.index(info.rank),
                    "n_ranks": n,
                    "nnodes": nodes,
                },
                "metadata": {
                    "inspector_output_format_version": _FORMAT,
                    "git_rev": f"stretto {__version__}",
                    "rec_mechanism": "stretto_trace",
                    "dump_timestamp_us": end_ns // 1000,
                    "hostname": info.host,
                    "pid": info.pid,
                },
                "coll_perf": {
                    "coll": name,
                    "coll_sn": int(call["seq"]),
                    "coll_msg_size_bytes": nbytes,
                    "coll_exec_time_us": took_us,
                    "coll_timing_source": "kernel_gpu"
                    if kind.executor == "cuda"
                    else "collective_cpu",
                    "coll_algobw_gbs": round(rate, 6),
                    "coll_busbw_gbs": round(rate * bus_factor(kind.collective, n), 6),
                },
            },
            separators=(",", ":"),
        )


def read_inspector(path: str | Path) -> Recording:
    """Return what a log, or the logs of a folder, say of collectives."""
    path = Path(path)
    found = _Found()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                found.read(lines, str(file))
        except OSError as e:
            raise TraceError(f"{file}: {e.strerror}") from None
    return found.recording(str(path))


class _Found:
    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._ranks: dict[int, RankInfo] = {}
        self._sizes: dict[str, int] = {}
        self._kinds: dict[CallKind, int] = {}

    def read(self, lines: Iterable[str], name: str) -> None:
        """Add what lines say."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{name}: line {number}"
            if len(line) > _LONGEST_LINE:
                raise TraceError(f"{where}: {len(line)} characters; want 1 MiB at most")
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                raise TraceError(f"{where}: it is not JSON") from None
            header, facts = _object(said, "header", where), {}
            if isinstance(said, Mapping) and isinstance(said.get("metadata"), Mapping):
                facts = said["metadata"]
            if not isinstance(said.get("coll_perf"), Mapping):
                continue  # of a transfer, or of what came later
            self._call(header, facts, said["coll_perf"], where)

    def _call(
        self,
        header: Mapping[str, Any],
        facts: Mapping[str, Any],
        perf: Mapping[str, Any],
        where: str,
    ) -> None:
        rank, size = _number(header, "rank", where), _number(header, "n_ranks", where)
        comm = str(header.get("id", ""))[:200]
        if not 0 <= rank < size <= 1 << 24:
            raise TraceError(f"{where}: rank {rank} of {size}")
        name = perf.get("coll")
        if not isinstance(name, str):
            raise TraceError(f"{where}: coll is {str(name)[:40]!r}; want a name")
        took = perf.get("coll_exec_time_us")
        if isinstance(took, bool) or not isinstance(took, int | float):
            raise TraceError(f"{where}: coll_exec_time_us is {str(took)[:40]!r}")
        if not 0 <= took < 1e15:
            raise TraceError(f"{where}: coll_exec_time_us is {took}")
        nbytes = _number(perf, "coll_msg_size_bytes", where)
        kind = CallKind(
            collective=_OURS.get(name, name[:60]), nbytes=nbytes, executor="nccl"
        )
        end = _number(facts, "dump_timestamp_us", where) * 1000
        start = end - round(took * 1e3)
        number = self._kinds.setdefault(kind, len(self._kinds))
        self._sizes[comm] = max(size, self._sizes.get(comm, 0))
        seq = _number(perf, "coll_sn", where)
        row = (rank, list(self._sizes).index(comm), seq, number, 1)
        self._rows.append((*row, nbytes, 0, max(1, start), max(1, start), max(1, end)))
        host, pid = str(facts.get("hostname", ""))[:200], facts.get("pid", 0)
        self._ranks[rank] = RankInfo(
            rank=rank, num_ranks=size, host=host, pid=pid if type(pid) is int else 0
        )

    def recording(self, title: str) -> Recording:
        """Return all of it; hosts' clocks are what they say they are."""
        return Recording(
            calls=np.array(self._rows, CALL),
            ranks=tuple(self._ranks[rank] for rank in sorted(self._ranks)),
            comms=tuple(
                Comm(name=name, members=tuple(range(size)))
                for name, size in self._sizes.items()
            ),
            kinds=tuple(self._kinds),
            run=Run(title=title),
        )


def _object(said: Any, name: str, where: str) -> Mapping[str, Any]:
    found = said.get(name) if isinstance(said, Mapping) else None
    if not isinstance(found, Mapping):
        raise TraceError(f"{where}: it has no {name}; want NCCL Inspector's lines")
    return found


def _number(said: Mapping[str, Any], name: str, where: str) -> int:
    value = said.get(name)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise TraceError(f"{where}: {name} is {str(value)[:40]!r}; want a whole number")
    return value
