"""A diagnosis names who is to be looked at, and why the others wait."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.watch.recordings import kind, recording, wait

from stretto.watch import diagnose, page

S = 10**9


def done(rank, seq, at=S, comm=0, k=0):
    return (rank, comm, seq, k, "done", at, at + 1000)


def runs(rank, seq, at=2 * S, comm=0, k=0):
    return (rank, comm, seq, k, "running", at, 0)


def test_of_many_that_wait_the_one_that_is_missing_is_named():
    """Not the majority; with what it did last, and for how long it has been away."""
    n = 1024
    calls = [done(r, 6) for r in range(n)]
    calls += [runs(r, 7) for r in range(n) if r != 613]
    waits = [wait(r, 0, 7, [613], "wait r613.0 n=1") for r in range(n) if r != 613]
    seen = recording(calls, waits=waits, num_ranks=n)
    found = diagnose(seen, 12 * S)
    (one,) = found.findings

    assert ("missing_enter", 1023, 1024) == (one.kind, one.inside, one.size)
    assert [(613, "absent")] == [(m.rank, m.how) for m in one.odd]
    assert (613,) == found.causes
    (chain,) = one.chains
    assert 613 == chain.cause
    text = page(found, seen)
    assert "rank 613 has not entered, for 11.0 s" in text
    assert "look first at: rank 613 (a, pid 713)" in text
    assert len(text.splitlines()) < 12


def test_of_few_that_came_those_are_named():
    """Where most have not entered, the odd ones are those that did."""
    calls = [done(r, 3) for r in range(16)] + [runs(5, 4)]
    found = diagnose(recording(calls), 9 * S)
    (one,) = found.findings

    assert 1 == one.inside
    assert [5] == [m.rank for m in one.odd]


def test_ranks_that_called_different_things_are_told_with_both_calls():
    """The minority is named; what it called, and what the others did."""
    kinds = [("all_reduce", 64, "all_reduce of 16"), ("barrier", 0, "barrier")]
    calls = [runs(0, 1), runs(1, 1), runs(2, 1, k=1), runs(3, 1)]
    seen = recording(calls, kinds=kinds)
    found = diagnose(seen, 9 * S)
    (one,) = found.findings

    assert "mismatch" == one.kind
    assert [(2, "elsewhere", "barrier")] == [(m.rank, m.how, m.call) for m in one.odd]
    text = page(found, seen)
    assert "all_reduce of 16: ranks called different things; 3 of 4" in text
    assert "rank 2 entered something else: barrier" in text


def test_one_that_has_gone_on_made_another_call_by_that_number():
    """Its ring still tells: it did not wait for those who made the first."""
    kinds = [("all_reduce", 64, "A"), ("all_gather", 64, "B")]
    calls = [runs(0, 1), done(1, 1, k=1), done(1, 2, k=1)]
    (one,) = diagnose(recording(calls, kinds=kinds), 9 * S).findings

    assert "mismatch" == one.kind
    assert [(1, "elsewhere", "B")] == [(m.rank, m.how, m.call) for m in one.odd]


def test_a_chain_goes_through_other_communicators_to_the_first_late_rank():
    """0 waits for 2, which is in another communicator and waits for 3: it computes."""
    comms = {"world": (0, 1, 2, 3), "world/0.1": (2, 3)}
    calls = [done(r, 1) for r in range(4)]
    calls += [runs(0, 2), runs(1, 2), runs(2, 1, comm=1)]
    waits = [wait(0, 0, 2, [2], "w"), wait(1, 0, 2, [2], "w"), wait(2, 1, 1, [1], "v")]
    found = diagnose(recording(calls, comms=comms, waits=waits), 9 * S)

    assert (3,) == found.causes
    chains = [c for f in found.findings for c in f.chains]
    longest = max(chains, key=lambda c: len(c.links))
    assert [2, 3] == [link[2] for link in longest.links][-2:]
    assert "it is in no call" in longest.why


def test_ranks_that_wait_in_a_ring_are_told_so():
    """All are inside, and each waits for the next: nobody is late."""
    n = 4
    calls = [runs(r, 1) for r in range(n)]
    waits = [wait(r, 0, 1, [(r + 1) % n], f"wait r{(r + 1) % n}.0") for r in range(n)]
    seen = recording(calls, waits=waits)
    (one,) = diagnose(seen, 9 * S).findings

    assert "stuck" == one.kind
    assert n == len(one.odd)
    assert any("ring" in c.why for c in one.chains)
    assert "all 4 ranks are in it" in page(diagnose(seen, 9 * S), seen)


def test_a_transfer_without_its_other_end_is_one():
    """Two ranks' channel: who sends waits for who does not receive."""
    comms = {"world": (0, 1), "world/0>1": (0, 1)}
    calls = [runs(0, 1, comm=1), done(1, 1)]
    waits = [wait(0, 1, 1, [1])]
    (one,) = diagnose(recording(calls, comms=comms, waits=waits), 9 * S).findings

    assert "p2p_missing_counterpart" == one.kind
    assert [1] == [m.rank for m in one.odd]


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [done(0, 1), done(1, 1)],
        [done(0, 5), done(1, 4)],
        [runs(0, 2, at=9 * S - 1000), done(1, 1)],
        [runs(0, 2), runs(1, 2)],
    ],
    ids=["nothing", "idle", "apart", "just entered", "under way"],
)
def test_nothing_is_wrong_where_nobody_waits(calls):
    """Ranks may be apart, and in calls; what has lasted a microsecond is no fault."""
    seen = recording(calls, num_ranks=2)
    found = diagnose(seen, 9 * S)

    assert () == found.findings
    assert "nobody waits" in page(found, seen)


def test_ranks_of_which_nothing_is_known_are_said_to_be_so():
    """On other hosts, say: they may be what the others wait for."""
    seen = recording([runs(0, 2), runs(1, 2)], comms={"world": (0, 1, 2, 3)})
    (one,) = diagnose(seen, 9 * S).findings

    assert (2, 3) == one.unknown
    assert "ranks 2-3: not on this host" in page(diagnose(seen, 9 * S), seen)


def test_who_has_enqueued_less_on_a_gpu_is_behind():
    """Not those who ran ahead, and nobody, as long as it is a matter of moments."""

    def put(rank, seq, at):
        return (rank, 0, seq, 0, "enqueued", 0, 0), at

    rows = [put(0, 7, 2 * S), put(1, 5, S), put(2, 7, 2 * S)]
    seen = recording([row for row, _ in rows])
    seen.calls["enqueue"] = [at for _, at in rows]
    (one,) = diagnose(seen, 9 * S).findings

    assert ("missing_enter", 7) == (one.kind, one.seq)
    assert [1] == [m.rank for m in one.odd]
    assert "its last was enqueued 8.0 s ago" in one.odd[0].doing
    assert (1,) == diagnose(seen, 9 * S).causes
    assert () == diagnose(seen, 2 * S + S // 2).findings


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_standing_gives_a_page(data):
    """Whatever ranks are in, and whomever they say they wait for."""
    n = data.draw(st.integers(1, 5))
    comms = {"world": tuple(range(n)), "part": tuple(range(0, n, 2))}
    calls, waits = [], []
    for r in range(n):
        for c, members in enumerate(comms.values()):
            if r not in members:
                continue
            last = data.draw(st.integers(0, 3))
            for seq in range(1, last + 1):
                ends = seq < last or data.draw(st.booleans())
                made = done if ends else runs
                calls.append(made(r, seq, S * seq, c, data.draw(st.integers(0, 1))))
                if not ends:
                    peers = data.draw(st.lists(st.integers(0, n), max_size=2))
                    waits.append(wait(r, c, seq, peers))
    seen = recording(
        calls, comms=comms, kinds=[("all_reduce", 4), ("barrier", 0)], waits=waits,
        num_ranks=n,
    )  # fmt: skip
    found = diagnose(seen, 9 * S)
    text = page(found, seen)

    assert text
    for one in found.findings:
        assert one.inside >= 1
        assert one.odd or one.unknown or one.kind == "stuck"
        assert set(found.causes) <= set(range(n)) | {
            m for f in found.findings for m in f.unknown
        }
    assert found.document()["known"] == tuple(range(n))


def test_a_page_as_people_read_it(golden):
    """One page: who to look at first, then each communicator."""
    comms = {"world": (0, 1, 2, 3), "world/0.1": (2, 3)}
    kinds = [kind("all_reduce", 65536, "all_reduce of 16384 float32 op=sum")]
    calls = [done(r, 1) for r in range(4)]
    calls += [runs(0, 2), runs(1, 2), runs(2, 1, comm=1)]
    waits = [
        wait(0, 0, 2, [2], "wait r2.0 n=1"),
        wait(1, 0, 2, [2], "wait r2.0 n=1"),
        wait(2, 1, 1, [1], "wait r1.0 n=1"),
    ]
    seen = recording(calls, comms=comms, kinds=kinds, waits=waits)
    golden(page(diagnose(seen, 9 * S), seen))
