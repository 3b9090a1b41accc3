"""Networks of switches in levels, and the hash that spreads flows over equal routes."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from stretto.errors import TopologyError
from stretto.topology import load


@pytest.mark.parametrize(
    ("name", "ranks", "routes"),
    [("leaf_spine6x4", 24, 2), ("clos8x8", 64, 8), ("fat_tree4", 16, 4),
     ("fat_tree8", 128, 16), ("torus4x4", 16, 1), ("dgx1", 8, 1)],
)  # fmt: skip
def test_equal_routes_are_as_many_as_there_are_ways_over_the_top(name, ranks, routes):
    """Each is a way, no two are one, and `route` is among them."""
    m = load(name)
    found = m.equal_routes(0, m.num_ranks - 1)

    assert ranks == m.num_ranks
    assert (routes if name != "torus4x4" else len(found)) == len(set(found))
    assert m.route(0, m.num_ranks - 1) in found
    for route in found:
        ends = [m.links[e] for e in route.links]
        assert (0, m.num_ranks - 1) == (ends[0].src, ends[-1].dst)
        assert all(a.dst == b.src for a, b in itertools.pairwise(ends))


def test_flows_are_spread_by_a_seeded_hash():
    """All routes are used about equally; another seed spreads otherwise."""
    m = load("clos8x8")
    pairs = [(a, 63 - a) for a in range(32)]
    used = Counter(m.flow_route(a, b, f).links[1] for a, b in pairs for f in range(64))
    other = replace(m, ports=replace(m.ports, hash_seed=1))

    assert 32 == len(used)
    assert all(20 < n < 110 for n in used.values())
    assert [m.route(*p) for p in pairs] == [load("clos8x8").route(*p) for p in pairs]
    assert [m.route(*p) for p in pairs] != [other.route(*p) for p in pairs]


def test_a_flow_avoids_dead_links():
    """What is dead is no route."""
    m = load("leaf_spine2x2").degraded(dead_links=["leaf0->spine0"])

    assert 1 == len(m.equal_routes(0, 3))
    assert "leaf0->spine1" == m.links[m.flow_route(0, 3, 5).links[1]].name


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("packet_nbytes = 10", "packet_nbytes"),
        ("ecn_max_share = 1.5", "a share from 0 to 1"),
        ("ecn_min_us = 500", "ecn_max_us"),
        ("buffer_us = inf", "buffer_us"),
        ("spread = true", "no such key"),
    ],
)
def test_settings_of_ports_are_checked(tmp_path, text, want):
    """The file, the key and what is wanted are said."""
    path = tmp_path / "mine.toml"
    path.write_text(
        f'about = "x"\nkind = "gpu"\n[ports]\n{text}\n[leaf_spine]\nleaves = 2\n'
        "hosts = 2\nspines = 1\nbandwidth_gbytes_per_s = 1\nlatency_us = 1\n"
    )
    with pytest.raises(TopologyError, match=want) as told:
        load(path)

    assert "mine.toml" in str(told.value)


def test_an_odd_fat_tree_is_refused():
    """Half of the ports go up."""
    with pytest.raises(TopologyError, match="even"):
        load("fat_tree5")
