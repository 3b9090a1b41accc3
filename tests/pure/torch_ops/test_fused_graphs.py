"""Graphs of an all_reduce, an add and a norm: with something on every edge.

One process: a stand-in sums, and every graph is run before and after the pass.
"""

import functools

import pytest
from tests.nightly import nightly

torch = pytest.importorskip("torch")

from tests.pure.torch_ops.graph_forms import (  # noqa: E402
    FORMS,
    HIDDEN,
    NAME,
    ROWS,
    norm,
)
from tests.pure.torch_ops.stand_in import Doubles  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from stretto.torch import registry  # noqa: E402
from stretto.torch.fusing.report import FuseReport  # noqa: E402

EDGES = (
    *("part", "summed", "residual", "total", "base", "square", "mean", "shifted"),
    *("root", "operand", "scaled", "weight", "out"),
)
DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16"),
    *("float32", "float64", "float8_e4m3fn", "float8_e5m2"),
)
SORTS = ("bool", "int32", "float16", "bfloat16", "float32", "float8_e4m3fn")
HOLD = {  # whatever holds every value of a type, so that a cast to it and back is none
    "bfloat16": {"bfloat16", "float32", "float64"},
    "float16": {"float16", "float32", "float64"},
    "float32": {"float32", "float64"},
}
FREE = {"part", "residual", "weight"}
"""Edges that are inputs of the fused operator: whatever is there stays there."""
INNER = {"base", "square", "mean", "shifted", "root", "operand", "scaled"}
"""Edges on which there is float32, whatever the model's type is."""


@pytest.fixture(autouse=True)
def group():
    registry.bind(NAME, Doubles())
    yield
    registry.forget(NAME)


def inputs(dtype, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.logspace(-3, 2, ROWS)[:, None]  # eps matters, and integers too
    part = rows * torch.randn(ROWS, HIDDEN, generator=drawn)
    residual = rows * torch.randn(ROWS, HIDDEN, generator=drawn)
    weight = 1 + torch.randn(HIDDEN, generator=drawn).tanh() / 2
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return [x.to(kind) for x in (part, residual, weight)]


def fused(function, given, table=None, *, functional=False):
    """Return what a graph makes as it is and after the pass, and the report."""
    from stretto.torch.fusing.graph import fuse_graph  # Inductor, a slow import

    if functional:
        function = torch.func.functionalize(function, remove="mutations")
    module = make_fx(function, decomposition_table=table)(*given)
    want, said = module(*(x.clone() for x in given)), FuseReport()
    fuse_graph(module.graph, said)
    module.recompile()
    return module(*(x.clone() for x in given)), want, said


def same(got, want, rounded_to=None):
    """Compare within two roundings of the norm's result, and half a one of the sum.

    What the model rounds its result to may be one step apart, then.
    """
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        eps = torch.finfo(other.dtype).eps
        close = {"rtol": 8 * eps, "atol": torch.finfo(other.dtype).smallest_normal}
        if rounded_to is not None:
            kind = getattr(torch, rounded_to)
            eps = torch.finfo(kind).eps if kind.is_floating_point else 0.0
            close = {"rtol": 2 * eps, "atol": 0.01 if eps else 1.0}
        torch.testing.assert_close(
            one.double(), other.double(), equal_nan=True, **close
        )


@functools.cache
def tables():
    from torch._inductor.decomposition import select_decomp_table

    return {"aot": None, "inductor": select_decomp_table()}


@pytest.mark.parametrize("edge", nightly(EDGES, 3))
def test_a_cast_on_an_edge_is_kept_unless_it_loses_nothing(edge):
    """Of each sort of type one on every edge: numbers stay, and what may fuse does."""
    casts("bfloat16", "inductor", edge, SORTS)
    casts("float32", "aot", edge, SORTS[::-2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("edge", EDGES)
def test_every_cast_on_every_edge(edge, dtype):
    """All types, in graphs as both compilers have them."""
    for kind in tables():
        casts(dtype, kind, edge, DTYPES)


def casts(dtype, kind, edge, types):
    carried = "float32" if edge in INNER else dtype
    for cast in types:
        loose = cast if edge == "out" and cast not in HOLD[dtype] else None
        got, want, said = fused(with_cast(edge, cast), inputs(dtype), tables()[kind])

        same(got, want, loose)
        if edge in {*FREE, "out"} or cast == carried:
            assert said.fused == 1, (kind, cast, str(said))
        elif cast not in HOLD[carried] and edge != "scaled":
            assert said.fused == 0, (kind, cast, str(said))


def with_cast(edge, cast):
    """Return the pattern with a cast there and back on one edge."""

    def function(part, residual, weight):
        def on(here, x):
            return x.to(getattr(torch, cast)).to(x.dtype) if here == edge else x

        return norm(part, residual, weight, on)

    return function


@pytest.mark.parametrize("name", nightly(FORMS, 3))
def test_what_is_written_otherwise_is_what_it_was(name):
    """Fused where it is the same thing, and left alone where it is not."""
    function, count = FORMS[name]
    for dtype in ("bfloat16", "float32"):
        got, want, said = fused(function, inputs(dtype), functional=True)

        same(got, want)
        assert count in (said.fused, None), f"{dtype}: {said}"
