"""The verdict: who held the others up, and what it did meanwhile."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.trace import CALL, SAMPLE, CallKind, CodeLine, Comm, RankInfo, Recording
from stretto.watch import holdup, outside, rows_of, summarise, verdict

MS = 1_000_000


def made(late, *, calls=40, every=50 * MS, takes=MS, once=None):
    """Return a run of as many ranks, each late by so much in every call.

    `once` is a rank, a call and a time: it is late by that, too.
    """
    late = np.asarray(late, np.int64)
    n = len(late)
    noise = np.random.default_rng(3).integers(0, 20_000, (n, calls))
    came = late[:, None] + noise + np.arange(1, calls + 1) * every
    if once is not None:
        rank, call, more = once
        came[rank, call] += more
    table = np.zeros(n * calls, CALL)
    table["rank"] = np.repeat(np.arange(n), calls)
    table["seq"] = np.tile(np.arange(calls) + 1, n)
    table["state"], table["nbytes"] = 1, 1 << 20
    table["start"] = table["enqueue"] = came.ravel()
    table["end"] = np.tile(came.max(0) + takes, n)
    return Recording(
        calls=table,
        ranks=tuple(RankInfo(rank=r, num_ranks=n, host="a", pid=9) for r in range(n)),
        comms=(Comm(name="world", members=tuple(range(n))),),
        kinds=(CallKind(collective="all_reduce", nbytes=1 << 20),),
    )


def sampled(recording, rank, busy, children=0.0, delayed=0.0):
    """Return it with samples of a rank that uses so much of a processor outside."""
    mine = recording.calls[recording.calls["rank"] == rank]
    period = 5 * MS
    times = np.arange(mine["start"][0] + period, mine["end"][-1] + 4 * period, period)
    inside = np.zeros(len(times))
    for begin, end in zip(mine["start"], mine["end"], strict=True):
        low = np.maximum(times - period, begin)
        inside += np.clip(np.minimum(times, end) - low, 0, None)
    rows = np.zeros(len(times), SAMPLE)
    rows["rank"], rows["time"], rows["period"] = rank, times, period
    rows["main"] = rows["cpu"] = busy * (period - inside) + 0.5 * inside
    rows["children"] = children * period
    rows["delayed"] = delayed * (period - inside) + 0.3 * inside
    return replace(
        recording, samples=rows, places=(CodeLine(text="train.py:7, work()"),)
    )


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 1024])
def test_one_slow_rank_is_named(num_ranks):
    """It is named, with how long the others waited each time."""
    late = np.zeros(num_ranks)
    late[1] = 30 * MS
    found = holdup(made(late).calls)

    assert (1,) == found.ranks
    assert found.usual_us == pytest.approx(30_000, rel=0.01)
    assert (39, 39) == (found.late, found.meetings)


def test_ranks_of_one_slow_host_are_named_together():
    """None of them alone kept anybody."""
    late = np.zeros(1024)
    late[608:616] = 5 * MS
    assert set(range(608, 616)) == set(holdup(made(late).calls).ranks)


def test_one_late_start_hides_no_straggler():
    """518 ms once are told apart from 30 ms in every step."""
    late = np.zeros(8)
    late[5] = 30 * MS
    found = holdup(made(late, once=(2, 4, 518 * MS)).calls)

    assert (5,) == found.ranks
    assert 2 == found.once_rank
    assert found.once_us == pytest.approx(488_000, rel=0.01)


@pytest.mark.parametrize("once_ms", [518, 5_000])
def test_tables_name_first_whom_the_verdict_names(once_ms):
    """One late start cost more in all than the straggler did; it is not told first."""
    late = np.zeros(8)
    late[5] = 30 * MS
    recording = made(late, calls=12, once=(2, 4, once_ms * MS))
    found = summarise(recording)
    tables = rows_of(found)
    title = next(title for title in tables if "late" in title)

    assert verdict(recording, found)[0].text.startswith("Rank 5 held the others up")
    assert 2 == max(found.late, key=lambda one: one.kept_us).rank
    assert 5 == found.late[0].rank == tables[title][0]["rank"]


def test_nobody_is_blamed_for_noise():
    """Who comes last by chance is no straggler."""
    assert () == holdup(made(np.zeros(8)).calls).ranks
    assert () == holdup(np.zeros(0, CALL)).ranks


@pytest.mark.parametrize(
    ("busy", "children", "delayed", "doing"),
    [
        (0.02, 0.0, 0.0, "asleep"),
        (0.95, 0.0, 0.04, "computing (95%"),
        (0.03, 1.9, 0.0, "loaders of data"),
        (0.2, 0.46, 0.0, "loaders of data"),
        (0.2, 0.1, 0.1, "asleep"),
        (0.5, 0.0, 0.0, "computing for 50%"),
        (0.29, 0.0, 0.6, "short of processors: computing for 29% of it, and for 60%"),
        (0.75, 0.0, 0.25, "short of processors"),
    ],
)
def test_what_it_did_outside_is_told_apart(busy, children, delayed, doing):
    """By its processor time outside of calls; in them it spins, and that is no work."""
    recording = sampled(made([0, 30 * MS, 0, 0]), 1, busy, children, delayed)
    found = outside(recording, 1)

    assert doing in found.doing
    assert "train.py:7, work()" == found.place
    texts = [one.text for one in verdict(recording, summarise(recording))]
    assert texts[0].startswith("Rank 1 held the others up: 30 ms each time (median)")
    assert doing in texts[1]
    assert "--steps" in texts[2]


def test_a_hang_is_told_first():
    """As `attach` tells it, and where the rank was last seen."""
    recording = sampled(made([0, 0, 0]), 2, 0.0)
    calls = recording.calls.copy()
    stuck = (calls["seq"] == 40) & (calls["rank"] < 2)
    calls["state"][stuck], calls["end"][stuck] = 0, 0
    calls = calls[~((calls["seq"] == 40) & (calls["rank"] == 2))]
    hung = replace(recording, calls=calls)
    first, second, *_ = verdict(hung, summarise(hung))

    assert "hang" == first.about
    assert "2 of 3 ranks are in it and wait for the others" in first.text
    assert "rank 2 (a, pid 9): it was last seen at train.py:7, work()" in second.text
