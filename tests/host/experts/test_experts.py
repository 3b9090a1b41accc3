"""Dispatch and combine between processes, against the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.host.experts.oracle import TYPES, Case, random_case

import stretto
from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(250)]


def alike(got, want):
    """Whether bits are the same; what NumPy lacks is seen as raw."""
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and got.tobytes() == want.tobytes()


def one(comm, rng, seed):
    """Run one random case; return what is wrong, or nothing."""
    me, n = comm.rank, comm.num_ranks
    case, options = random_case(rng, n)
    raw = "uint16" if options["dtype"] == "bfloat16" else options["dtype"]
    ep = comm.experts(**options, check=seed % 3 == 0)
    wrong = []
    sent = ep.dispatch(case.xs[me].view(raw), case.ids[me], case.weights[me])
    rows, scales = case.dispatched(me)
    flat = np.array(sent.rows).reshape(-1, options["hidden"])
    scaled = None if scales is None else np.array(sent.scales).reshape(scales.shape)
    if options["layout"] == "rank":  # what is behind a rank's rows may be anything
        beyond = [one is None for one in case.lines(me)]
        flat[beyond] = 0
        if scales is not None:
            scaled[beyond] = 0
    if not alike(flat, rows):
        wrong.append("rows")
    if scales is not None and not alike(scaled, scales):
        wrong.append("scales")
    if np.asarray(sent.ids).tolist() != case.local_ids(me):
        wrong.append("ids")
    if [len(r) for r in case.expert_rows(me)] != sent.counts_host():
        wrong.append("counts")
    made = []
    for q in range(n):
        shape = (len(case.lines(q)), options["hidden"])
        made.append(rng.standard_normal(shape).astype(TYPES[options["dtype"]]))
    mine = made[me].view(raw)
    if options["layout"] == "rank":
        mine = mine.reshape(n, options["max_tokens"], -1)
    got = ep.combine(mine, sent)
    want = case.combined(me, made, options["order"])
    if not alike(got, want):
        wrong.append("combined")
    return [f"seed {seed}: {wrong} of {options}"] if wrong else []


def many(comm, first, count):
    wrong = []
    for seed in range(first, first + count):
        wrong += one(comm, np.random.default_rng(seed), seed)
    return wrong[:5]


def test_random_cases_are_the_definition_bit_for_bit():
    """Layouts, orders, types, alignments, placements; no tokens, -1, duplicates."""
    assert [[]] * 3 == stretto.spawn(many, 0, 60, num_ranks=3)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_ten_thousand_random_cases(num_ranks):
    """As above, many more."""
    count = 10_000 // 3 + 1
    assert [[]] * num_ranks == stretto.spawn(
        many, 1000, count, num_ranks=num_ranks, deadline_s=120
    )


def transposes(comm):
    """Return inner products that are to be alike: <D x, y> and <x, C y>, summed."""
    rng = np.random.default_rng(5)
    n, me, found = comm.num_ranks, comm.rank, []
    for layout in ("token", "expert", "rank"):
        ep = comm.experts(6, 3, 32, 9, layout=layout, dtype="float32")
        tokens = [int(t) for t in rng.integers(0, 10, n)]
        ids = [rng.integers(-1, 6, (t, 3)) for t in tokens]
        xs = [rng.integers(-9, 9, (t, 32)).astype(np.float32) for t in tokens]
        sent = ep.dispatch(xs[me], ids[me])
        y = np.random.default_rng(me).integers(-9, 9, sent.rows.shape)
        y = y.astype(np.float32)
        back = ep.combine(y, sent)
        whole = np.array(sent.rows)
        if layout == "rank":
            for s, count in enumerate(np.asarray(sent.sources)):
                whole[s, count:] = 0
        pair = np.array([(whole * y).sum(), (xs[me] * back).sum()])
        found.append(comm.all_reduce(pair.astype(np.float64)).tolist())
    return found


def test_dispatch_and_combine_are_transposes():
    """In integers, exactly."""
    for each in stretto.spawn(transposes, num_ranks=2):
        assert 3 == len(each)
        for left, right in each:
            assert left == right != 0


def one_rank_bits(comm):
    """Return bits of a combine in order k, of all tokens, by placement."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((12, 64)).astype(np.float32)
    ids = rng.integers(0, 8, (12, 4))
    weights = rng.random((12, 4)).astype(np.float32)
    part = 12 // comm.num_ranks
    mine = slice(part * comm.rank, part * (comm.rank + 1))
    found = []
    for placement in (None, [int(q) for q in rng.integers(0, comm.num_ranks, 8)]):
        ep = comm.experts(8, 4, 64, 12, dtype="float32", order="k", placement=placement)
        sent = ep.dispatch(x[mine], ids[mine], weights[mine])
        owner = ep.geometry.owner
        experts = [e for e in range(8) if owner[e] == comm.rank]
        rows = sent.rows.copy()
        for nth, e in enumerate(experts):
            rows[sent.starts[nth] : sent.starts[nth + 1]] *= np.float32(1.1) ** e
        found.append(ep.combine(rows, sent).tobytes())
    return found


def test_order_k_gives_one_ranks_bits_for_any_ranks_and_placement():
    """So a model's answer does not depend on how it is spread."""
    (alone,) = stretto.spawn(one_rank_bits, num_ranks=1)
    spread = stretto.spawn(one_rank_bits, num_ranks=3)

    assert alone[0] == alone[1]
    for each in range(2):
        assert alone[0] == b"".join(found[each] for found in spread)


def halves(comm):
    """Start operations and wait for them later, or in another order, or never."""
    ep = comm.experts(4, 2, 16, 8, dtype="float32")
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal((5, 16)).astype(np.float32)
    ids = rng.integers(0, 4, (5, 2))
    first = ep.start_dispatch(x, ids)
    second = ep.start_dispatch(2 * x, ids)
    b, a = second.wait(), first.wait()
    ep.start_combine(a.rows, a)
    late = ep.start_combine(b.rows, b)
    summed = comm.all_reduce(np.ones(3, np.float32))
    return bool(np.array_equal(late.wait(), 4 * x)) and summed.tolist() == [2.0] * 3


def test_halves_may_be_waited_for_in_any_order():
    """One operation is under way at a time; results are kept for who asks."""
    assert [True, True] == stretto.spawn(halves, num_ranks=2)


def again(comm):
    """Wait for each operation once more, on one rank alone."""
    ep = comm.experts(4, 2, 16, 8, dtype="float32", check=True)
    x, ids = np.ones((5, 16), np.float32), np.tile([0, 3], (5, 1))
    there = ep.start_dispatch(x, ids)
    sent = there.wait()
    same = comm.rank or there.wait() is sent
    back = ep.start_combine(sent.rows, sent)
    out = back.wait()
    wrong = ep.start_dispatch(x, ids + 9)
    said = []
    for _ in range(2 - comm.rank):
        try:
            wrong.wait()
        except CallError as e:
            said.append(str(e))
    return bool(same and back.wait() is out) and len(set(said)) == 1 == out.max() / 2


def test_who_waits_again_has_the_same_and_asks_nobody():
    """Also where what came is checked, which all ranks do together, and of errors."""
    assert [True, True] == stretto.spawn(again, num_ranks=2, deadline_s=20.0)


def apart(comm):
    """Wait for two dispatches that are checked, each rank in another order."""
    ep = comm.experts(4, 2, 16, 8, dtype="float32", check=True)
    x = np.ones((5, 16), np.float32)
    begun = [ep.start_dispatch(x, np.tile(ids, (5, 1))) for ids in ([0, 3], [1, -1])]
    waits = begun if comm.rank else begun[::-1]
    sent = [one.wait().counts_host() for one in waits]
    return sent if comm.rank else sent[::-1]


def test_what_is_checked_may_be_waited_for_in_any_order():
    """All ranks check the same dispatch at once, whichever they wait for first."""
    found = stretto.spawn(apart, num_ranks=2, deadline_s=20.0)
    assert [[[10, 0], [0, 10]], [[0, 10], [0, 0]]] == found


def refusals(comm):
    """Return what each bad call raises, which rank 1 alone makes wrong."""
    one_is_wrong, said = comm.rank == 1, []

    def refused(work):
        try:
            work()
        except (CallError, stretto.UnknownNameError) as e:
            said.append(str(e))
        else:
            said.append("")

    kinds = [{"max_tokens": 8}, {"top_k": 5}, {"hidden": 100, "quantise": "fp8_128"},
             {"layout": "tokens"}, {"placement": [0, 1, 2, 9]},
             {"num_experts": 0}]  # fmt: skip
    for wrong in kinds:
        how = {"num_experts": 4, "top_k": 2, "hidden": 128, "max_tokens": 4}
        if one_is_wrong:
            how |= wrong
        refused(lambda how=how: comm.experts(**how, dtype="float32"))
    ep = comm.experts(4, 2, 128, 4, dtype="float32")
    good = np.ones((3, 128), np.float32), np.zeros((3, 2), np.int64)
    bads = [
        (good[0], np.array([[0, 1], [2, 4], [0, 0]])),
        (good[0], np.array([[0, 1], [2, -2], [0, 0]])),
        (np.ones((5, 128), np.float32), np.zeros((5, 2), np.int64)),
        (np.ones((3, 64), np.float32), good[1]),
        (good[0].astype(np.float64), good[1]),
        (good[0], np.zeros((3, 3), np.int64)),
        (good[0], good[1].astype(np.float32)),
        (good[0], good[1], np.ones((3, 1), np.float32)),
    ]
    for bad in bads:
        refused(lambda bad=bad: ep.dispatch(*(bad if one_is_wrong else good)))
    sent = ep.dispatch(*good)
    fitting = sent.rows
    odd = fitting[:-1] if one_is_wrong and len(fitting) else fitting
    if one_is_wrong and not len(fitting):
        odd = np.ones((1, 128), np.float32)
    refused(lambda: ep.combine(odd, sent))
    refused(lambda: ep.dispatch(*good) if one_is_wrong else ep.combine(fitting, sent))
    again = ep.combine(fitting, ep.dispatch(*good))
    return said, bool(np.array_equal(again, 2 * good[0]))


def test_bad_calls_are_refused_alike_on_all_ranks_and_say_whose():
    """One sentence each; the next good call works."""
    each = stretto.spawn(refusals, num_ranks=3)
    said = each[0][0]

    assert all(works for _, works in each)
    assert [said] * 3 == [texts for texts, _ in each]
    assert [] == [nth for nth, text in enumerate(said) if "rank 1" not in text]
    for part in ("max_tokens=8", "top_k=5", "multiple of 128", "tokens", "rank 9",
                 "num_experts=0", "ids[1, 1]=4", "ids[1, 1]=-2", "5 tokens", "3, 64",
                 "float64", "3, 3", "float32; want whole numbers", "3, 1",
                 "combine: rows", "called dispatch"):  # fmt: skip
        assert [True] == [True for text in said if part in text][:1], part


def test_the_oracle_refuses_what_is_wrong():
    """A row that is elsewhere, or an order that is another, is another result."""
    rng = np.random.default_rng(0)
    case, _ = random_case(rng, 2)
    xs = [rng.standard_normal((3, 8)).astype(np.float32) for _ in range(2)]
    ids = [np.array([[0, 1], [1, 0], [0, -1]]), np.array([[1, 1], [0, 0], [-1, -1]])]
    weights = [rng.random((3, 2)).astype(np.float32) for _ in range(2)]
    case = Case(xs, ids, weights, [0, 1], "expert", 1, 3)
    rows = [case.dispatched(q)[0] for q in range(2)]

    assert 5 == len(rows[0])
    swapped = [rows[0][::-1], rows[1]]
    assert not np.array_equal(
        case.combined(0, rows, "k"), case.combined(0, swapped, "k")
    )
