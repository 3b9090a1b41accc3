"""Collectives with an epilogue, on real processes."""

import ml_dtypes
import numpy as np
import pytest

import stretto
from stretto.errors import CallError
from stretto.program import epilogues as ep

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


@stretto.epilogue
def add_rms_norm(y, residual, weight, eps):
    s = y + residual
    return {"out": s * ep.rsqrt(ep.row_mean(s * s) + eps) * weight, "residual": s}


@stretto.epilogue
def quantised(y, scale):
    return ep.cast(y / scale, "float8_e4m3fn")


def norm(s, weight):
    s = s.astype(np.float64)
    return s / np.sqrt((s * s).mean(-1, keepdims=True) + 1e-6) * weight


def values(comm):
    """Return which results were not what NumPy says."""
    wrong = []
    rng = np.random.default_rng(7)
    xs = rng.normal(size=(comm.num_ranks, 4, 32)).astype(np.float32)
    residual = rng.normal(size=(4, 32)).astype(np.float32)
    weight = rng.normal(size=32).astype(np.float32)

    def check(name, right):
        if not right:
            wrong.append(name)

    x, kept = xs[comm.rank].copy(), residual.copy()
    bound = add_rms_norm(residual=kept, weight=weight, eps=1e-6).into(residual=kept)
    made = comm.all_reduce(x, epilogue=bound)
    total = xs.sum(0)
    check("the sum is in x", np.allclose(total, x, atol=1e-5))
    check("the residual is in place", made["residual"] is kept)
    check("residual", np.allclose(total + residual, kept, atol=1e-5))
    check("norm", np.allclose(norm(total + residual, weight), made["out"], atol=1e-3))

    part = slice(2 * comm.rank, 2 * comm.rank + 2)
    if comm.num_ranks == 2:
        bound = add_rms_norm(residual=residual[part], weight=weight, eps=1e-6)
        made = comm.reduce_scatter(xs[comm.rank], epilogue=bound)
        want = norm(total + residual, weight)[part]
        check("part", np.allclose(want, made["out"], atol=1e-3))

    half = xs.astype(ml_dtypes.bfloat16)
    bytes_ = comm.all_gather(half[comm.rank], epilogue=quantised(scale=0.5))
    want = (half.astype(np.float32) / np.float32(0.5)).astype(ml_dtypes.float8_e4m3fn)
    check("gathered shape", bytes_.shape == (comm.num_ranks, 4, 32))
    check("bytes", np.array_equal(want.view(np.uint8), bytes_.view(np.uint8)))

    strided = np.zeros((4, 64), np.float32)
    into = add_rms_norm(residual=residual, weight=weight, eps=1e-6).into(
        out=strided[:, ::2]
    )
    comm.all_reduce(xs[comm.rank].copy(), epilogue=into)
    check(
        "strided",
        np.allclose(norm(total + residual, weight), strided[:, ::2], atol=1e-3),
    )
    return wrong


def misuse(comm):
    """Return which calls were not refused with the reason."""
    wrong = []
    x = np.ones((4, 32), np.float32)
    residual, weight = np.ones_like(x), np.ones(32, np.float32)

    def refused(said, x, bound):
        try:
            comm.all_reduce(x, epilogue=bound)
        except CallError as e:
            wrong.extend([] if said in str(e) else [f"{said}: {e}"])
        else:
            wrong.append(f"{said}: nothing raised")

    for arguments, said in (
        ({"residual": residual[:, :5], "weight": weight, "eps": 0}, "has shape (4, 5)"),
        ({"residual": residual, "weight": weight.astype(int), "eps": 0}, "has int64"),
        ({"residual": residual, "weight": weight, "eps": 0, "row": 5}, "whole rows"),
    ):
        refused(said, x.copy(), add_rms_norm(**arguments))
    bound = add_rms_norm(residual=residual, weight=weight, eps=0).into(out=x)
    refused("output out overlaps x", x, bound)
    bound = add_rms_norm(residual=x, weight=weight, eps=0)
    refused("residual overlaps the result, which replaces it", x, bound)
    refused("called with its inputs", x, add_rms_norm)
    return wrong


def work(comm):
    """Do both on the same processes."""
    return values(comm) + misuse(comm)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_results_are_what_the_function_says(num_ranks):
    """In place, anew, strided, of bytes; and what cannot be is refused."""
    assert [[]] * num_ranks == stretto.spawn(work, num_ranks=num_ranks)
