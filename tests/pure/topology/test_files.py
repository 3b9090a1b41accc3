"""Machine files: what a user may write, and the one clear line for what is wrong."""

import re
from pathlib import Path

import pytest

from stretto import algorithms
from stretto.errors import CollectiveTimeout, TopologyError
from stretto.executors.sim import simulate
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.topology import load, render
from stretto.verify import verify, verify_plan

LISTED = """
about = "three in a row"
kind = "cpu"
ranks = 3
[[switches]]
name = "hub"
[[links]]
src = 0
dst = "hub"
bandwidth_gbytes_per_s = 2
latency_us = 1.5
[[links]]
src = "hub"
dst = 1
both_ways = false
bandwidth_gbytes_per_s = 2
latency_us = 1.5
"""

BOX = """
about = "a box"
kind = "gpu"
[box]
ranks = 4
[[box.meshes]]
pairs = [[0, 1]]
bandwidth_gbytes_per_s = 5
latency_us = 0
"""


def refused(tmp_path, text, match):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(TopologyError, match=match) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_may_list_its_links(tmp_path):
    """Ranks by number, switches by name; the file's name is the machine's."""
    path = tmp_path / "row.toml"
    path.write_text(LISTED)
    m = load(str(path))

    assert ("row", 3, "cpu", 1) == (m.name, m.num_ranks, m.kind, len(m.switches))
    assert ["0->hub", "hub->0", "hub->1"] == [k.name for k in m.links]
    assert 3.0 == m.route(0, 1).latency_us


def test_a_file_may_draw_a_shape_and_add_links(tmp_path):
    """Listed links come beside what a shape generates."""
    path = tmp_path / "box.toml"
    extra = "[[links]]\nsrc = 2\ndst = 3\nbandwidth_gbytes_per_s = 1\nlatency_us = 0\n"
    path.write_text(BOX + extra)

    assert ["0->1", "1->0", "2->3", "3->2"] == [k.name for k in load(path).links]


def test_the_names_in_a_user_s_file_keep_their_defaults(tmp_path):
    """A parameter has its default where a file is loaded by its path."""
    path = tmp_path / "p.toml"
    text = BOX.replace("ranks = 4", 'ranks = "n"')
    path.write_text(text + "[parameters.n]\ndefault = 6\n")

    assert 6 == load(path).num_ranks


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("ranks = 4", "ranks = 4.5", r"box.ranks: got 4.5; want a whole number, 1 or"),
        ("ranks = 4", "", r"box.ranks: got nothing; want a whole number"),
        (
            "ranks = 4",
            "ranks = 4\ngpus = 8",
            r"box.gpus: no such key; want one of meshes, nics",
        ),
        (
            "[[0, 1]]",
            "[[0, 4]]",
            r"box.meshes\[0\].pairs: .*of 2 whole numbers below 4",
        ),
        ("[[0, 1]]", "[[0]]", r"want a list of lists of 2 whole numbers below 4"),
        ("= 5", "= 'fast'", r"bandwidth_gbytes_per_s: got 'fast'; want a number, 0 or"),
        ("= 5", "= 1e-320", r"bandwidth_gbytes_per_s: got 1e-320; want a rate above 0"),
        ("= 5", "= inf", r"bandwidth_gbytes_per_s: got inf; want a rate above 0"),
        (
            "latency_us = 0",
            "latency_us = 1e300",
            r"latency_us: got 1e\+300; want a time",
        ),
        ("= 5", "= 0", r"bandwidth_gbytes_per_s: got 0; want a rate above 0"),
        (
            "latency_us = 0",
            "latency_us = -1",
            r"latency_us: got -1; want a number, 0 o",
        ),
        ("latency_us = 0", "latency_us = nan", r"latency_us: got nan; want a number"),
        ("about =", "abuot =", r"about: got nothing; want a text"),
        ("[[box.meshes]]", "[box.meshes]", r"want a list of tables, each under \[\["),
        ("[box]", "[[box]]", r"box: got .*; want a table"),
        ("kind", "box", r"not TOML: Cannot "),
        ("[[0, 1]]", "[[0, 1], [1, 0]]", r"link 1->0: given twice"),
    ],
)
def test_a_malformed_file_gets_one_clear_line(tmp_path, old, new, match):
    """The line names file, key, what was got and what is wanted."""
    assert old in BOX
    path = tmp_path / "mine.toml"
    path.write_text(BOX.replace(old, new, 1))

    with pytest.raises(TopologyError, match=match) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert "mine" in str(caught.value)


COSTS = BOX + "[costs]\n"
JOINED = "[[box.switches]]\nname = 's'\nbandwidth_gbytes_per_s = 1\nlatency_us = 0\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('about = ""\nkind = "gpu"\n', r"no shape; want one of \[box\]"),
        (BOX.replace('"gpu"', '"gpu"\nranks = 3', 1), r"\['box', 'ranks'\]"),
        (COSTS + "packet_efficiency = 1.5", r"efficiency: got 1.5; want a share"),
        (COSTS + "op_us = 1", r"costs.op_us: .*op_overhead_us"),
        (COSTS + "copy_gbytes_per_s = 0", r"costs.copy.*: got 0; want a rate above"),
        (BOX + JOINED + "groups = 'some'", r"groups: got 'some'; want 'all'"),
        (BOX + JOINED + "groups = [[9]]", r"groups: .* below 4"),
        (BOX + JOINED + "over = 'nic'", r"over: .*switches given before"),
        (
            BOX + JOINED + "senders = [0]\nreceivers = [true, 'x']",
            r"receivers: .*a list of whole numbers below 4",
        ),
        (LISTED.replace('"hub"\nb', '"hbu"\nb'), r"dst: got 'hbu'; want a r"),
        (LISTED.replace("src = 0", "src = 7"), r"src: got 7; want a rank's"),
        (LISTED + '[[switches]]\nname = "hub"', r"two switches have one name"),
        (LISTED.replace("dst = 1", "dst = true"), r"dst: got True; want a"),
        (BOX.replace("[[0, 1]]", "[[0, true]]"), r"box\.meshes\[0\]\.pairs: got"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, text, match):
    """One shape, costs that can be, switches and links that join what there is."""
    refused(tmp_path, text, match)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    """A path that ends in .toml is a file, never a name."""
    with pytest.raises(TopologyError, match=r"gone.toml: No such file .*want a TOML"):
        load(str(tmp_path / "gone.toml"))


def test_the_guide_s_file_is_a_machine(tmp_path):
    """What docs/guides/machines.md shows can be loaded."""
    page = Path(__file__).parents[3] / "docs" / "guides" / "machines.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    path = tmp_path / "square.toml"
    path.write_text(text)

    m = load(path)
    assert ["bridge", "2"] == [m.node_name(m.links[i].dst) for i in m.route(0, 2).links]


def test_speeds_are_numbers_that_mean_something(tmp_path):
    """No endless latency; a rate that is tiny is still a rate."""
    endless = LISTED.replace("latency_us = 1.5", "latency_us = inf", 1)
    refused(tmp_path, endless, r"links\[0\]\.latency_us: got inf; want a time below")
    path = tmp_path / "slow.toml"
    path.write_text(LISTED.replace("gbytes_per_s = 2", "gbytes_per_s = 1e-7"))

    assert 1e-7 == load(path).links[0].bandwidth_gbytes_per_s


def test_a_symmetry_is_one(tmp_path):
    """A file that claims what its links do not have is told so."""
    ring = BOX.replace("[[0, 1]]", "[[0, 1], [1, 2], [2, 3], [3, 0]]")
    for claimed, where in (
        ("symmetries = [[1, 2, 3, 0], [1, 0, 2, 3]]", r"box\.symmetries\[1\]"),
        ("rotations = [2, 1]", ""),
    ):
        text = ring.replace("ranks = 4", f"ranks = 4\n{claimed}")
        if where:
            refused(tmp_path, text, rf"{where}: got \(1, 0, 2, 3\); want a symmetry")
        else:
            path = tmp_path / "ring.toml"
            path.write_text(text)
            assert 2 == len(load(path).symmetries)


TWO = """
about = "four ranks, two to a switch"
kind = "gpu"
[box]
ranks = 4
[[box.switches]]
name = "left"
groups = [[0, 1]]
bandwidth_gbytes_per_s = 5
latency_us = 0
[[box.switches]]
name = "right"
groups = [[2, 3]]
bandwidth_gbytes_per_s = 5
latency_us = 0
"""
TRUNK = """
[[box.switches]]
name = "trunk"
over = ["left", "right"]
bandwidth_gbytes_per_s = 2
latency_us = 1
"""


def test_a_switch_may_join_switches_of_several_names(tmp_path):
    """As it joins those of one name; each is joined once."""
    path = tmp_path / "two.toml"
    path.write_text(TWO + TRUNK)
    m = load(path)

    assert 4 == sum("trunk" in link.name for link in m.links)
    way = [m.links[i].name for i in m.route(0, 2).links]
    assert ["0->left", "left->trunk", "trunk->right", "right->2"] == way
    refused(
        tmp_path,
        TWO + TRUNK.replace('"right"]', '"rigth"]'),
        r"over: got \['left', 'rigth'\]; .*given before: left, right",
    )


def test_ranks_that_nothing_joins_are_told(tmp_path):
    """By the text of the machine, by its routes, and by a simulation."""
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    m = load(path)

    assert "no way from rank 0 to ranks 2, 3\n" in render(m)
    assert "no way to rank 0 from ranks 2, 3\n" in render(m)
    with pytest.raises(TopologyError, match=r"from rank 1 to rank 2.*`over` those"):
        m.route(1, 2)
    ring = verify(algorithms.get("all_reduce/ring").build(4))
    plan = verify_plan(lower(ring, Schedule.parse("push bulk")))
    with pytest.raises(CollectiveTimeout, match="no chain of links that work"):
        simulate(plan, m, nbytes=1024)


@pytest.mark.parametrize("key", ["rank", "swiches", "zzz"])
def test_a_key_that_is_none_is_answered_with_the_nearest(tmp_path, key):
    """The sentence does not ask for what it refuses."""
    near = {"rank": "ranks", "swiches": "switches"}.get(key)
    meant = f"; did you mean {near}\\?$" if near else "$"
    refused(
        tmp_path,
        BOX.replace("ranks = 4", f"ranks = 4\n{key} = 1"),
        f"box.{key}: no such key; want one of meshes, nics, ranks, switches{meant}",
    )


def test_a_machine_is_one_line_where_it_is_shown():
    """A notebook is not flooded with a thousand links."""
    said = repr(load("dgx_h100x128"))
    assert said.startswith("<Machine dgx_h100x128: 1024 gpu ranks, ")
    assert len(said) < 100
