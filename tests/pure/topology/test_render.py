"""Machines shown as text and as a picture."""

from xml.etree import ElementTree

import pytest

from stretto.topology import draw, load, names, render

SVG = "{http://www.w3.org/2000/svg}"


def test_a_machine_reads_in_a_few_lines():
    """Equal links are listed once, with an example."""
    text = render(load("h200x2").degraded(dead_links=["0->nvswitch"], dead_ranks=[1]))

    assert (
        "h200x2: H200 GPUs behind NVSwitch, fitted to what was measured on four\n"
        "  2 gpu ranks\n"
        "  dead ranks: 1\n"
        "      1 links  rank -> nvswitch                 dead 0.37 us  0->nvswitch\n"
        "      2 links  nvswitch -> rank             390 GB/s 0.37 us"
        "  nvswitch->0, ...\n"
        "      1 links  rank -> nvswitch             390 GB/s 0.37 us  1->nvswitch\n"
    ) == text[: text.index("  costs")]


def test_boxes_and_what_joins_them_are_told_apart():
    """Direct links between boxes are a kind of their own."""
    text = render(load("ndv2x2"))

    assert "  16 gpu ranks in 2 boxes of 8; NICs of a box: 1\n" in text
    assert "rank -> rank between boxes    12.5 GB/s 1.3 us  0->9, ..." in text
    assert text.endswith("  costs  background_puts\n")


@pytest.mark.parametrize("name", names())
def test_every_machine_can_be_drawn(name):
    """The picture is XML with a circle for every rank of the boxes it shows."""
    m = load(name)
    root = ElementTree.fromstring(draw(m))

    shown = (
        min(m.num_ranks, 8 * m.ranks_per_box) if m.ranks_per_box > 1 else m.num_ranks
    )
    assert shown == len(root.findall(f"{SVG}circle"))
    texts = " ".join(t.text for t in root.findall(f"{SVG}text"))
    assert ("first 8 of" in texts) == (shown < m.num_ranks)


def test_a_dead_link_is_dashed():
    """What is dead is seen."""
    m = load("dgx1").degraded(dead_links=["0->1"])

    assert 1 == draw(m).count("stroke-dasharray")


TWO_LEAVES = """
about = "two switches and a trunk"
kind = "gpu"
[box]
ranks = {ranks}
[[box.switches]]
name = "leaf"
groups = {groups}
bandwidth_gbytes_per_s = 5
latency_us = 0
[[box.switches]]
name = "trunk"
over = "leaf"
bandwidth_gbytes_per_s = 2
latency_us = 1
"""


@pytest.mark.parametrize("ranks", [4, 6, 8])
def test_no_line_goes_through_a_rank_that_it_does_not_join(tmp_path, ranks):
    """Else the trunk of two switches seems to go by way of a rank."""
    path = tmp_path / "two.toml"
    half = list(range(ranks // 2))
    groups = [half, [r + ranks // 2 for r in half]]
    path.write_text(TWO_LEAVES.format(ranks=ranks, groups=groups))
    root = ElementTree.fromstring(draw(load(path)))
    circles = [
        complex(float(c.get("cx")), float(c.get("cy")))
        for c in root.findall(f"{SVG}circle")
    ]
    for line in root.findall(f"{SVG}line"):
        a, b = (
            complex(float(line.get(f"x{end}")), float(line.get(f"y{end}")))
            for end in "12"
        )
        for middle in circles:
            along = ((middle - a) * (b - a).conjugate()).real / abs(b - a) ** 2
            if 0.01 < along < 0.99:
                assert abs(middle - (a + along * (b - a))) > 13
