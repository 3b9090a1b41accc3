"""An epilogue is traced from a function, and means what NumPy makes of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

import stretto
from stretto.errors import CallError
from stretto.program import epilogues as ep
from stretto.program.collectives import narrow, widen
from stretto.program.epilogues import Named, ValueForm, evaluate, form_of, resolve
from stretto.program.epilogues.reference import row_tree


@stretto.epilogue
def add_rms_norm(y, residual, weight, eps):
    s = y + residual
    return {"out": s * ep.rsqrt(ep.row_mean(s * s) + eps) * weight, "residual": s}


def spec(function, *, dtype="float32", row=8, **forms):
    inputs = {
        name: Named(name, dtype if form is not ValueForm.SCALAR else "", form)
        for name, form in forms.items()
    }
    return resolve(function.graph, inputs, dtype=dtype, row=row)


def test_a_norm_is_what_it_says():
    """Beside the same norm in double precision."""
    rng = np.random.default_rng(0)
    y, residual = rng.normal(size=(2, 5, 64)).astype(np.float32)
    weight = rng.normal(size=64).astype(np.float32)
    found = spec(
        add_rms_norm,
        row=64,
        residual=ValueForm.ELEMENT,
        weight=ValueForm.ROW,
        eps=ValueForm.SCALAR,
    )
    out, kept = evaluate(found, y.ravel(), [residual.ravel(), weight, 1e-6])
    s = y.astype(float) + residual
    want = s / np.sqrt((s * s).mean(-1, keepdims=True) + 1e-6) * weight

    assert np.allclose(want, out.reshape(5, 64), rtol=1e-5)
    assert np.array_equal((y + residual).ravel(), kept)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 200), st.sampled_from([2, 4, 8, 16]), st.integers(0, 9))
def test_a_rows_sum_depends_on_nothing_but_the_row(row, cell, seed):
    """Not on how many rows there are; and it is the sum."""
    values = np.random.default_rng(seed).normal(size=(3, row)).astype(np.float32)
    together = row_tree(np.add, values, cell, 0.0)
    apart = [row_tree(np.add, values[i : i + 1], cell, 0.0) for i in range(3)]

    assert np.array_equal(np.concatenate(apart), together)
    assert np.allclose(values.astype(float).sum(1), together[:, 0], atol=1e-4)


def test_equal_expressions_are_one_node():
    """However often the function writes them."""

    @stretto.epilogue
    def twice(y):
        return (y * y + 1.0) * (y * y + 1.0)

    assert 4 == len([n for n in twice.graph.nodes if n.op != "input"])


def test_the_graph_can_be_read():
    """One line a node, then the outputs."""
    text = str(stretto.epilogue(lambda y, scale: ep.cast(y * scale, "float8_e4m3fn")))

    assert "cast(v2, float8_e4m3fn)" in text
    assert text.endswith("out = v3")


def test_every_operation_is_numpys():
    """One by one, on the same numbers, NaN among them."""
    values = np.float32([-2.5, -0.0, 0.5, 3.0, np.nan, 7.0, 0.25, -1.0])
    other = np.float32([1.5, 2.0, -0.5, 3.0, 1.0, np.nan, -4.0, 2.0])

    @stretto.epilogue
    def all_of_them(y, b):
        return {
            "a": y + b - 1.0,
            "b": 2.0 * y / b,
            "c": ep.minimum(y, b),
            "d": ep.maximum(y, b),
            "e": ep.exp(-abs(y)) + ep.tanh(b),
            "f": ep.where(y <= b, ep.sqrt(abs(y)), 1.0 - y),
            "g": ep.row_max(b),
        }

    made = evaluate(spec(all_of_them, b=ValueForm.ELEMENT), values, [other])
    one = np.float32(1)
    with np.errstate(all="ignore"):
        want = [
            values + other - one,
            2 * values / other,
            np.minimum(values, other),
            np.maximum(values, other),
            np.exp(-np.abs(values)) + np.tanh(other),
            np.where(values <= other, np.sqrt(np.abs(values)), one - values),
            np.float32([np.nan]),
        ]
    for expected, got in zip(want, made, strict=True):
        assert np.array_equal(expected, got, equal_nan=True)


def test_a_dynamic_scale_is_an_output_of_a_row():
    """One number for every row, in its own type."""

    @stretto.epilogue
    def quantise(y):
        scale = ep.row_amax(y) / 448.0
        return {"q": ep.cast(y / scale, "float8_e4m3fn"), "scale": scale}

    found = spec(quantise, dtype="bfloat16", row=4)
    y = narrow(np.float32([1, -2, 4, 448, 0.5, 0.25, -0.125, 0.0625]), "bfloat16")
    q, scale = evaluate(found, y, [])

    assert [ValueForm.ELEMENT, ValueForm.COLUMN] == [o.form for o in found.outputs]
    assert [448.0, 448.0] == widen(q, "float8_e4m3fn").reshape(2, 4).max(1).tolist()
    assert 1.0 == widen(scale, "bfloat16")[0]


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ((4, 6, 8), ValueForm.ELEMENT),
        ((24, 8), ValueForm.ELEMENT),
        ((8,), ValueForm.ROW),
        ((1, 8), ValueForm.ROW),
        ((4, 6, 1), ValueForm.COLUMN),
        ((24, 1), ValueForm.COLUMN),
        ((), ValueForm.SCALAR),
        ((1,), ValueForm.SCALAR),
    ],
)
def test_inputs_meet_the_result_by_broadcasting(shape, form):
    """As NumPy has it, seen as rows."""
    assert form is form_of("x", shape, (4, 6, 8), 8)


def test_an_input_of_another_shape_is_refused():
    """With the shapes that would do."""
    with pytest.raises(CallError, match=r"weight has shape \(7,\).*want.*\(8,\) for"):
        form_of("weight", (7,), (4, 8), 8)


def traced(function):
    return lambda: stretto.epilogue(function)


def comparing(y):
    return y if y > 0 else -y


def listing(y):
    return [y]


def condition(y):
    return {"out": y > 0}


def arraying(y):
    return y + np.ones(3)


def splatted(y, *more):
    return y


def choosing(y):
    return ep.where(y, 1.0, 2.0)


def adding_truth(y):
    return y + (y > 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (traced(comparing), "want where"),
        (traced(listing), "returned a list"),
        (traced(condition), "where.condition, 1, 0"),
        (traced(arraying), "arrays are parameters"),
        (traced(splatted), r"no \*args"),
        (traced(choosing), "where got a number .input."),
        (traced(adding_truth), "add got a condition .gt."),
        (traced(lambda y: ep.cast(y, "int4")), "cast to 'int4'; want one of float32"),
        (traced(lambda y, row: y * row), "'row' names the length"),
        (lambda: add_rms_norm(residual=1, wait=2, eps=3), "wait is not among them"),
        (lambda: add_rms_norm(residual=1, weight=2), "eps is missing"),
        (
            lambda: add_rms_norm(residual=1, weight=2, eps=3, row=0),
            "want a whole number from 1",
        ),
        (
            lambda: add_rms_norm(residual=1, weight=2, eps=3).into(rest=4),
            "outputs are out, residual",
        ),
    ],
)
def test_errors_teach(make, said):
    """What was given, what was wanted, what to do."""
    with pytest.raises(CallError, match=said):
        make()


def test_reductions_of_what_does_not_vary_are_refused():
    """A weight's mean can be computed once, before."""
    sums = stretto.epilogue(lambda y, w: y * ep.row_mean(w))

    with pytest.raises(CallError, match="the same for all rows"):
        spec(sums, w=ValueForm.ROW)
    with pytest.raises(CallError, match="the same all along a row"):
        spec(sums, w=ValueForm.COLUMN)


def test_outputs_depend_on_the_result():
    """An output that does not would be computed by everybody for nothing."""
    with pytest.raises(CallError, match="does not depend on y"):
        spec(stretto.epilogue(lambda y, w: {"w": w * 2.0}), w=ValueForm.ROW)
