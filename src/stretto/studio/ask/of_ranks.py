"""Answers about ranks: who is late, and what one does."""

from __future__ import annotations

import numpy as np

from stretto.errors import CallError
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.scene import Scene
from stretto.studio.ask.question import Question
from stretto.studio.ask.window import Answer, FilteredCalls, nothing
from stretto.studio.units import time_name
from stretto.trace import STATES
from stretto.watch import holdup, lateness, outside, slow_first, spell_ranks


def late(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """Rank ranks by how long after the first they came."""
    index = scene.index
    calls = index.chosen(window.instances)
    if not calls.any():
        return nothing()
    found = lateness(index.calls[calls])
    if not found:
        return nothing()
    slow = holdup(index.calls[calls])
    found = slow_first(found, slow)
    rows = tuple(
        (
            one.rank,
            round(one.kept_us, 3),
            round(one.p50_us, 3),
            round(one.most_us, 3),
            one.meetings,
        )
        for one in found[: question.top]
    )
    worst, usual = found[0], float(np.median([one.p50_us for one in found]))
    text = (
        f"{spell_ranks(slow.ranks).capitalize()} held the others up: "
        f"{time_name(slow.usual_us)} each time (median), in {slow.late:,} of "
        f"{slow.meetings:,} calls, {time_name(slow.total_us)} in all."
        if slow.ranks
        else f"No rank stands out: rank {worst.rank} comes latest, "
        f"{time_name(worst.p50_us)} after the first (median of {worst.meetings:,} "
        f"calls; usual for a rank: {time_name(usual)})."
    )
    columns = ("rank", "kept others, us", "late (median), us", "at most, us", "calls")
    return Answer(text=text, columns=columns, rows=rows, view="lateness")


def why_rank(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """Say when a rank is late: always, or at times; and how long it was away before."""
    index = scene.index
    place = _rank(index, question.number)
    mine = index.chosen(window.instances) & (index.row == place)
    if not mine.any():
        return nothing()
    at = np.flatnonzero(mine)
    late = index.late_us[at]
    order = np.argsort(-late, kind="stable")[: question.top]
    rows = []
    for i in order:
        call = int(at[i])
        kind = index.recording.kinds[int(index.calls["kind"][call])]
        since = _since_last(index, place, float(index.asked_us[call]))
        rows.append(
            (
                int(index.calls["seq"][call]),
                kind.collective,
                round(float(late[i]), 3),
                since if since is None else round(since, 3),
            )
        )
    often = float((late > 1.5 * np.median(index.late_us)).mean())
    mean, middle = time_name(late.mean()), time_name(float(np.median(late)))
    text = (
        f"Rank {question.number} comes {mean} after the first on average (median "
        f"{middle}, at most {time_name(late.max())}); in {100 * often:.0f} % of its "
        f"calls it is later than half again the median of all ranks. "
        f"{_meanwhile(index, question.number)}"
    )
    columns = ("step", "collective", "late, us", "outside collectives before, us")
    return Answer(text=text, columns=columns, rows=tuple(rows), view="lateness")


def _meanwhile(index: Index, rank: int) -> str:
    """Return what the rank did outside of calls, as the verdict says it."""
    found = outside(index.recording, rank)
    if found is None:
        return "What it did before them is not known: no samples of it were recorded."
    place = f", most often at {found.place}" if found.place else ""
    return f"Outside of calls it was {found.doing}{place}."


def _since_last(index: Index, place: int, asked: float) -> float | None:
    """Return how long before a moment a rank left its last collective."""
    mine = (index.row == place) & index.is_done
    ends = index.asked_us[mine] + index.lasted_us[mine]
    before = ends[ends <= asked + 1e-6]
    return asked - float(before.max()) if len(before) else None


def doing(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """List the last calls of a rank."""
    index = scene.index
    place = _rank(index, question.number)
    mine = np.flatnonzero(index.row == place)
    if not len(mine):
        return nothing()
    order = mine[np.argsort(-index.asked_us[mine], kind="stable")][: question.top]
    rows = tuple(
        (
            int(index.calls["seq"][i]),
            index.recording.kinds[int(index.calls["kind"][i])].collective,
            STATES[int(index.calls["state"][i])],
            round(float(index.asked_us[i]) / 1e3, 4),
            round(float(index.lasted_us[i]), 3) if index.is_done[i] else "not known",
        )
        for i in order
    )
    seq, name, state, at, _ = rows[0]
    silent = index.span_us - at * 1e3
    text = (
        f"Rank {question.number} last called {name}, step {seq}, which is {state}; "
        f"that was {time_name(silent)} before the recording ends."
    )
    columns = ("step", "collective", "state", "at, ms", "in the call, us")
    return Answer(text=text, columns=columns, rows=rows, view="lateness")


def _rank(index: Index, rank: int) -> int:
    if rank not in index.ranks:
        low, high = (index.ranks[0], index.ranks[-1]) if len(index.ranks) else (0, 0)
        raise CallError(f"no rank {rank} was recorded; there are {low} to {high}")
    return int(np.searchsorted(index.ranks, rank))
