"""Kernels give NumPy's bits, for every type and operator, at any length and address."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from tests.nightly import nightly

from stretto.executors.cpu.running import kernels
from stretto.fabric.jit import missing
from stretto.program.collectives import (
    DTYPES,
    Operator,
    combine,
    finish,
    storage,
    widen,
)
from stretto.testing import pairings

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "has Numba")

LENGTHS = (0, 1, 5, 64, 300, 1037)
CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)


def bytes_of(dtype, count, rng, offset=0):
    """Return random bits as an array of that type, `offset` bytes off alignment."""
    size = storage(dtype).itemsize
    high = 2 if dtype == "bool" else 256
    raw = rng.integers(0, high, (count + 64) * size + offset, dtype=np.uint8)
    return raw[offset : offset + count * size].view(storage(dtype))


def run(kernel, dsts, srcs):
    """Call a kernel."""
    operands = np.array([a.ctypes.data for a in (*dsts, *srcs)], np.int64)
    CALL(kernels.address_of(kernel))(operands.ctypes.data, dsts[0].nbytes)


@np.errstate(all="ignore")
def equal(got, want, dtype, op):
    """Return whether the bits are equal, any NaN being as good as another."""
    wide, other = widen(got, dtype), widen(want, dtype)
    if got.dtype.kind == "c" and op is Operator.PROD:
        # NumPy may fuse, so the last bit may differ, and which infinities are NaN.
        near = np.abs(wide - other) <= 1e-5 * np.abs(other)
        return (near | ~(np.abs(wide) < np.inf) | ~(np.abs(other) < np.inf)).all()
    return ((wide == other) | ((wide != wide) & (other != other))).all()


@pytest.mark.parametrize(("dtype", "op"), nightly(pairings(), 5))
def test_a_kernel_combines_as_numpy_does(dtype, op):
    """Left to right, widened and rounded once, wrapping, carrying NaN."""
    rng = np.random.default_rng(0)
    for srcs, divide in ((1, (1,)), (2, (1, 3)), (3, (3,)), (8, (1,))):
        by = divide if op is Operator.AVG else (1,) * len(divide)
        plain = Operator.SUM if op is Operator.AVG else op
        kernel = kernels.Kernel(dtype=dtype, op=plain, num_srcs=srcs, divide=by)
        for count in LENGTHS:
            parts = [bytes_of(dtype, count, rng, offset=i % 3) for i in range(srcs)]
            dsts = [bytes_of(dtype, count, rng, offset=1) for _ in by]
            total = combine(op, parts, dtype)

            run(kernel, dsts, parts)

            for dst, n in zip(dsts, by, strict=True):
                want = finish(op, total, n, dtype) if n > 1 else total
                assert equal(dst, want, dtype, op)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "complex128"])
@pytest.mark.parametrize("skew", [0, 1, 16, 48])
@pytest.mark.parametrize("past", [(True, True), (False, True), (True, False)])
def test_a_streaming_kernel_gives_the_same(dtype, skew, past):
    """Whether or not destinations can be aligned together, and all of them stream."""
    rng = np.random.default_rng(1)
    for count in LENGTHS:
        parts = [bytes_of(dtype, count, rng) for _ in range(2)]
        dsts = [bytes_of(dtype, count, rng, offset=o) for o in (skew, skew + 64)]
        kernel = kernels.Kernel(
            dtype=dtype, op=Operator.SUM, num_srcs=2, divide=(1, 1), streaming=past
        )

        run(kernel, dsts, parts)

        for dst in dsts:
            assert equal(dst, combine(Operator.SUM, parts, dtype), dtype, Operator.SUM)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_destination_may_be_a_source(dtype):
    """All of a vector is loaded before any of it is stored."""
    rng = np.random.default_rng(2)
    x, y = bytes_of(dtype, 999, rng), bytes_of(dtype, 999, rng)
    want = combine(Operator.SUM, [y, x], dtype)
    kernel = kernels.Kernel(dtype=dtype, op=Operator.SUM, num_srcs=2, divide=(1,))

    run(kernel, [x], [y, x])

    assert equal(x, want, dtype, Operator.SUM)


def test_a_kernel_touches_nothing_beyond_its_bytes():
    """What lies before and after a destination stays."""
    rng = np.random.default_rng(3)
    for count in LENGTHS:
        room = np.full(count + 200, 7, np.uint8)
        source = rng.integers(0, 256, count, dtype=np.uint8)
        kernel = kernels.Kernel(dtype="uint8", op=Operator.SUM, num_srcs=1, divide=(1,))

        run(kernel, [room[100 : 100 + count]], [source])

        assert (room[:100] == 7).all()
        assert (room[100 + count :] == 7).all()
        assert (room[100 : 100 + count] == source).all()


def test_a_kernel_is_compiled_once_for_all_processes(monkeypatch, tmp_path):
    """A file has its code, under all it depends on; one that is damaged is none."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    kernel = kernels.Kernel(dtype="int16", op=Operator.MIN, num_srcs=3, divide=(1,))
    compiled, ask = [], kernels._compiled
    monkeypatch.setattr(kernels, "_compiled", lambda k: compiled.append(k) or ask(k))
    address_of = kernels.address_of.__wrapped__  # as a new process has it
    first, again = address_of(kernel), address_of(kernel)
    (file,) = (tmp_path / "loops").iterdir()

    assert first != again
    assert [kernel] == compiled
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="checksum is wrong"):
        address_of(kernel)
    assert [kernel] * 2 == compiled
