"""A proof takes nothing on trust: no box of nothing, no cut, no tile, no planner."""

import ast
import dataclasses
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.transfer.oracle import pairs

from stretto.errors import PlanError
from stretto.transfer.layouts import Layout
from stretto.transfer.plans import Deal, Plan, plan, proof, prove, prove_tiles
from stretto.transfer.plans.proof import prove_cut
from stretto.transfer.plans.split import pieces_of


def proves(made, **how):
    """Return whether a plan is proved."""
    try:
        prove(dataclasses.replace(made, **how))
    except PlanError:
        return False
    return True


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
@pytest.mark.parametrize("where", ["run", "axis", "all"])
@pytest.mark.parametrize("count", [0, -1, -(1 << 40)])
def test_a_box_of_nothing_is_refused_in_words(dtype, where, count):
    """Whatever it is that there is none of; and so are ever so many."""
    made = plan(
        Layout(f"H=8[0:4] X=6 D=2 {dtype}"), Layout(f"X=6 H=8[2:8] D=2 {dtype}")
    )
    (box,) = made.boxes
    assert box.axes
    axes = ((count, *box.axes[0][1:]), *box.axes[1:])
    wrong = {
        "run": {"run": count}, "axis": {"axes": axes},
        "all": {"run": count, "axes": axes},
    }[where]  # fmt: skip
    for boxes in (
        [dataclasses.replace(box, **wrong)],
        [box, dataclasses.replace(box, **wrong)],
    ):
        with pytest.raises(PlanError, match="a box of nothing"):
            prove(dataclasses.replace(made, boxes=tuple(boxes)))
    huge = dataclasses.replace(box, run=1 << 60)
    assert not proves(made, boxes=(huge,))
    assert proves(made)


def test_layouts_that_have_nothing_in_common_are_proved_to_move_nothing():
    """No boxes are right there, and wrong elsewhere."""
    whole = Layout("H=8 D=2 int8")
    apart = plan(whole.hold("H", 0, 4), whole.hold("H", 4, 8))
    assert () == apart.boxes
    assert proves(apart)
    assert not proves(plan(whole, whole), boxes=())
    assert not proves(apart, boxes=plan(whole, whole).boxes)
    assert not proves(plan(Layout("B=4 T=4 int8"), Layout("B=4 T=4 int8")), tokens=0)


def test_proving_takes_no_memory_for_what_is_large():
    """A plan of a terabyte is as quick as one of a few bytes."""
    tracemalloc.start()
    prove(plan(Layout(f"N={1 << 40} uint8"), Layout(f"N={1 << 40} uint8")))
    whole = Layout("L=4096 | KV=2 B=60000 T=16 H=8 D=128 bfloat16")
    prove(plan(whole, whole))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 << 20


@settings(max_examples=examples(100), deadline=None)
@given(pairs(), st.integers(1, 40), st.data())
def test_runs_that_are_cut_are_the_same_elements(drawn, most, data):
    """Each once; a piece that is changed, doubled or left out is caught."""
    made = plan(drawn[0], drawn[1])
    for box in made.boxes:
        pieces = list(pieces_of(made, box, most))
        prove_cut(made, box, pieces)
        at = data.draw(st.integers(0, len(pieces) - 1))
        one = pieces[at]
        wrong = [
            pieces[:at] + pieces[at + 1 :], [*pieces, one],
            *(
                [*pieces[:at], dataclasses.replace(one, **change), *pieces[at + 1 :]]
                for change in (
                    {"run": one.run + 1}, {"run": 0}, {"src_at": one.src_at + 1},
                    {"dst_at": one.dst_at + made.dst.itemsize},
                    {"dst_part": one.dst_part + 1}, {"axes": (*one.axes, (2, 1, 1))},
                )
            ),
        ]  # fmt: skip
        for some in wrong:
            with pytest.raises(PlanError):
                prove_cut(made, box, some)


FUSED = Layout("O=48 I=10 float32")
QKV = [(0, 32), (32, 40), (40, 48)]


def tiles():
    """Return the tiles of a fused tensor: rows, and columns of the last of them."""
    rows = [(FUSED.hold("O", *ends), 40 * ends[0]) for ends in QKV[:2]]
    halves = [(0, 4), (4, 10)]
    last = [
        (FUSED.hold("O", 40, 48).hold("I", *ends).strided([40, 4]), 1600 + 4 * ends[0])
        for ends in halves
    ]
    return [*rows, *last]


def test_regions_that_tile_one_fused_tensor_are_proved():
    """Queries, keys and values of one matrix: all of it, each element once."""
    prove_tiles(FUSED, tiles())
    prove_tiles(FUSED, tiles()[::-1])
    prove_tiles(FUSED, [(FUSED, 0)])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda some: some[:-1], "writes 432 of 480"),
        (lambda some: [*some, some[1]], "twice"),
        (lambda some: [*some[:1], (some[1][0], 40 * 31), *some[2:]], "elsewhere"),
        (lambda some: [*some[:1], (some[1][0], 40 * 32 + 1), *some[2:]], "no element"),
        (lambda some: [*some[:1], (some[1][0], -40), *some[2:]], "no element"),
        (lambda some: [(FUSED.hold("O", 0, 33), 0), *some[1:]], "twice"),
        (lambda some: [(FUSED.hold("O", 0, 31), 0), *some[1:]], "writes 470 of 480"),
        (
            lambda some: [(FUSED.hold("O", 0, 32).strided([80, 4]), 0), *some[1:]],
            "runs over the end of O",
        ),
        (
            lambda some: [(FUSED.hold("O", 0, 16).strided([80, 4]), 0), *some[1:]],
            "O lies apart",
        ),
        (lambda some: [(Layout("O=32 I=10 float32"), 0), *some[1:]], "elsewhere"),
        (lambda some: [(Layout("O=48[0:32] I=10 int32"), 0), *some[1:]], "no tile"),
        (lambda some: [(Layout("O=48[0:32] float32"), 0), *some[1:]], "no tile"),
        (lambda some: [], "writes 0 of 480"),
    ],
    ids=range(13),
)
def test_tiles_that_are_not_are_caught(change, match):
    """A gap, an overlap, the wrong place, the wrong distances, other elements."""
    with pytest.raises(PlanError, match=match):
        prove_tiles(FUSED, change(tiles()))


def test_who_proves_shares_no_code_with_who_plans():
    """What it takes from their files are the words of plans, and nothing is called."""
    tree = ast.parse(Path(proof.__file__).read_text(encoding="utf-8"))
    taken = {
        (one.module, alias.name)
        for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)
        for alias in one.names if str(one.module).startswith("stretto.transfer")
    }  # fmt: skip
    assert taken == {
        ("stretto.transfer.layouts", "Layout"),
        ("stretto.transfer.plans.deal", "Deal"),
        ("stretto.transfer.plans.plan", "Box"),
        ("stretto.transfer.plans.plan", "Plan"),
    }
    called = {
        one.func.attr for one in ast.walk(tree)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
    }  # fmt: skip
    planners = {name for kind in (Plan, Deal) for name in vars(kind) if name[0] != "_"}
    assert not called & planners
