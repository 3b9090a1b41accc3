"""Sketches narrow the search; one that cannot hold is explained."""

from __future__ import annotations

import pytest

from stretto import topology
from stretto.compiler.verify import verify
from stretto.errors import TopologyError, UnknownNameError
from stretto.synth import (
    COLLECTIVES,
    Budget,
    Sketch,
    from_machine,
    load_sketch,
    sketches,
    sketches_for,
    synthesize,
)


def net(name):
    """Return a machine's network."""
    return from_machine(topology.load(name))


def test_every_machine_ships_with_a_sketch():
    """Whatever `stretto list` names can be sketched from the start."""
    assert [] == [m for m in topology.names() if not sketches_for(m)]


@pytest.mark.parametrize(
    ("machine", "sketch"),
    [
        ("ndv2x2", "ndv2_relay"),
        ("dgx2x2", "dgx2_pairs"),
        ("dgx1", "ndv2_box"),
        ("h200x4", "switch_ring"),
        ("mi250x", "mi250x"),
        ("torus4x4", "neighbours"),
    ],
)
def test_shipped_sketches_hold(machine, sketch):
    """Each leads to a complete schedule."""
    network = net(machine)
    found = synthesize(
        "all_gather",
        network,
        10**6,
        splits=(1,),
        budget=Budget(seconds=0),
        sketch=load_sketch(sketch),
    )

    assert found.us >= found.bound_us


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_sketch_is_obeyed(collective):
    """In a ring nobody sends but to the next place, sums and copies alike."""
    found = synthesize(
        collective,
        net("h200x4"),
        10**6,
        splits=(2,),
        budget=Budget(seconds=1),
        sketch=load_sketch("switch_ring"),
    )
    assert {1} == {(m.dst - m.src) % 4 for m in found.schedule.moves}
    assert verify(found.program("it"))


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "reduce_scatter"])
def test_a_sketch_that_is_not_the_same_for_all_narrows_the_symmetry(collective):
    """Eight rails are alike, but only place 3 may cross: no rotation is left."""
    sketch = Sketch(name="one", crossings={3: (3,)}, slack=1)
    network = net("dgx_h100x2")
    found = synthesize(
        collective, network, 10**6, splits=(1,), budget=Budget(seconds=0), sketch=sketch
    )
    crossing = [m for m in found.schedule.moves if m.src // 8 != m.dst // 8]

    assert crossing
    assert {3} == {m.src % 8 for m in crossing} | {m.dst % 8 for m in crossing}
    assert 2 == found.schedule.symmetry.order


def test_all_to_all_under_a_sketch_is_as_fast_as_its_ways_allow():
    """One NIC's worth of crossings: 64 parts a direction over 12.5 GB/s."""
    found = synthesize(
        "all_to_all",
        net("ndv2x2"),
        10**9,
        splits=(4,),
        budget=Budget(seconds=0),
        sketch=load_sketch("ndv2_relay"),
    )
    crossing = [m for m in found.schedule.moves if m.src // 8 != m.dst // 8]

    assert {(0, 1)} == {(m.src % 8, m.dst % 8) for m in crossing}
    assert found.us <= 321_000


def test_rules_that_collide_are_named_with_the_rank():
    """Odd GPUs have the NICs, so an even carrier has no way out."""
    sketch = Sketch(name="bad", crossings={1: (0,)}, carriers={0: 2})

    with pytest.raises(
        TopologyError,
        match=r"data of rank 0 cannot reach ranks \[16.*carriers \{0: 2\}",
    ):
        sketch.check(net("dgx2x2"), range(32))


def test_only_rules_that_matter_are_named():
    """A ring inside the box does not keep data from crossing; the carrier does."""
    sketch = Sketch(name="bad", crossings={1: (1,)}, carriers={6: 4}, switch="ring")

    with pytest.raises(TopologyError, match="rank 6 cannot reach") as failed:
        sketch.check(net("dgx_h100x2"), [6])
    said = str(failed.value)
    assert "crossings {1: (1,)}, carriers {6: 4}" in said
    assert "ring" not in said


def test_an_infeasible_sketch_of_a_gather_names_the_root():
    """What is gathered follows the sketch backwards from the root."""
    sketch = Sketch(name="bad", carriers={5: 2}, crossings={1: (0,)})

    with pytest.raises(TopologyError, match="the data of rank 5 cannot reach"):
        synthesize("gather", net("dgx2x2"), 10**6, root=5, sketch=sketch)


def test_a_symmetry_the_machine_lacks_is_named():
    """Places next to the NIC are not like the others."""
    with pytest.raises(TopologyError, match=r"rule symmetry \[1, 8\]"):
        Sketch(name="bad", symmetry=((1, 8),)).turns(net("ndv2x2"))


def test_a_sketch_for_another_machine_is_refused():
    """It says which machines it is for."""
    with pytest.raises(TopologyError, match=r"want one like ndv2x\*"):
        load_sketch("ndv2_relay").check(net("h200x4"), [0])
    with pytest.raises(UnknownNameError, match="ndv2_relay"):
        load_sketch("ndv2_rely")
    assert "ndv2_relay" in sketches()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("speed = 1", "want only about, carriers"),
        ('switch = "most"', "want 'all' or 'ring'"),
        ("slack =", "sketch own"),
        ("symmetry = [1]", r"symmetry \[\[o, z\], ...\]"),
    ],
)
def test_a_malformed_sketch_says_what_is_wanted(tmp_path, text, why):
    """The file is named, and what it may hold."""
    path = tmp_path / "own.toml"
    path.write_text(text)

    with pytest.raises(TopologyError, match=why):
        load_sketch(str(path))
    with pytest.raises(TopologyError, match="no sketch file"):
        load_sketch(str(tmp_path / "none.toml"))
