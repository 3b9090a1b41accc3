"""The kernels of weights: they compile, and do what the host does, bit for bit."""

import ctypes
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_emulate import compiled, translated

from stretto.executors.cuda import mixed
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.executors.cuda.words import MIXED, QUANTISED
from stretto.program.collectives import narrow, storage
from stretto.transfer.copying.mixing import mixed as mixed_here
from stretto.weights.casts import Float8, quantised

_SIZES = """
#define __shared__ static
static Index gridDim{{3}}, blockDim{{{threads}}};
static void __syncthreads() {{}}
static unsigned atomicAdd(unsigned* p, unsigned v) {{
  return __sync_fetch_and_add(p, v);
}}
"""
_LOOP = """
extern "C" void all(const stretto::{what}* given) {{
  for (blockIdx.x = 0; blockIdx.x < 3; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < {threads}; ++threadIdx.x)
      stretto_kernel(*given);
}}
"""
SRC = ("float32", "bfloat16", "float16")
FP8 = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def emulated(kernel, what, threads, folder):
    translated(kernel, folder)
    text = _SIZES.format(threads=threads) + kernel.text
    (folder / "k.cpp").write_text(text + _LOOP.format(what=what, threads=threads))
    return ctypes.CDLL(str(compiled(folder, "k.cpp"))).all


def run(call, row, dtype):
    given = np.array([row], dtype)
    call(ctypes.c_void_p(given.ctypes.data))


def test_they_compile_without_a_stack():
    """For the processor of an H200."""
    pytest.importorskip("cuda.bindings.nvrtc")
    kernels = [mixed.mixing(100)]
    kernels += [
        mixed.quantising(s, d, most, 100) for s in SRC for d, most in FP8.items()
    ]
    for kernel in kernels:
        _, log = build(kernel, arch=(9, 0))

        assert usage(log).stack == 0


def test_sums_are_the_hosts_and_copies_are_whole(tmp_path, monkeypatch):
    """All sizes of elements, odd beginnings and ends, several pieces, no copy."""
    monkeypatch.setattr(mixed, "PIECE", 4096)
    call = emulated(mixed.mixing(3), "Mixed", 64, tmp_path)
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 256, 40000, np.uint8)
    sources, copies, places = [], [], []
    for nth, (dtype, begin, count) in enumerate(
        [("u1", 0, 9001), ("u1", 3, 777), ("u2", 2, 5003), ("f4", 16, 2500),
         ("f8", 8, 1201), ("u2", 32, 0), ("f4", 64, 1)]
    ):  # fmt: skip
        size = np.dtype(dtype).itemsize
        one = whole[begin : begin + count * size].view(dtype)
        copy = np.full(count * size + 16, 0x5A, np.uint8)
        sources.append(one)
        copies.append(copy)
        to = copy.ctypes.data if nth % 3 != 2 else 0
        places.append((nth, one.ctypes.data, to, one.nbytes, size))
    words, sums = mixed.pieces(places), np.zeros(len(places), np.uint32)
    run(call, (words.ctypes.data, sums.ctypes.data, len(words), 0), MIXED)

    assert [mixed_here(one) for one in sources] == sums.tolist()
    for one, copy, (_, _, to, nbytes, _) in zip(sources, copies, places, strict=True):
        assert (copy[nbytes:] == 0x5A).all()
        if to:
            assert one.tobytes() == copy[:nbytes].tobytes()
        else:
            assert (copy == 0x5A).all()


class Memory:
    """A driver whose memory is the host's."""

    def __init__(self):
        self.made = []

    def ask(self, call, *given):
        """Do what it says."""
        if call == "cuMemAlloc":
            self.made.append(np.full(given[0], 0xEE, np.uint8))
            return self.made[-1].ctypes.data
        if call.startswith(("cuMemcpyHtoD", "cuMemcpyDtoH")):
            ctypes.memmove(*given[:3])
        elif call == "cuMemsetD32Async":
            ctypes.memset(given[0], 0, 4 * given[2])
        return None


def test_tensors_are_added_up_some_at_a_time(tmp_path, monkeypatch):
    """Again and again, in pieces of any sizes, one of which has no element."""
    monkeypatch.setattr(mixed, "PIECE", 1024)
    monkeypatch.setattr(mixed, "ask", Memory().ask)
    monkeypatch.setattr(mixed, "api", lambda: SimpleNamespace(CUstream=int))
    call = emulated(mixed.mixing(3), "Mixed", 64, tmp_path)
    mixer = SimpleNamespace(
        blocks=3,
        launch=lambda kernel, words, stream: call(ctypes.c_void_p(words.ctypes.data)),
    )
    rng, counts = np.random.default_rng(2), (700, 3, 0, 5000, 1, 2048)
    arrays = [rng.integers(0, 1 << 16, n, np.uint16) for n in counts]
    places = [(i, a.ctypes.data, 0, a.nbytes, 2) for i, a in enumerate(arrays)]
    halves = [(5, arrays[5].ctypes.data + at, 0, 2048, 2) for at in (0, 2048)]
    sums = mixed.Sums(
        mixer, SimpleNamespace(enter=lambda: None), [*places[:5], *halves]
    )
    want = tuple(mixed_here(array) for array in arrays)

    for cuts in ((0, 6), (0, 1, 2, 3, 4, 5, 6), (0, 3, 5, 6)):
        sums.begin(7)
        for first, last in itertools.pairwise(cuts):
            sums.add(first, last)
        assert want == sums.found()


@pytest.mark.parametrize("dst", FP8)
@pytest.mark.parametrize("src", SRC)
def test_fp8_is_the_hosts(src, dst, tmp_path):
    """Blocks at the edges, zeros, several matrices."""
    kernel = mixed.quantising(src, dst, FP8[dst], 3, threads=1)
    call = emulated(kernel, "Quantised", 1, tmp_path)
    shape, block = (2, 19, 24), (8, 16)
    wide = np.random.default_rng(1).normal(0, 3, shape).astype(np.float32)
    wide[0, :8, :16] = 0
    raw = np.ascontiguousarray(np.asarray(narrow(wide, src)).view(storage(src)))
    bits, scales = np.zeros(shape, np.uint8), np.zeros((2, 3, 2), np.float32)
    run(
        call,
        (raw.ctypes.data, bits.ctypes.data, scales.ctypes.data, *shape, *block, 0),
        QUANTISED,
    )
    want = quantised(raw, src, Float8(dtype=dst, block=block))

    assert np.array_equal(want[0].view(np.uint8), bits)
    assert np.array_equal(want[1], scales)
