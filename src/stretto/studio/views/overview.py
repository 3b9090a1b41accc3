"""The first page: what ran, for how long, how sure its clocks are, what stands out."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.studio.analysis.binned import spread
from stretto.studio.analysis.groups import groups
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.scene import NO_CALLS, Args, Scene
from stretto.studio.inputs.loading import LoadedInputs
from stretto.studio.units import size_name, time_name
from stretto.trace import UNKNOWN_NS
from stretto.watch import summarise, verdict

TITLE = "Overview"
ORDER = 0
_BINS = 240
_MOST_SERIES = 7
"""Collectives with a colour of their own; the rest share one."""


def offered(loaded: LoadedInputs) -> bool:
    """Return whether there is a recording."""
    return loaded.recording is not None


def data(scene: Scene, args: Args) -> dict[str, Any]:
    """Return facts, the share of time in collectives, and what stands out."""
    index = scene.index
    return {
        "verdict": _verdict(index),
        "facts": _facts(index),
        "span_us": index.span_us,
        "activity": _activity(index),
        "findings": _findings(index),
        "notes": [*([] if len(index.calls) else [NO_CALLS]), *scene.loaded.notes],
    }


_SHOWN_BY = {
    "hang": "waiting",
    "late": "lateness",
    "time": "lateness",
    "link": "topology",
    "exposed": "table",
}
"""The view that shows more of what a sentence is about."""


def _verdict(index: Index) -> list[dict[str, str]]:
    """Return what is to be known first."""
    recording = index.recording
    return [
        {"about": one.about, "text": one.text, "view": _SHOWN_BY[one.about]}
        for one in verdict(recording, summarise(recording))
    ]


def _facts(index: Index) -> list[list[str]]:
    recording = index.recording
    error = recording.error_ns
    infos = recording.ranks
    dropped = sum(one.calls + one.steps for one in recording.dropped)
    clock = (
        "virtual: times are the simulator's"
        if any(info.clock == "virtual" for info in infos)
        else "nothing bounds the error between hosts"
        if error == UNKNOWN_NS
        else f"times of two ranks may differ by {2 * error / 1e3:.4g} us at most"
        if error
        else "one clock"
    )
    facts = [
        ("run", recording.run.title or " ".join(recording.run.command) or "unnamed"),
        ("ranks", f"{len(infos):,} on {_hosts(recording.hosts)}"),
        ("communicators", f"{len(recording.comms):,}"),
        ("machine", recording.run.machine or "not said"),
        ("calls", f"{len(recording.calls):,}"),
        ("collectives", f"{index.num_instances:,}"),
        ("steps", f"{len(recording.steps):,}" if len(recording.steps) else "none"),
        ("lost before they were read", f"{dropped:,} events"),
        ("clock", clock),
        ("recorded by stretto", recording.run.version or "version not said"),
    ]
    return [list(pair) for pair in facts]


def _hosts(hosts: tuple[str, ...]) -> str:
    return f"{len(hosts):,} hosts" if len(hosts) > 1 else "one host"


def _activity(index: Index) -> dict[str, Any]:
    """Return, by collective and bin, the share of ranks that are in a call."""
    kinds = index.recording.kinds
    done = index.is_done
    took = np.bincount(
        index.calls["kind"][done], index.lasted_us[done], max(1, len(kinds))
    )
    total: dict[str, float] = {}
    for at in np.unique(index.calls["kind"]).tolist():  # marks are kinds, and no calls
        name = kinds[at].collective
        total[name] = total.get(name, 0.0) + float(took[at])
    ordered = sorted(total, key=lambda name: -total[name])
    names = ordered[:_MOST_SERIES]
    rest = len(ordered) > len(names)
    place = {name: i for i, name in enumerate(names)}
    series = np.array([place.get(k.collective, len(names)) for k in kinds], np.int64)
    width = index.span_us / _BINS
    many = len(names) + rest
    if many:
        asked = index.asked_us[done]
        amounts = spread(
            series[index.calls["kind"][done]],
            asked / width,
            (asked + index.lasted_us[done]) / width,
            index.lasted_us[done],
            num_keys=many,
            num_bins=_BINS,
        )
    else:
        amounts = np.zeros((0, _BINS))
    share = amounts / (width * max(1, len(index.ranks)))
    return {
        "names": [*names, *(["other"] * rest)],
        "bins": _BINS,
        "share": share.astype(np.float32),
    }


def _findings(index: Index) -> list[dict[str, Any]]:
    """Return sentences, each with the view that shows more."""
    found: list[dict[str, Any]] = []
    rows = groups(index)
    if rows:
        top = rows[0]
        size = f"{size_name(top.low_nbytes)} and more"
        found.append(
            {
                "text": f"{top.collective} of {size} takes most time: "
                f"{time_name(top.total_us)} in {top.count:,} of them",
                "view": "table",
            }
        )
    unfinished = int(index.is_open.sum())
    if unfinished:
        ranks = np.unique(index.calls["rank"][index.is_open])
        some = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        found.append(
            {
                "text": f"{unfinished:,} calls run still or failed, on ranks {some}",
                "view": "table",
            }
        )
    return found
