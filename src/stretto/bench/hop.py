"""Measure the way between hosts: round trips by each carrier beside a bare socket."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.bench.ranks.launch import under_launcher
from stretto.errors import MissingExtraError
from stretto.fabric import hop
from stretto.fabric.hop.measure import open_pair, trips
from stretto.runtime.calls.joining.spawn import connect, spawn

HOP_SIZES = (8, 4096, 1 << 16, 1 << 20)
_BUDGET_BYTES = 1 << 28


def rounds_of(nbytes: int) -> int:
    """Return how often a size is measured."""
    return int(min(2000, max(30, _BUDGET_BYTES // max(nbytes, 1) // 8)))


def measure_hop(
    sizes: Sequence[int] = HOP_SIZES, towards: str = "127.0.0.1", carrier: str = ""
) -> list[dict[str, Any]]:
    """Return rows of two ranks: those of a launcher, or of this host's loopback.

    Under a launcher only rank 0 has rows; others than 0 and the last look on. Without a
    carrier all are measured that are ready here; of those that bring one library the
    first, where ranks are the launcher's: a process takes one.
    """
    carriers = _ready(carrier)
    if under_launcher():
        firsts = {hop.get(name).library or name: name for name in reversed(carriers)}
        return _launched(sizes, sorted(firsts.values()))
    secret = secrets.token_hex(32)
    rows: list[dict[str, Any]] = []
    for name in carriers:  # libraries of two carriers may not share a process
        given = tuple(sizes), towards, secret, (name,)
        rows += spawn(_rank, *given, num_ranks=2)[0]
    return rows


def _ready(carrier: str) -> tuple[str, ...]:
    """Return the carriers to measure: the one that is asked for, or all there are."""
    names = (carrier,) if carrier else hop.names()
    said = {name: str(hop.get(name).doctor().get("ready", "")) for name in names}
    if carrier and said[carrier].startswith("no"):
        raise MissingExtraError(f"carrier {carrier}: {said[carrier][4:]}")
    return tuple(name for name in names if not said[name].startswith("no"))


def _launched(sizes: Sequence[int], carriers: Sequence[str]) -> list[dict[str, Any]]:
    with connect() as comm:
        group: Any = comm._group
        ends = (0, comm.num_ranks - 1)
        pair = comm.split(0 if comm.rank in ends else None)
        if pair is None:
            return []
        secret = group.secret or b"stretto on one host"
        towards = group.towards or "127.0.0.1"
        rows = rows_of(pair, sizes, towards, secret, carriers)
        pair.close()
        return rows if comm.rank == 0 else []


def _rank(
    comm: Any,
    sizes: Sequence[int],
    towards: str,
    secret: str,
    carriers: Sequence[str],
) -> list[Any]:
    return rows_of(comm, sizes, towards, secret.encode(), carriers)


def rows_of(
    comm: Any,
    sizes: Sequence[int],
    towards: str,
    secret: bytes,
    carriers: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return a row for each carrier and size, by a communicator's two ranks."""
    rows = []
    for carrier in carriers or (hop.DEFAULT,):
        pair = open_pair(
            lambda said: [part for part, _ in comm._group.exchange(said)],
            comm.rank,
            towards=towards,
            secret=secret,
            carrier=carrier,
        )
        for nbytes in sizes:
            rounds = rounds_of(nbytes)
            row: dict[str, Any] = {"carrier": carrier, "bytes": nbytes}
            for name, bare in (("hop", False), ("socket", True)):
                trips(pair, nbytes, max(rounds // 10, 3), bare=bare)
                times = trips(pair, nbytes, rounds, bare=bare)
                row[f"{name}_us"] = round(float(times.min()), 2)
                row[f"{name}_median_us"] = round(float(np.median(times)), 2)
            row["ratio"] = round(row["hop_us"] / max(row["socket_us"], 1e-3), 2)
            rows.append(row)
        pair.close()
    return rows


def measured_machine(rows: Sequence[Any], ranks: int, hosts: int) -> str:
    """Return the text of a machine file of what was measured: latency and rate."""
    small = min(rows, key=lambda row: int(row["bytes"]))
    large = max(rows, key=lambda row: int(row["bytes"]))
    one_way = small["hop_us"] / 2
    rate = large["bytes"] / max(large["hop_us"] - small["hop_us"], 1e-3) / 1e3
    said = f"{small['bytes']} bytes {small['hop_us']} us, {large['bytes']} bytes "
    said += f"{large['hop_us']} us"
    return f"""# Written by `stretto bench hop`. Round trips: {said}.
about = "{hosts} hosts of {ranks} ranks, measured over {small["carrier"]}"
kind = "cpu"
known = ["hosts"]

[costs]
launch_us = 0.5
op_overhead_us = 0.1
flag_latency_us = 0.1
lane_gbytes_per_s = 20
copy_gbytes_per_s = 25
reduce_gbytes_per_s = 60
packet_efficiency = 0.875

[box]
ranks = {ranks}
nics = 1
rotations = [1]

[[box.switches]]
name = "memory"
groups = "all"
bandwidth_gbytes_per_s = 40
latency_us = 0.05

[repeat]
boxes = {hosts}

[[repeat.switches]]
name = "network"
over = "memory"
bandwidth_gbytes_per_s = {rate:.3f}
latency_us = {one_way / 2:.2f}
"""
