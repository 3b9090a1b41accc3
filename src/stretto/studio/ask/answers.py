"""Answers: a sentence, a table, the view that shows more; computed, never written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError
from stretto.studio.ask.question import Question, Subject
from stretto.studio.flows import flows_of
from stretto.studio.groups import groups
from stretto.studio.index import Index
from stretto.studio.scene import Scene
from stretto.studio.units import size_name, time_name
from stretto.trace import STATES

__all__ = ["Answer", "answer", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known."""

    question: str = ""
    text: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    view: str = ""
    """The view that shows more."""


@dataclass(frozen=True, slots=True)
class _Window:
    """What a question's filters leave."""

    begin_us: float
    end_us: float
    instances: NDArray[np.bool_] = field(repr=False)


def answer(scene: Scene, question: Question) -> Answer:
    """Return the answer to a question about the first recording."""
    index = scene.index
    window = _window(index, question)
    found = _WAYS[question.subject](scene, question, window)
    return replace(found, question=str(question))


def _window(index: Index, question: Question) -> _Window:
    begin, end = 0.0, index.span_us
    if question.last_us >= 0:
        begin = max(0.0, end - question.last_us)
    if question.between_us is not None:
        begin = max(begin, question.between_us[0])
        end = min(end, question.between_us[1])
    chosen = (index.first_us <= end) & (index.end_us >= begin)
    kinds = index.recording.kinds
    if question.collective:
        of_kind = np.array([k.collective == question.collective for k in kinds], bool)
        chosen &= of_kind[index.instance_kind] if len(of_kind) else False
    if question.over >= 0:
        chosen &= index.instance_nbytes > question.over
    if question.under >= 0:
        chosen &= index.instance_nbytes < question.under
    if question.comm:
        chosen &= index.instance_comm == _comm(index, question.comm)
    return _Window(begin, end, chosen)


def _comm(index: Index, name: str) -> int:
    names = [comm.name for comm in index.recording.comms]
    if name not in names:
        known = ", ".join(repr(one) for one in names[:10])
        raise CallError(f"no communicator {name!r}; there are {known}")
    return names.index(name)


def _links(scene: Scene, question: Question, window: _Window) -> Answer:
    """Rank pairs by the rate while something was on its way, or by what they moved."""
    index = scene.index
    if not len(index.steps):
        return Answer(text="No steps were recorded, so nobody knows what links did.")
    n = index.side
    nbytes, busy = np.zeros(n * n), np.zeros(n * n)
    wanted = _steps_of(index, window)
    for flows in flows_of(index, scene.plans, wanted):
        inside = (flows.begin <= window.end_us) & (flows.end >= window.begin_us)
        if question.rank >= 0:
            place = index.place(np.array([question.rank]))[0]
            inside &= (flows.src == place) | (flows.dst == place)
        key = (flows.src * n + flows.dst)[inside]
        nbytes += np.bincount(key, flows.nbytes[inside], n * n)
        busy += np.bincount(key, (flows.end - flows.begin)[inside], n * n)
    used = np.flatnonzero(nbytes)
    if not len(used):
        return Answer(text="Nothing moved between ranks then.", view="topology")
    rate = nbytes[used] / np.maximum(busy[used], 1e-3) / 1e3
    slowest = question.subject is Subject.SLOWEST_LINKS
    order = np.argsort(rate if slowest else -nbytes[used], kind="stable")
    rows = []
    for at in order[: question.top]:
        src, dst = divmod(int(used[at]), n)
        a, b = int(index.world[src]), int(index.world[dst])
        way = _way(scene, a, b)
        moved = float(nbytes[used[at]]) / 2**20
        rows.append((a, b, round(float(rate[at]), 4), round(moved, 4), way))
    a, b, best, moved, _ = rows[0]
    middle = float(np.median(rate))
    text = (
        f"From rank {a} to rank {b} data move slowest: {best:.4g} GB/s while something "
        f"is on its way; the median pair reaches {middle:.4g} GB/s."
        if slowest
        else f"From rank {a} to rank {b} most was moved: {moved:.4g} MB."
    )
    columns = ("from rank", "to rank", "GB/s while moving", "MB", "over")
    return Answer(text=text, columns=columns, rows=tuple(rows), view="topology")


def _steps_of(index: Index, window: _Window) -> NDArray[np.int64] | None:
    """Return the steps of the collectives of a window; None: all of them."""
    if window.instances.all():
        return None
    keys = index.instance_comm * (1 << 40) + index.instance_seq
    steps = index.steps
    mine = steps["comm"].astype(np.int64) * (1 << 40) + steps["seq"]
    return np.flatnonzero(np.isin(mine, keys[window.instances]))


def _way(scene: Scene, src: int, dst: int) -> str:
    machine = scene.loaded.machine
    if machine is None or not scene.links.is_measured:
        return ""
    return ", ".join(machine.links[i].name for i in machine.route(src, dst).links)


def _late(scene: Scene, question: Question, window: _Window) -> Answer:
    index = scene.index
    calls = index.chosen(window.instances)
    if not calls.any():
        return _nothing()
    many = np.bincount(index.row[calls], minlength=len(index.ranks))
    late = np.bincount(index.row[calls], index.late_us[calls], len(index.ranks))
    worst = np.zeros(len(index.ranks))
    np.maximum.at(worst, index.row[calls], index.late_us[calls])
    mean = late / np.maximum(many, 1)
    there = many > 0
    order = np.argsort(-np.where(there, mean, -1), kind="stable")
    rows = tuple(
        (
            int(index.ranks[i]),
            round(float(mean[i]), 3),
            round(float(worst[i]), 3),
            int(many[i]),
        )
        for i in order[: question.top]
        if there[i]
    )
    middle = float(np.median(mean[there]))
    text = (
        f"Rank {rows[0][0]} comes latest: {time_name(rows[0][1])} after the first, on "
        f"average over {rows[0][3]:,} calls; the median rank {time_name(middle)}."
    )
    columns = ("rank", "late on average, us", "at most, us", "calls")
    return Answer(text=text, columns=columns, rows=rows, view="lateness")


def _slowest(scene: Scene, question: Question, window: _Window) -> Answer:
    index = scene.index
    chosen = np.flatnonzero(window.instances)
    if not len(chosen):
        return _nothing()
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


def _times(scene: Scene, question: Question, window: _Window) -> Answer:
    rows = tuple(
        (
            one.collective,
            size_name(one.mean_nbytes),
            one.num_ranks,
            one.count,
            round(one.p50_us, 3),
            round(one.p99_us, 3),
            round(one.busbw_gbps, 3),
        )
        for one in groups(scene.index, window.instances)[: question.top]
    )
    if not rows:
        return _nothing()
    text = (
        f"{rows[0][0]} of {rows[0][1]} takes most time; half of its calls end within "
        f"{time_name(rows[0][4])}, 99 of 100 within {time_name(rows[0][5])}."
    )
    columns = ("collective", "size", "ranks", "count", "p50, us", "p99, us", "bus GB/s")
    return Answer(text=text, columns=columns, rows=rows, view="table")


def _why_step(scene: Scene, question: Question, window: _Window) -> Answer:
    """Say of one collective who came last and what the rest of its time was."""
    index = scene.index
    comms = np.bincount(
        index.instance_comm, minlength=max(1, len(index.recording.comms))
    )
    comm = _comm(index, question.comm) if question.comm else int(comms.argmax())
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


def _why_rank(scene: Scene, question: Question, window: _Window) -> Answer:
    """Say when a rank is late: always, or at times; and how long it was away before."""
    index = scene.index
    place = _rank(index, question.number)
    mine = index.chosen(window.instances) & (index.row == place)
    if not mine.any():
        return _nothing()
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
        "calls it is later than half again the median of all ranks. The time outside "
        "collectives before a call is what it computed."
    )
    columns = ("step", "collective", "late, us", "outside collectives before, us")
    return Answer(text=text, columns=columns, rows=tuple(rows), view="lateness")


def _since_last(index: Index, place: int, asked: float) -> float | None:
    """Return how long before a moment a rank left its last collective."""
    mine = (index.row == place) & index.is_done
    ends = index.asked_us[mine] + index.lasted_us[mine]
    before = ends[ends <= asked + 1e-6]
    return asked - float(before.max()) if len(before) else None


def _doing(scene: Scene, question: Question, window: _Window) -> Answer:
    index = scene.index
    place = _rank(index, question.number)
    mine = np.flatnonzero(index.row == place)
    if not len(mine):
        return _nothing()
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


def _nothing() -> Answer:
    return Answer(text="No collective was recorded that is like that.", view="table")


_WAYS: dict[Subject, Callable[[Scene, Question, _Window], Answer]] = {
    Subject.SLOWEST_LINKS: _links,
    Subject.BUSIEST_LINKS: _links,
    Subject.TRAFFIC: _links,
    Subject.LATE_RANKS: _late,
    Subject.SLOWEST: _slowest,
    Subject.TIMES: _times,
    Subject.WHY_STEP: _why_step,
    Subject.WHY_RANK: _why_rank,
    Subject.DOING: _doing,
}


def packed(found: Answer) -> dict[str, Any]:
    """Return an answer as a page takes it."""
    rows: Sequence[Any] = [list(row) for row in found.rows]
    return {
        "question": found.question,
        "text": found.text,
        "columns": list(found.columns),
        "rows": rows,
        "view": found.view,
    }
