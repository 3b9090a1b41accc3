"""Sketches narrow the search; one that cannot hold is explained."""

from __future__ import annotations

import pytest

from stretto import topology
from stretto.errors import TopologyError, UnknownNameError
from stretto.synth import (
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
    rules = load_sketch(sketch).options(network) | {"splits": (1,)}
    found = synthesize("all_gather", network, 10**6, budget=Budget(seconds=0), **rules)

    assert found.us >= found.bound_us


def test_a_sketch_is_obeyed():
    """In a ring nobody sends but to the next place."""
    network = net("h200x4")
    rules = load_sketch("switch_ring").options(network)
    found = synthesize("all_gather", network, 10**6, budget=Budget(seconds=0), **rules)

    assert {1} == {(m.dst - m.src) % 4 for m in found.schedule.moves}


def test_rules_that_collide_are_named_with_the_rank():
    """Odd GPUs have the NICs, so an even carrier has no way out."""
    sketch = Sketch(name="bad", crossings={1: (0,)}, carriers={0: 2})

    with pytest.raises(
        TopologyError,
        match=r"data of rank 0 cannot reach ranks \[16.*carriers \{0: 2\}",
    ):
        sketch.options(net("dgx2x2"))


def test_a_symmetry_the_machine_lacks_is_named():
    """Places next to the NIC are not like the others."""
    with pytest.raises(TopologyError, match=r"rule symmetry \[1, 8\]"):
        Sketch(name="bad", symmetry=((1, 8),)).options(net("ndv2x2"))


def test_a_sketch_for_another_machine_is_refused():
    """It says which machines it is for."""
    with pytest.raises(TopologyError, match=r"want one like ndv2x\*"):
        load_sketch("ndv2_relay").options(net("h200x4"))
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
