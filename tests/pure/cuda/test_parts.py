"""The kernel that adds parts: it compiles, and adds in order, rounded once."""

import ctypes

import numpy as np
import pytest
from cuda_emulate import compiled, translated

from stretto.executors.cuda import parts
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.program import collectives
from stretto.program.collectives import Operator, storage
from stretto.testing import draw

_SIZES = "static Index gridDim{3}, blockDim{256};\n"
_LOOP = """
extern "C" void all(const stretto::Stacked* given) {
  for (blockIdx.x = 0; blockIdx.x < 3; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) stretto_kernel(*given);
}
"""


@pytest.mark.parametrize("dtype", parts.TYPES)
@pytest.mark.parametrize("count", [2, 8])
def test_it_compiles_without_a_stack(dtype, count):
    """For the processor of an H200."""
    pytest.importorskip("cuda.bindings.nvrtc")
    _, log = build(parts.kernel_of(dtype, count, 100), arch=(9, 0))

    assert usage(log).stack == 0
    assert usage(log).registers <= 128


@pytest.mark.parametrize("dtype", parts.TYPES)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_it_adds_in_order_and_rounds_once(dtype, count, tmp_path):
    """Bit for bit what the oracle of reductions has; nothing beside it changes."""
    kernel = parts.kernel_of(dtype, count, 3)
    translated(kernel, tmp_path)
    (tmp_path / "k.cpp").write_text(_SIZES + kernel.text + _LOOP)
    run = ctypes.CDLL(str(compiled(tmp_path, "k.cpp"))).all
    rng, size = np.random.default_rng(count), storage(dtype).itemsize
    each = 16 // size * 1001
    held = [draw(rng, each, dtype, Operator.SUM) for _ in range(count)]
    joined = np.concatenate([x.view(np.uint8) for x in held])
    out = np.full(each * size + 16, 0x5A, np.uint8)
    given = np.array(
        [joined.ctypes.data, out.ctypes.data, each * size, each * size // 16], np.uint64
    )

    run(ctypes.c_void_p(given.ctypes.data))

    want = collectives.combine(Operator.SUM, held, dtype)
    assert want.tobytes() == out[: each * size].tobytes()
    assert (out[each * size :] == 0x5A).all()


def test_what_is_not_even_is_left_to_others():
    """Vectors of 16 bytes that begin at multiples of 16, of types that are summed."""
    adder = object.__new__(parts.Adder)

    assert adder.takes("bfloat16", 4, 4096, 0, 16)
    assert not adder.takes("bfloat16", 4, 4096, 8, 16)
    assert not adder.takes("bfloat16", 4, 4104, 0, 16)
    assert not adder.takes("int8", 4, 4096, 0, 16)
    assert not adder.takes("float32", 9, 4096, 0, 16)
    assert not adder.takes("float32", 4, 0, 0, 16)
