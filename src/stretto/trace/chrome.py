"""Events as Chrome's trace JSON, which Perfetto and chrome://tracing open.

A rank is a process, a lane a thread, an event a complete slice ("X"). Slices of one
thread must nest; a lane does one thing at a time, so they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stretto.trace.events import Event

__all__ = ["chrome_json", "write_chrome"]


def chrome_json(events: Iterable[Event], *, title: str = "stretto") -> str:
    """Return the events as one JSON document, its times in microseconds."""
    ordered = sorted(events, key=lambda e: (e.rank, e.lane, e.t0_us, -e.t1_us))
    rows = [*_names(ordered), *map(_slice, ordered)]
    document = {
        "displayTimeUnit": "ns",
        "otherData": {"title": title},
        "traceEvents": rows,
    }
    return json.dumps(document, separators=(",", ":"))


def write_chrome(
    path: str | Path, events: Iterable[Event], *, title: str = "stretto"
) -> None:
    """Write the events to a file."""
    Path(path).write_text(chrome_json(events, title=title), encoding="utf-8")


def _names(events: list[Event]) -> Iterator[dict[str, Any]]:
    for rank in sorted({e.rank for e in events}):
        yield _name("process_name", rank, 0, f"rank {rank}")
    for rank, lane in sorted({(e.rank, e.lane) for e in events}):
        yield _name("thread_name", rank, lane, f"lane {lane}")


def _name(what: str, rank: int, lane: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": {"name": text}}


def _slice(event: Event) -> dict[str, Any]:
    said = {
        "nbytes": event.nbytes or None,
        "peer": event.peer if event.peer >= 0 else None,
        "step": event.step if event.step >= 0 else None,
        "epoch": event.epoch,
        "gbytes_per_s": round(event.gbytes_per_s, 3) or None,
        "detail": event.detail or None,
    }
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.kind,
        "pid": event.rank,
        "tid": event.lane,
        "ts": event.t0_us,
        "dur": event.duration_us,
        "args": {key: value for key, value in said.items() if value is not None},
    }
