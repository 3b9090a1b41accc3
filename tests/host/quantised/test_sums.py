"""Sums that go over the wire by a byte an element: bits, bounds, bad input."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.host.quantised.oracle import TYPES, all_reduce, bound

import stretto
from stretto.errors import CallError, CollectiveMismatch

COUNTS = (1, 127, 128, 129, 1000, 70_001)
WIRES = ("fp8_128", "int8_128")


def given(rank, count, kind, seed=0):
    """Return a rank's elements: of sizes that differ by blocks, with zeros."""
    rng = np.random.default_rng([seed, rank])
    x = (
        rng.standard_normal(count)
        * 10.0 ** rng.integers(-4, 4, -(-count // 50))[np.arange(count) // 50]
    )
    x[rng.random(count) < 0.1] = 0
    return x.astype(TYPES[kind])


def work(comm, kind, op):
    """Return what came out wrong, and the bits of all of it."""
    wrong, bits = [], []
    for wire in WIRES:
        for count in COUNTS:
            xs = [given(q, count, kind) for q in range(comm.num_ranks)]
            x = xs[comm.rank].copy()
            out = comm.all_reduce(x, op, out=np.empty_like(x), wire=wire)
            want = all_reduce(xs, wire, op)
            if out.tobytes() != want.tobytes():
                wrong.append((wire, count, "bits"))
            exact = np.sum([v.astype(np.float64) for v in xs], axis=0)
            exact /= comm.num_ranks if op == "avg" else 1
            if not (abs(out.astype(np.float64) - exact) <= bound(xs, wire, op)).all():
                wrong.append((wire, count, "bound"))
            again = comm.all_reduce(x, op, wire=wire)  # in place
            if again is not x or x.tobytes() != want.tobytes():
                wrong.append((wire, count, "in place"))
            bits.append(out.tobytes())
    return wrong, bits


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "op"), [("float32", "sum"), ("bfloat16", "avg"), ("float16", "sum")]
)
def test_all_ranks_end_with_the_bits_of_the_definition(num_ranks, kind, op):
    """And within the bound that is said, for each element."""
    found = stretto.spawn(work, kind, op, num_ranks=num_ranks)

    assert [[]] * num_ranks == [wrong for wrong, _ in found]
    assert all(bits == found[0][1] for _, bits in found)


def odd(comm):
    """Return sums of blocks that hold what is not finite, and of tiny ones."""
    x = np.zeros(400, np.float32)
    x[:128] = 1
    x[130] = [np.inf, np.nan][comm.rank]
    x[256:300] = 1e-40
    x[300:384] = -(2.0**-110)
    x[399] = 3e38
    return [comm.all_reduce(x.copy(), wire=wire) for wire in WIRES]


@pytest.mark.parametrize("wire", WIRES)
def test_a_block_with_what_is_not_finite_is_nan_and_no_other(wire):
    """Sums that overflow are, too."""
    for found in stretto.spawn(odd, num_ranks=2):
        out = found[WIRES.index(wire)]
        assert (out[:128] == 2).all()
        assert np.isnan(out[128:256]).all()
        assert np.isfinite(out[256:384]).all()
        assert (abs(out[256:300]) <= 2.0**-100).all()
        assert np.isnan(out[384:]).all()


def started(comm):
    """Return a sum that was started, and one by a group of two."""
    x = given(comm.rank, 5000, "float32", 7)
    work = comm.all_reduce_async(x, wire="int8_128")
    part = comm.split(comm.rank // 2)
    y = part.all_reduce(given(comm.rank, 300, "float32", 8), wire="fp8_128")
    return work.wait(), y


def test_started_calls_and_parts_of_the_ranks():
    """As any other call."""
    found = stretto.spawn(started, num_ranks=4)
    want = all_reduce([given(q, 5000, "float32", 7) for q in range(4)], "int8_128")
    for rank, (x, y) in enumerate(found):
        assert x.tobytes() == want.tobytes()
        pair = rank // 2 * 2
        two = [given(q, 300, "float32", 8) for q in (pair, pair + 1)]
        assert y.tobytes() == all_reduce(two, "fp8_128").tobytes()


def refused(comm):
    """Return what wrong calls are told; then whether right ones still work."""
    x, said = np.ones(4, np.float32), []
    for array, how in (
        (x, {"wire": "fp4"}),
        (x, {"wire": 8}),
        (x, {"wire": "fp8_128", "op": "max"}),
        (x, {"wire": "fp8_128", "algorithm": "all_reduce/ring"}),
        (x, {"wire": "fp8_128", "bits": "invariant"}),
        (np.ones(4), {"wire": "int8_128"}),
        (np.ones(4, np.int32), {"wire": "int8_128"}),
    ):
        with pytest.raises(CallError) as caught:
            comm.all_reduce(array, **how)
        said.append(str(caught.value))
    after = comm.all_reduce(x, wire="fp8_128").tolist()
    comm.bits = "invariant"
    with pytest.raises(CallError) as caught:
        comm.all_reduce(np.ones(4, np.float32), wire="fp8_128")
    return [*said, str(caught.value)], after


def test_what_cannot_be_is_said_in_one_sentence_and_loses_nothing():
    """What is wanted is in it."""
    for said, after in stretto.spawn(refused, num_ranks=2):
        assert "want 'fp8_128' or 'int8_128'" in said[0]
        assert "want 'fp8_128' or 'int8_128'" in said[1]
        assert "want sum or avg" in said[2]
        assert "algorithm=" in said[3]
        assert "where bits are 'invariant'" in said[4]
        assert "where bits are 'invariant'" in said[7]
        assert "want float32, bfloat16, float16" in said[5]
        assert "want float32, bfloat16, float16" in said[6]
        assert after == [2.0] * 4


DIFFERING = {
    "wire": ({"wire": "fp8_128"}, {"wire": "int8_128"}),
    "op": ({"op": "sum"}, {"op": "avg"}),
    "type": ({"dtype": None}, {"dtype": "bfloat16"}),
    "count": ({"count": 1000}, {"count": 999}),
}
"""What a rank passes, and the other: of the same bytes on the wire."""


def unlike(comm, what):
    """Return what a rank is told whose call differs from the other's."""
    how = {"wire": "fp8_128", "count": 1000, **DIFFERING[what][comm.rank]}
    count, dtype = how.pop("count"), how.setdefault("dtype", None)
    x = np.ones(count, np.uint16 if dtype else np.float32)
    try:
        return comm.all_reduce(x, **how)[:3].tolist()
    except CollectiveMismatch as e:
        return str(e)


@pytest.mark.parametrize("what", DIFFERING)
def test_ranks_that_call_different_sums_are_told(what):
    """Both, and neither gets a sum: the bytes that they exchange are as many."""
    for said in stretto.spawn(unlike, what, num_ranks=2):
        assert "ranks called different things" in str(said)
        assert "within all_reduce of 1000 float32 op=sum wire=fp8_128" in str(said)


def alone(comm):
    """Return what one rank has of a ramp and of zeros, by each wire."""
    ramp, zeros = np.linspace(-3, 3, 128), np.zeros(5)
    return [
        [comm.all_reduce(x.astype(np.float32), wire=w) for x in (ramp, zeros)]
        for w in WIRES
    ]


def test_the_largest_of_a_block_and_zeros_stay_as_they_are():
    """Whatever else is rounded."""
    (found,) = stretto.spawn(alone, num_ranks=1)
    for ramp, zeros in found:
        assert abs(ramp[[0, -1]]) == pytest.approx(3, rel=1e-6)
        assert not zeros.any()


def logged(comm, path):
    """Make two calls of a kind, with a log of what serves them."""
    handler = logging.FileHandler(path)
    logging.getLogger("stretto").addHandler(handler)
    logging.getLogger("stretto").setLevel(logging.INFO)
    for _ in range(2):
        comm.all_reduce(np.ones(300, np.float32), wire="int8_128")


def test_the_log_says_what_goes_over_the_wire_once(tmp_path):
    """With the two exchanges that carry it."""
    stretto.spawn(logged, tmp_path / "log", num_ranks=2)
    lines = (tmp_path / "log").read_text().splitlines()

    assert 1 == sum("all_reduce of 300 elements" in line for line in lines)
    assert any("wire int8_128" in line for line in lines)
    assert {"all_to_all", "all_gather"} == {
        name for name in ("all_to_all", "all_gather") for x in lines if f"{name}/" in x
    }
