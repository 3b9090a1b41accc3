"""A summary as text: what people read in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stretto.trace import UNKNOWN_NS, Recording
from stretto.watch.summary import Summary
from stretto.watch.verdict import verdict

_MOST = 12


def head(recording: Recording, summary: Summary) -> Iterator[str]:
    """Yield what was recorded, in a few lines."""
    run = recording.run
    what = run.title or " ".join(run.command)
    many = f"{len(recording.ranks)} rank{'s' * (len(recording.ranks) != 1)}"
    if len(recording.hosts) > 1:
        many += f" on {len(recording.hosts)} hosts"
    yield (
        f"{what or 'recording'}: {many}, {summary.num_calls} calls and "
        f"{summary.num_steps} steps in {summary.span_s:.3f} s"
    )
    if run.machine:
        yield f"machine {run.machine}"
    if len(recording.hosts) > 1:
        error = recording.error_ns
        said = f"{error / 1e3:.1f} us"
        if error == UNKNOWN_NS:
            said = "nobody knows how much: no call bounds their clocks"
        yield f"times of different hosts may be off by {said}"
    for text in recording.cut:
        yield f"cut: {text}"
    lost = (
        sum(d.calls for d in recording.dropped),
        sum(d.steps for d in recording.dropped),
    )
    if any(lost):
        yield f"lost before they were written: {lost[0]} calls, {lost[1]} steps"
    if summary.unfinished or summary.failed:
        yield f"not ended: {summary.unfinished} calls; failed: {summary.failed}"


def said(recording: Recording, summary: Summary) -> Iterator[str]:
    """Yield the verdict, a sentence a line."""
    for one in verdict(recording, summary):
        yield f"- {one.text}"


def rows_of(summary: Summary) -> dict[str, list[Mapping[str, Any]]]:
    """Return the tables by their titles."""
    tables: dict[str, list[Mapping[str, Any]]] = {"calls": _calls(summary)}
    shares = sorted(summary.shares, key=lambda one: -one.exposed_s)
    if shares:
        tables["communication by rank, most exposed first"] = [
            {
                "rank": one.rank,
                "span s": one.span_s,
                "exposed s": one.exposed_s,
                "exposed %": 100 * one.exposed_s / one.span_s if one.span_s else None,
                "hidden s": one.hidden_s,
            }
            for one in shares[:_MOST]
        ]
    late = [one for one in summary.late if one.mean_us]
    if late:
        tables["who arrives late: it alone kept the others"] = [
            {
                "rank": one.rank,
                "kept us": one.kept_us,
                "came last": one.last,
                "of calls": one.meetings,
                "mean late us": one.mean_us,
                "median us": one.p50_us,
                "99% within us": one.p99_us,
            }
            for one in late[:_MOST]
        ]
    if summary.links:
        tables["links, slowest first"] = [
            {
                "from": one.src,
                "to": one.dst,
                "GB/s": one.rate_gbps,
                "slow": "slow" if one.is_slow else "",
                "bytes": one.nbytes,
                "moves": one.moves,
                "waited ms": one.waited_s * 1e3,
            }
            for one in summary.links[:_MOST]
        ]
    return tables


def _calls(summary: Summary) -> list[Mapping[str, Any]]:
    several = len({row.comm for row in summary.rows}) > 1
    has_model = any(row.model_us for row in summary.rows)
    rows: list[Mapping[str, Any]] = []
    for row in summary.rows:
        said: dict[str, Any] = {"collective": row.collective, "size": _size(row.size)}
        if several:
            said["comm"] = row.comm
        said |= {
            "ranks": row.num_ranks,
            "count": row.count,
            "median us": row.p50_us or None,
            "99% within us": row.p99_us or None,
            "waited us": row.wait_us if row.p50_us else None,
            "bus GB/s": row.busbw_gbps or None,
        }
        if has_model:
            said |= {"model us": row.model_us or None, "times model": row.gap or None}
        rows.append(said | {"algorithm": ", ".join(row.algorithms)})
    return rows


def _size(nbytes: int) -> str:
    """Return a class of sizes: from 64K to less than 128K is `64K`."""
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)
