"""Clocks of hosts are brought together by calls, with an error that holds."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from stretto.trace import (
    CALL,
    STEP,
    UNKNOWN_NS,
    CallKind,
    Comm,
    RankInfo,
    Recording,
    merge,
)


def runs(offsets, *, calls=40, seed=0, drift=(), collective="all_reduce", text=""):
    """Return what ranks on hosts of their own record, and the true starts.

    Host b's clock shows the true time less `offsets[b]`, and drifts.
    """
    rng = np.random.default_rng(seed)
    n = len(offsets)
    enter = np.cumsum(rng.integers(50_000, 400_000, calls))[:, None] + rng.integers(
        0, 30_000, (calls, n)
    )
    enter = enter + 10**9
    leave = enter.max(axis=1, keepdims=True) + rng.integers(1_000, 20_000, (calls, n))
    pace = np.array([*drift, *[0.0] * (n - len(drift))])
    parts = []
    for r in range(n):
        table = np.zeros(calls, CALL)
        table["rank"], table["seq"], table["state"] = r, np.arange(1, calls + 1), 1
        for name, true in (("enqueue", enter), ("start", enter), ("end", leave)):
            table[name] = np.rint(true[:, r] * (1 + pace[r])) - offsets[r]
        parts.append(
            Recording(
                calls=table,
                ranks=(RankInfo(rank=r, num_ranks=n, host=f"h{r}"),),
                comms=(Comm(name="world", members=tuple(range(n))),),
                kinds=(CallKind(collective=collective, nbytes=8, text=text),),
            )
        )
    return parts, enter + -offsets[0]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=5), st.integers(0, 99)
)
def test_the_stated_error_holds(offsets, seed):
    """Whatever the clocks show, times are off by no more than is said."""
    parts, true = runs(offsets, seed=seed)
    merged = merge(parts)
    for info in merged.ranks:
        mine = merged.of_ranks(info.rank).calls
        off = np.abs(mine["start"] - true[:, info.rank]).max()
        assert off <= info.error_ns + 1
        assert (
            abs(info.offset_ns - (offsets[info.rank] - offsets[0])) <= info.error_ns + 1
        )
        assert 0 <= info.error_ns < 30_000
    assert 0 == merged.ranks[0].error_ns


def test_clocks_that_drift_are_followed():
    """40 parts in a million over a second: a constant is off by 20 us or more."""
    parts, true = runs([0, 123_456_789], calls=4000, drift=[0.0, 40e-6])
    merged = merge(parts)
    mine = merged.of_ranks(1).calls
    off = np.abs(mine["start"] - true[:, 1]).max()

    assert off <= merged.ranks[1].error_ns < 40_000


def test_waits_follow_the_clock_that_timed_them():
    """A step that does nothing but wait still lasts as long as it waits."""
    parts, _ = runs([0, 123_456_789], calls=4000, drift=[0.0, 40e-6])
    for r, part in enumerate(parts):
        steps = np.zeros(len(part.calls), STEP)
        steps["rank"], steps["seq"] = r, part.calls["seq"]
        steps["begin"], steps["end"] = part.calls["start"][0], part.calls["end"]
        steps["wait"] = steps["end"] - steps["begin"]
        parts[r] = dataclasses.replace(part, steps=steps)
    steps = merge(parts).of_ranks(1).steps

    assert (steps["wait"] == steps["end"] - steps["begin"]).all()


@pytest.mark.parametrize(
    "how",
    [
        {"collective": "broadcast"},
        {"text": "all_gather of 4,0 float32 by all_gather/ring"},
    ],
)
def test_calls_that_do_not_bind_bound_nothing(how):
    """Who is root, or gives nothing, may leave before others enter: dates are used."""
    parts, _ = runs([0, 1000], **how)
    merged = merge(parts)

    assert UNKNOWN_NS == merged.ranks[1].error_ns
    assert UNKNOWN_NS == merged.error_ns


def test_ranks_of_one_host_are_left_alone():
    """They read one clock: nothing is moved, and the error is 0."""
    parts, _ = runs([0, 0])
    shared = [p.ranks[0].__class__(rank=r, host="a") for r, p in enumerate(parts)]
    merged = merge(
        [
            Recording(calls=p.calls, ranks=(info,), comms=p.comms, kinds=p.kinds)
            for p, info in zip(parts, shared, strict=True)
        ]
    )
    assert np.array_equal(parts[1].calls["start"], merged.of_ranks(1).calls["start"])
    assert 0 == merged.error_ns


def test_times_that_nobody_took_stay_none():
    """0 is no time: it is not moved."""
    parts, _ = runs([0, 5_000_000])
    parts[1].calls["end"][3], parts[1].calls["state"][3] = 0, 0

    assert 0 == merge(parts).of_ranks(1).calls["end"][3]
