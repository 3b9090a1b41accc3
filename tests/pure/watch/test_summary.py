"""A summary says what a few plain loops over the calls say."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.watch.recordings import recording

from stretto.studio.analysis.index import Index
from stretto.trace import WAITS, Dropped
from stretto.watch import head, lateness, links, rows_of, summarise

KINDS = [("all_reduce", 4096), ("all_reduce", 5000), ("all_gather", 1 << 20)]


@st.composite
def recordings(draw):
    """Return recordings of some ranks, in two communicators, and their calls."""
    n = draw(st.integers(1, 4))
    comms = {"world": tuple(range(n)), "part": tuple(range(n))[:2]}
    calls = []
    for r in range(n):
        for c, members in enumerate(comms.values()):
            for seq in range(1, draw(st.integers(0, 4)) + 1 if r in members else 1):
                start = draw(st.integers(1, 9000))
                state = draw(st.sampled_from(["done", "done", "done", "failed"]))
                end = start + draw(st.integers(1, 500))
                calls.append((r, c, seq, draw(st.integers(0, 2)), state, start, end))
    return n, comms, calls


def nearest(values, share):
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@settings(max_examples=examples(150), deadline=None)
@given(recordings())
def test_the_table_is_what_loops_say(drawn):
    """Counts, quantiles, sums, and what was waited for the last to come."""
    n, comms, calls = drawn
    found = summarise(recording(calls, comms=comms, kinds=KINDS, num_ranks=n))
    names = list(comms)
    timed = [c for c in calls if c[4] == "done"]
    last = defaultdict(int)
    for _, comm, seq, _, _, start, _ in timed:
        last[comm, seq] = max(last[comm, seq], start)
    groups = defaultdict(list)
    counts = defaultdict(int)
    for _, comm, seq, k, state, start, end in calls:
        size = 1 << (KINDS[k][1].bit_length() - 1)
        key = KINDS[k][0], names[comm], size
        counts[key] += 1
        if state == "done":
            waited = min(last[comm, seq] - start, end - start)
            groups[key].append((end - start, waited))
    assert counts == {(r.collective, r.comm, r.size): r.count for r in found.rows}
    for row in found.rows:
        times = groups[row.collective, row.comm, row.size]
        if not times:
            assert (0.0, 0.0) == (row.p50_us, row.total_s)
            continue
        spans = [t for t, _ in times]
        assert row.p50_us == pytest.approx(nearest(spans, 0.5) / 1e3)
        assert row.p99_us == pytest.approx(nearest(spans, 0.99) / 1e3)
        assert row.total_s == pytest.approx(sum(spans) / 1e9)
        assert row.wait_us == pytest.approx(np.mean([w for _, w in times]) / 1e3)
    assert sum(c[4] == "failed" for c in calls) == found.failed


@settings(max_examples=examples(150), deadline=None)
@given(recordings())
def test_who_was_late_is_what_loops_say(drawn):
    """How often last, how late on average, and what it alone has cost the others."""
    n, comms, calls = drawn
    found = summarise(recording(calls, comms=comms, kinds=KINDS, num_ranks=n))
    meetings, kinds = defaultdict(list), {}
    for rank, comm, seq, kind, _, start, _ in calls:
        meetings[comm, seq].append((start, rank))
        kinds.setdefault((comm, seq), kind)
    first = {}
    for comm, seq in sorted(meetings):
        first.setdefault((comm, kinds[comm, seq]), seq)
    several = {key for key, met in meetings.items() if len(met) > 1}
    warm = {key for key in several if first[key[0], kinds[key]] != key[1]}
    came, after, cost = defaultdict(int), defaultdict(float), defaultdict(float)
    for key in warm or several:
        met = meetings[key]
        starts = sorted(s for s, _ in met)
        for start, rank in met:
            came[rank] += 1
            after[rank] += start - starts[0]
        late = [rank for start, rank in met if start == starts[-1]]
        if len(late) == 1:
            cost[late[0]] += starts[-1] - starts[-2]
    assert dict(came) == {one.rank: one.meetings for one in found.late}
    for one in found.late:
        assert one.mean_us == pytest.approx(after[one.rank] / came[one.rank] / 1e3)
        assert one.kept_us == pytest.approx(cost[one.rank] / 1e3)


def test_a_late_first_call_hides_no_straggler():
    """Warm-up does not count: rank 1 starts half a second late, rank 2 is slow."""
    calls = []
    for seq in range(1, 11):
        for rank in range(3):
            late = 518_000 if (rank, seq) == (1, 1) else 30_000 * (rank == 2)
            start = 1_000_000 * seq + late
            calls.append((rank, 0, seq, 0, "done", start, start + 600_000))
    made = recording(calls, comms={"world": (0, 1, 2)}, kinds=KINDS, num_ranks=3)
    worst = summarise(made).late[0]

    assert (2, 9, 9) == (worst.rank, worst.last, worst.meetings)
    assert 30.0 == worst.p50_us == worst.most_us
    assert 270.0 == worst.kept_us


def test_where_hosts_run_ahead_the_stream_says_who_is_late():
    """A call comes when its stream comes to it, however early it was asked for."""
    calls = []
    for seq in range(1, 6):
        for rank in range(2):
            start = 1_000_000 * seq + 50_000 * (rank == 1)
            calls.append((rank, 0, seq, 0, "done", start, start + 100_000))
    made = recording(calls, comms={"world": (0, 1)}, kinds=KINDS, num_ranks=2)
    made.calls["enqueue"] = made.calls["start"] - 10_000 * (1 + 8 * made.calls["rank"])
    report, index = summarise(made).late[0], Index(made)

    assert 1 == report.rank == lateness(index.calls)[0].rank
    assert 50.0 == report.p50_us == index.late_us.max()
    assert (index.late_us[made.calls["rank"] == 0] == 0).all()


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(1, 60), st.booleans()), max_size=12
    )
)
def test_exposed_and_hidden_are_counted_by_the_nanosecond(spans):
    """Exposed: some call that was waited for; hidden: only such as ran beside."""
    calls = [(0, 0, i + 1, 0, "done", s, s + d) for i, (s, d, _) in enumerate(spans)]
    made = recording(calls, kinds=KINDS, num_ranks=1)
    for row, (_, _, started) in enumerate(spans):
        made.calls["enqueue"][row] -= started
    found = summarise(made).shares
    own, beside = set(), set()
    for start, length, started in spans:
        (beside if started else own).update(range(start, start + length))
    if spans:
        assert found[0].exposed_s * 1e9 == pytest.approx(len(own))
        assert found[0].hidden_s * 1e9 == pytest.approx(len(beside - own))


def test_time_in_a_wait_is_exposed():
    """What ran beside the rank was hidden only until it waited for it."""
    calls = [(0, 0, 1, 0, "done", 1000, 5000), (0, 1, 1, 1, "done", 4000, 5500)]
    comms = {"world": (0,), f"{WAITS} 0": (0,)}
    seen = recording(calls, comms=comms, kinds=[KINDS[0], ("wait", 0)])
    seen.calls["enqueue"][0] = 900
    found = summarise(seen)

    assert found.shares[0].exposed_s * 1e9 == pytest.approx(1500)
    assert found.shares[0].hidden_s * 1e9 == pytest.approx(3000)
    assert ["all_reduce"] == [row.collective for row in found.rows]


def test_bandwidth_and_the_gap_to_a_model():
    """As nccl-tests count: 2 (n-1)/n of an all_reduce's bytes over its median."""
    calls = [(r, 0, 1, 0, "done", 1000, 3000) for r in range(4)]
    seen = recording(calls, kinds=[("all_reduce", 8000)])
    (row,) = summarise(seen, model=lambda kind, n: 0.5 * n).rows

    assert row.busbw_gbps == pytest.approx(8000 / 2000 * 1.5)
    assert (2.0, 1.0) == (row.model_us, row.gap)


def test_slow_links_are_those_far_below_the_others():
    """By what moved between ranks; who is waited for has it counted."""
    steps = []
    for src in range(4):
        for dst in range(4):
            if src != dst:
                took = 4000 if (src, dst) == (2, 1) else 1000
                one = (src, 0, 1, 0, "put", 0, dst, 0, 100, 0, 100 + took, 50_000)
                steps += [one] * 3
                steps.append((dst, 0, 1, 0, "wait", 1, src, 0, 0, 77, 90, 0))
    calls = [(r, 0, 1, 0, "done", 1, 9000) for r in range(4)]
    seen = recording(calls, steps=steps)
    found = links(seen)

    assert (2, 1, True) == (found[0].src, found[0].dst, found[0].is_slow)
    assert found[0].rate_gbps == pytest.approx(12.5)
    assert [False] * 11 == [one.is_slow for one in found[1:]]
    assert {150_000} == {one.nbytes for one in found}
    assert all(one.waited_s == pytest.approx(77e-9) for one in found)
    tables = rows_of(summarise(seen))
    assert "slow" == tables["links, slowest first"][0]["slow"]


def test_nothing_is_summarised_too():
    """A recording without calls has a head and no table."""
    seen = recording([], num_ranks=2)
    found = summarise(seen)

    assert () == found.rows == found.late == found.shares
    assert list(head(seen, found))


def test_the_head_says_what_is_missing():
    """What was cut, lost, or has not ended."""
    from dataclasses import replace

    calls = [(0, 0, 1, 0, "running", 5, 0), (1, 0, 1, 0, "failed", 5, 9)]
    seen = replace(
        recording(calls), cut=("x ends",), dropped=(Dropped(rank=0, calls=2, steps=3),)
    )
    text = "\n".join(head(seen, summarise(seen)))

    assert "cut: x ends" in text
    assert "2 calls, 3 steps" in text
    assert "not ended: 1 calls; failed: 1" in text
