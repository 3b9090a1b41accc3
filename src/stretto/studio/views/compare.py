"""Two recordings beside one another: the same operations, before and after."""

from __future__ import annotations

from typing import Any

from stretto.studio.analysis.groups import CallGroup, groups
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.scene import Args, Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.studio.units import size_name

TITLE = "Compare"
ORDER = 8

_Key = tuple[str, int, int]


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there are two recordings."""
    return loaded.other is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return a row for each operation of either, with the ratio of medians."""
    before, after = _by_key(scene.index), _by_key(scene.other)
    rows = [
        _row(key, before.get(key), after.get(key))
        for key in dict.fromkeys([*before, *after])
    ]
    return {
        "before": _named(scene.index),
        "after": _named(scene.other),
        "rows": rows,
    }


def _by_key(index: Index) -> dict[_Key, CallGroup]:
    """Return, of each operation, the group with the most collectives."""
    found: dict[_Key, CallGroup] = {}
    for one in sorted(groups(index), key=lambda group: -group.count):
        found.setdefault((one.collective, one.num_ranks, one.low_nbytes), one)
    return found


def _named(index: Index) -> dict[str, Any]:
    run = index.recording.run
    return {
        "name": run.title or " ".join(run.command) or "unnamed",
        "ranks": len(index.ranks),
        "span_us": index.span_us,
        "collectives": index.num_instances,
    }


def _row(
    key: _Key, before: CallGroup | None, after: CallGroup | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "collective": key[0],
        "num_ranks": key[1],
        "low_nbytes": key[2],
        "size": size_name(key[2]),
    }
    for name, one in (("before", before), ("after", after)):
        row[name] = (
            {
                "count": one.count,
                "p50_us": one.p50_us,
                "p99_us": one.p99_us,
                "algorithm": one.algorithm,
            }
            if one is not None
            else None
        )
    if (
        before is not None
        and after is not None
        and min(before.low_us, after.low_us) > 0
    ):
        row["ratio"] = after.p50_us / before.p50_us
        row["ratio_low"] = after.low_us / before.high_us
        row["ratio_high"] = after.high_us / before.low_us
    return row
