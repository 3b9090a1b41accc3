"""Answers about collectives: which took long, and why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stretto.errors import CallError
from stretto.studio.analysis.groups import groups
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.scene import Scene
from stretto.studio.ask.question import Question
from stretto.studio.ask.window import Answer, FilteredCalls, comm_named, nothing
from stretto.studio.units import size_name, time_name


def slowest(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """Rank collectives by their time, and say whom they waited for."""
    index = scene.index
    chosen = np.flatnonzero(window.instances)
    if not len(chosen):
        return nothing()
    lasted = (index.end_us - index.first_us)[chosen]
    rows = tuple(
        _instance_row(index, int(chosen[at]))
        for at in np.argsort(-lasted, kind="stable")[: question.top]
    )
    comm, seq, name, size, us, wait, last, _ = rows[0]
    text = (
        f"Collective {seq} of {comm}, {name} of {size}, took longest: {time_name(us)}, "
        f"{time_name(wait)} of them until the last rank, {last}, came."
    )
    columns = (
        *("communicator", "number", "collective", "size", "us"),
        *("waited for the last, us", "last rank", "at, ms"),
    )
    return Answer(text=text, columns=columns, rows=rows, view="lateness")


def _instance_row(index: Index, one: int) -> tuple[Any, ...]:
    mine = np.flatnonzero(index.instance == one)
    last = mine[index.asked_us[mine].argmax()]
    kind = index.recording.kinds[int(index.instance_kind[one])]
    first = float(index.first_us[one])
    return (
        index.recording.comms[int(index.instance_comm[one])].name,
        int(index.instance_seq[one]),
        kind.collective,
        size_name(int(index.instance_nbytes[one])),
        round(float(index.end_us[one]) - first, 3),
        round(float(index.last_us[one]) - first, 3),
        int(index.calls["rank"][last]),
        round(first / 1e3, 4),
    )


def times(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """List operations by size."""
    found = groups(scene.index, window.instances)[: question.top]
    if not found:
        return nothing()
    rows = tuple(
        (
            one.collective,
            size_name(one.mean_nbytes),
            one.num_ranks,
            one.count,
            *(_timed(value) for value in (one.p50_us, one.p99_us, one.busbw_gbps)),
        )
        for one in found
    )
    top = found[0]
    text = f"{top.collective} of {size_name(top.mean_nbytes)} takes most time; "
    text += (
        "nobody timed its calls."
        if math.isnan(top.p50_us)
        else f"half of its calls end within {time_name(top.p50_us)}, 99 of 100 within "
        f"{time_name(top.p99_us)}."
    )
    columns = ("collective", "size", "ranks", "count", "p50, us", "p99, us", "bus GB/s")
    return Answer(text=text, columns=columns, rows=rows, view="table")


def _timed(value: float) -> float | None:
    """Return a figure as a page takes it; None: there is none."""
    return None if math.isnan(value) else round(value, 3)


def why_step(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """Say of one collective who came last and what the rest of its time was."""
    index = scene.index
    comms = np.bincount(
        index.instance_comm, minlength=max(1, len(index.recording.comms))
    )
    comm = comm_named(index, question.comm) if question.comm else int(comms.argmax())
    of_comm = index.instance_comm == comm
    here = np.flatnonzero(of_comm & (index.instance_seq == question.number))
    if not len(here):
        seqs = index.instance_seq[of_comm]
        span = f"{seqs.min()} to {seqs.max()}" if len(seqs) else "none"
        raise CallError(f"no step {question.number} was recorded; there are {span}")
    one = int(here[0])
    row = _instance_row(index, one)
    alike = of_comm & (index.instance_kind == index.instance_kind[one])
    usual = float(np.median((index.end_us - index.first_us)[alike]))
    usual_wait = float(np.median((index.last_us - index.first_us)[alike]))
    lasted, wait = row[4], row[5]
    moved = lasted - wait
    is_late = wait - usual_wait >= moved - (usual - usual_wait)
    waited, moving = time_name(wait), time_name(moved)
    cause = (
        f"Rank {row[6]} came {waited} after the first (usually "
        f"{time_name(usual_wait)})."
        if is_late
        else f"All ranks had come after {waited}; moving data took {moving} (usually "
        f"{time_name(usual - usual_wait)})."
    )
    slow = "is slow" if lasted > usual * 1.1 else "is not slow"
    text = (
        f"Step {question.number} {slow}: {row[2]} of {row[3]} that took "
        f"{time_name(lasted)}; the median of its kind takes {time_name(usual)}. {cause}"
    )
    mine = np.flatnonzero(index.instance == one)
    order = mine[np.argsort(-index.asked_us[mine], kind="stable")][: question.top]
    rows = tuple(
        (
            int(index.calls["rank"][i]),
            round(float(index.late_us[i]), 3),
            round(float(index.lasted_us[i]), 3) if index.is_done[i] else "not known",
        )
        for i in order
    )
    columns = ("rank", "after the first, us", "in the call, us")
    return Answer(text=text, columns=columns, rows=rows, view="lateness")
