"""What is aggregated is what a plain loop would find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.studio.made import recording

from stretto import topology
from stretto.program import algorithms
from stretto.studio.analysis.binned import spread
from stretto.studio.analysis.flows import Plans, flows_of
from stretto.studio.analysis.groups import groups
from stretto.studio.analysis.index import Index
from stretto.studio.analysis.link_use import link_use, traffic
from stretto.studio.inputs.given import NamedInputs
from stretto.studio.inputs.simulated import simulated
from stretto.studio.serve.pack import pack, unpack
from stretto.studio.units import size_name
from stretto.watch import dense_ids


def by_hand(begin, end, amount, bins):
    """Return what an amount leaves in each bin."""
    end = max(end, begin + 1e-6)
    return [
        amount * max(0.0, min(end, k + 1) - max(begin, k)) / (end - begin)
        for k in range(bins)
    ]


TIMES = st.floats(0, 7.99, allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 2), TIMES, TIMES, st.floats(0, 1e6))))
def test_amounts_are_spread_as_by_hand(rows):
    """Every amount lies evenly between its begin and its end, and none is lost."""
    rows = [(key, min(a, b), max(a, b), amount) for key, a, b, amount in rows]
    expected = np.zeros((3, 8))
    for key, begin, end, amount in rows:
        expected[key] += by_hand(begin, end, amount, 8)
    columns = [np.array(c, float) for c in zip(*rows, strict=True)] or [np.zeros(0)] * 4
    keys = columns[0].astype(np.int64)
    found = spread(keys, *columns[1:], num_keys=3, num_bins=8)

    assert expected == pytest.approx(found, rel=1e-6, abs=1.0)
    assert sum(row[3] for row in rows) == pytest.approx(found.sum(), rel=1e-6, abs=1.0)


@given(
    st.lists(
        st.one_of(st.integers(-9, 9), st.integers(-(1 << 62), 1 << 62)), max_size=9
    )
)
def test_distinct_values_are_found_with_and_without_sorting(values):
    """Whether they lie close together or not."""
    values = np.array(values, np.int64)
    distinct, places = dense_ids(values)

    assert sorted(set(values.tolist())) == distinct.tolist()
    assert values.tolist() == distinct[places].tolist()


def test_lateness_is_the_time_after_the_first_rank():
    """Of the same communicator and number, whatever the order of the calls."""
    made = recording(5, 7, seed=1)
    rng = np.random.default_rng(0)
    shuffled = made.calls[rng.permutation(len(made.calls))]
    index = Index(made.__class__(**{**parts(made), "calls": shuffled}))
    first = {}
    for call in shuffled:
        seq = int(call["seq"])
        first[seq] = min(first.get(seq, 1 << 62), int(call["enqueue"]))
    expected = [(int(c["enqueue"]) - first[int(c["seq"])]) / 1e3 for c in shuffled]

    assert expected == pytest.approx(index.late_us.tolist())
    assert 7 == index.num_instances


def parts(made):
    names = ("calls", "steps", "ranks", "comms", "kinds", "run", "dropped", "cut")
    return {name: getattr(made, name) for name in names}


def test_quantiles_of_a_group_are_those_of_its_calls():
    """p50 and p99 by order, the time after the last rank by collective."""
    index = Index(recording(8, 60))
    rows = {one.collective: one for one in groups(index)}
    kinds = [k.collective for k in index.recording.kinds]
    for name, row in rows.items():
        mine = index.lasted_us[index.calls["kind"] == kinds.index(name)]

        assert np.median(mine) == pytest.approx(row.p50_us, rel=0.02)
        assert np.sort(mine)[int(0.99 * len(mine))] == pytest.approx(row.p99_us)
        assert row.low_us <= row.p50_us <= row.high_us <= row.p99_us
        assert 20 == row.count
    assert sum(len(c) for c in [index.calls]) == 8 * 60
    chosen = index.instance_seq <= 9
    assert {3} == {one.count for one in groups(index, chosen)}


def simulation(name, ranks=4, machine="h200x4", schedule=""):
    program = algorithms.get(name).build(ranks)
    given = NamedInputs(program=program, nbytes=1 << 16, schedule=schedule)
    return simulated(given, topology.load(machine))


@pytest.mark.parametrize("schedule", ["", "packets", "pull bulk zero_copy copy:push"])
def test_pairs_exchange_what_the_algorithm_says(schedule):
    """two_shot: everybody sends everybody one part, twice, fetched or brought."""
    found = traffic(
        Index(simulation("all_reduce/two_shot", schedule=schedule)), Plans()
    )
    expected = np.full((4, 4), 2.0 * (1 << 14))
    np.fill_diagonal(expected, 0)

    assert expected == pytest.approx(found.nbytes)
    assert 0 == found.unknown_nbytes


def test_a_plan_that_is_not_the_recorded_one_is_not_believed():
    """Steps with several peers are then counted as unknown, not guessed."""
    made = simulation("all_reduce/two_shot")
    kind = made.kinds[0].__class__(
        **{
            **{n: getattr(made.kinds[0], n) for n in made.kinds[0].__slots__},
            "plan": "000000000000",
        }
    )
    index = Index(made.__class__(**{**parts(made), "kinds": (kind,)}))
    unknown = sum(flows.unknown_nbytes for flows in flows_of(index, Plans()))

    assert 4 * (1 << 14) == unknown


def test_links_carry_what_their_routes_do():
    """Each pair's bytes pass every link of its route; shares are of its bandwidth."""
    machine = topology.load("dgx_h200x2")
    index = Index(recording(16, 20, machine="dgx_h200x2"))
    found = traffic(index, Plans())
    use = link_use(index, found, machine)
    expected = {}
    for src, dst in zip(*np.nonzero(found.nbytes), strict=True):
        for link in machine.route(int(src), int(dst)).links:
            name = machine.links[link].name
            expected[name] = expected.get(name, 0.0) + found.nbytes[src, dst]
    named = zip(use.links, use.nbytes.sum(axis=1), strict=True)

    assert use.is_measured
    assert expected == pytest.approx({link.name: total for link, total in named})
    for link, row, share in zip(use.links, use.nbytes, use.share, strict=True):
        full = link.bandwidth_gbytes_per_s * 1e3 * use.bin_us
        assert row == pytest.approx(share * full)


def test_without_a_machine_pairs_stand_for_links():
    """The most that any moved in a bin is full."""
    index = Index(recording(8, 20))
    use = link_use(index, traffic(index, Plans()), None)

    assert not use.is_measured
    assert {f"{r}->{(r + 1) % 8}" for r in range(8)} == {k.name for k in use.links}
    assert 1.0 == pytest.approx(use.share.max())


def test_ranks_that_a_machine_does_not_have_are_shown_as_pairs():
    """A recording of more ranks than the machine that was named."""
    index = Index(recording(8, 9))
    use = link_use(index, traffic(index, Plans()), topology.load("h200x4"))

    assert not use.is_measured


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=9,
)


@given(st.dictionaries(st.text("xyz", max_size=3), VALUES, max_size=4))
def test_documents_are_packed_and_read_back(document):
    """Plain values come back as they are."""
    assert document == unpack(pack(document))


def test_arrays_are_packed_as_they_are():
    """Each of its own type, at a multiple of eight bytes, with what follows it."""
    kinds = ("u1", "i4", "f4", "f8", "u2")
    document = {k: np.arange(5).astype(k) for k in kinds} | {"nan": float("nan")}
    found = unpack(pack(document))

    assert found.pop("nan") is None
    for kind in kinds:
        assert document[kind].tolist() == found[kind].tolist()
        assert np.dtype(kind) == found[kind].dtype
    with pytest.raises(TypeError, match="int64"):
        pack({"x": np.arange(3)})


def test_sizes_are_spelled_as_people_do():
    """Binary."""
    assert ["8", "4K", "1.5M", "1G"] == [
        size_name(n) for n in (8, 4096, 3 << 19, 1 << 30)
    ]
