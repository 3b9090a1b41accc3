"""Answers about links: pairs of ranks, by their rate or by what they moved."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.studio.analysis.flows import flows_of
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.scene import Scene
from stretto.studio.ask.question import Question, Subject
from stretto.studio.ask.window import Answer, FilteredCalls


def links(scene: Scene, question: Question, window: FilteredCalls) -> Answer:
    """Rank pairs by the rate while something was on its way, or by what they moved."""
    index = scene.index
    if not len(index.steps):
        return Answer(text="No steps were recorded, so nobody knows what links did.")
    n = index.side
    nbytes, busy = np.zeros(n * n), np.zeros(n * n)
    wanted = _steps_of(index, window)
    place = index.place_of(question.rank) if question.rank >= 0 else -1
    for flows in flows_of(index, scene.plans, wanted):
        inside = (flows.begin <= window.end_us) & (flows.end >= window.begin_us)
        if question.rank >= 0:
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


def _steps_of(index: Index, window: FilteredCalls) -> NDArray[np.int64] | None:
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
