"""A plan moves every element to its place, once; a proof sees when it does not."""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.transfer.oracle import elements, key, memory, pairs

from stretto.errors import CallError, LayoutError, PlanError, UnknownNameError
from stretto.transfer.copying import work
from stretto.transfer.layouts import Layout, kv_layout, names
from stretto.transfer.plans import deal, plan, prove, prove_deal


def moved(made, src, dst, pages, to, tokens):
    """Run a plan from tensors to tensors."""
    for run in made.runs(pages, to, tokens):
        job = work.CopyWork(
            made, run, [t.ctypes.data for t in src], [t.ctypes.data for t in dst]
        )
        assert job.run() == 0
        assert job.nbytes == job.job[work.Job.MOVED]


@settings(max_examples=examples(150), deadline=None)
@given(pairs())
def test_every_element_goes_to_its_own_place_and_nothing_else_changes(drawn):
    """Whatever the axes, their order, shards, pages and distances."""
    src_layout, dst_layout, pages, to, tokens = drawn
    src, dst = memory(src_layout), memory(dst_layout)
    before = [t.copy() for t in dst]
    here = {key(src_layout, w, pages): v for w, v in elements(src_layout, src)}
    if tokens is not None:
        here = {k: v for k, v in here.items() if k and k[0][1] < tokens}
    made = plan(src_layout, dst_layout)
    moved(made, src, dst, pages, to, tokens)

    for where, value in elements(dst_layout, dst):
        name = key(dst_layout, where, to)
        if name in here:
            assert bytes(here[name]) == bytes(value)
    touched = 0
    for (where, _), (_, old) in zip(
        elements(dst_layout, dst), elements(dst_layout, before), strict=True
    ):
        if key(dst_layout, where, to) in here:
            old[...] = 0
            touched += 1
    for where, value in elements(dst_layout, dst):
        if key(dst_layout, where, to) in here:
            value[...] = 0
    assert all(map(np.array_equal, before, dst))
    prove(made)


@settings(max_examples=examples(200), deadline=None)
@given(pairs(), st.data())
def test_a_box_that_is_changed_anywhere_is_caught(drawn, data):
    """Its corner, a distance, a count, its tensor, or that it is there at all."""
    made = plan(drawn[0], drawn[1])
    if not made.boxes:
        return
    at = data.draw(st.integers(0, len(made.boxes) - 1))
    box = made.boxes[at]
    kinds = ["src_at", "dst_at", "run", "src_part", "dst_part", "twice", "gone"]
    kind = data.draw(st.sampled_from([*kinds, "axis"] if box.axes else kinds))
    by = data.draw(st.sampled_from([-2, -1, 1, 2]))
    boxes = list(made.boxes)
    if kind == "twice":
        boxes.append(box)
    elif kind == "gone":
        del boxes[at]
    elif kind == "axis":
        nth = data.draw(st.integers(0, len(box.axes) - 1))
        word = data.draw(st.integers(0, 2))
        axes = [list(axis) for axis in box.axes]
        axes[nth][word] = max(1, axes[nth][word] + by)
        if tuple(map(tuple, axes)) == box.axes:
            return
        boxes[at] = dataclasses.replace(box, axes=tuple(map(tuple, axes)))
    else:
        value = getattr(box, kind) + by
        if value < 0 or (kind == "run" and value < 1):
            return
        boxes[at] = dataclasses.replace(box, **{kind: value})

    with pytest.raises(PlanError):
        prove(dataclasses.replace(made, boxes=tuple(boxes)))


@pytest.mark.parametrize("srcs", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dsts", [1, 2, 4, 8, 16])
def test_every_rank_gets_all_that_it_holds_once_at_any_two_sizes(srcs, dsts):
    """Also where there are more ranks than heads, and pages of other sizes."""
    sizes = {"layers": 2, "blocks": 5, "heads": 8, "dim": 4}
    from_ = [
        kv_layout("vllm/flash", block=2, tp=(r, srcs), **sizes) for r in range(srcs)
    ]
    to = [kv_layout("sglang/mha", block=4, tp=(r, dsts), **sizes) for r in range(dsts)]

    dealt = deal(from_, to)
    prove_deal(dealt)
    readers = {s for s, _ in dealt.plans}
    assert len(readers) >= min(srcs, dsts, 8)
    for d in range(dsts):
        assert len(dealt.writers(d)) == max(1, min(srcs, 8) // min(dsts, 8))


def test_layers_that_lie_on_several_ranks_come_together():
    """Pipeline ranks hold ranges of layers, of whatever lengths."""
    sizes = {"layers": 7, "blocks": 3, "block": 2, "heads": 4, "dim": 2}
    from_ = [kv_layout("vllm/flash", pp=pp, **sizes) for pp in ((0, 3), (3, 7))]
    to = [kv_layout("vllm/cross", tp=(r, 2), **sizes) for r in range(2)]

    dealt = deal(from_, to)
    prove_deal(dealt)
    assert {(0, 0), (1, 0), (0, 1), (1, 1)} == set(dealt.plans)


def test_a_deal_that_leaves_something_out_is_caught():
    """And one that sends something twice."""
    sizes = {"layers": 2, "blocks": 3, "block": 2, "heads": 4, "dim": 2}
    from_ = [kv_layout("vllm/flash", tp=(r, 2), **sizes) for r in range(2)]
    made = deal(from_, [kv_layout("vllm/flash", **sizes)])
    less = {pair: plans for pair, plans in made.plans.items() if pair != (1, 0)}
    more = {**made.plans, (0, 0): made.plans[0, 0] * 2}

    for wrong, match in ((less, "writes 16 of 32"), (more, "twice")):
        with pytest.raises(PlanError, match=match):
            prove_deal(dataclasses.replace(made, plans=wrong))


def test_what_nobody_holds_is_named():
    """The range, the destination, and who was asked."""
    whole = Layout("L=4 D=2 int8")

    with pytest.raises(LayoutError, match=r"nobody holds L=2:4 for L=4 D=2 int8"):
        deal([whole.hold("L", 0, 2)], [whole])


@pytest.mark.parametrize(
    ("src", "dst", "match"),
    [
        ("H=8 int8", "H=4 int8", r"from H=8 int8\n  to H=4 int8:\n  H=8 to H=4"),
        ("H=8 D=2 int8", "H=8 int8", "only one has D"),
        ("B=2 T=4 H=2 int8", "B=2 H=2 int8", "name them in both"),
        ("H=8 int32", "H=8 float32", "int32 does not become float32"),
    ],
)
def test_layouts_that_do_not_fit_are_refused_with_both_named(src, dst, match):
    """And with what is wrong between them."""
    with pytest.raises(LayoutError, match=match):
        plan(Layout(src), Layout(dst))


@pytest.mark.parametrize(
    ("pages", "to", "tokens", "match"),
    [
        ([0, 9], [0, 1], None, "source: page 9"),
        ([0, 1], [1, 1], None, "named twice"),
        ([0, 1], [0, 1, 2], None, "pass tokens= or pages of as many"),
        ([0], [0], 9, "tokens=9; the pages hold 4"),
        ([0.5], [0], None, "whole numbers"),
    ],
)
def test_wrong_pages_are_refused(pages, to, tokens, match):
    """Before anything is moved."""
    layout = Layout("B=4 T=4 int8")
    with pytest.raises(CallError, match=match):
        plan(layout, layout).runs(pages, to, tokens)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "last word is the type"),
        ("H=8", "last word is the type"),
        ("H8 int8", "'H8' is no axis"),
        ("H=8[4:9] int8", "holds nothing, or what is not there"),
        ("H=8 H=8 int8", "named twice"),
        ("T=2 | H=8 int8", "cannot be tensors of its own"),
        ("H=8@2 D=4 int8", "want all"),
        ("H=8@2 D=4@1 int8", "values of H, 2 bytes apart, overlap"),
        ("B=8[0:4] T=2 int8", "are not divided"),
        ("L=5000 | H=8 int8", "more than 4096 tensors"),
        ("A=999999999999999 C=999999999999999 int8", "larger than any memory"),
    ],
)
def test_malformed_layouts_are_refused(text, match):
    """With the text and the reason."""
    with pytest.raises(LayoutError, match=match):
        Layout(text)


@given(pairs())
def test_a_layout_is_its_text(drawn):
    """What is printed is read as the same."""
    for layout in drawn[:2]:
        assert layout == Layout(str(layout))
        assert layout.axes == Layout(str(layout)).axes


@given(st.text(alphabet="LHBT=0123456789[]:@| int8float", max_size=40))
def test_any_text_is_a_layout_or_refused(text):
    """Never anything else."""
    with contextlib.suppress(LayoutError):
        Layout(text)


def test_every_named_cache_goes_to_every_other_of_its_kind():
    """Bit for bit, from pages of 2 tokens to pages of 4."""
    for name in names():
        for other in names():
            if name.endswith("mla") != other.endswith("mla"):
                continue
            sizes = {"layers": 2, "dim": 3, "dtype": "int16"}
            sizes |= {} if name.endswith("mla") else {"heads": 2}
            src_layout = kv_layout(name, blocks=5, block=2, **sizes)
            dst_layout = kv_layout(other, blocks=3, block=4, **sizes)
            src, dst = memory(src_layout), memory(dst_layout)
            moved(plan(src_layout, dst_layout), src, dst, [3, 1, 4, 0], [2, 0], None)
            sent = {
                key(src_layout, w, [3, 1, 4, 0]): bytes(v)
                for w, v in elements(src_layout, src)
            }
            got = {
                key(dst_layout, w, [2, 0]): bytes(v)
                for w, v in elements(dst_layout, dst)
            }
            sent.pop(None), got.pop(None)
            assert sent == got


def test_an_unknown_cache_is_answered_with_the_known():
    """As every wrong name is."""
    with pytest.raises(UnknownNameError, match="did you mean vllm/flash"):
        kv_layout("vllm/flahs", layers=1, blocks=1, block=1, dim=1)
