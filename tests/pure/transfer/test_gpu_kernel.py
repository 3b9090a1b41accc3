"""The kernel of transfers: it compiles everywhere, and moves what the CPU loops move.

On a machine without a GPU its text is compiled by g++, and its threads run one after
the other: they never wait for each other.
"""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tests.nightly import examples, nightly
from tests.pure.transfer.oracle import memory, pairs

from stretto.errors import MissingExtraError
from stretto.executors.cuda.codegen.compile import build, headers, usage
from stretto.executors.cuda.transfers import mover as movers
from stretto.executors.cuda.transfers.text import TextKey, kernel_of, shape_of
from stretto.transfer.copying.work import CopyWork
from stretto.transfer.layouts import Layout
from stretto.transfer.plans import plan

_STAND_IN = """
#define __device__
#define __global__
#define __launch_bounds__(n)
#define __forceinline__ inline
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
static void __syncthreads() {}
static void __threadfence_system() {}
static unsigned long long atomicAdd(unsigned long long* at, unsigned long long by) {
  const unsigned long long before = *at;
  *at += by;
  return before;
}
"""
_RUN = """
extern "C" void all(const void* given, unsigned blocks) {
  gridDim.x = blocks;
  blockDim.x = 256;
  const stretto::Runs runs = *static_cast<const stretto::Runs*>(given);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) stretto_kernel(runs);
}
"""
_IN_ORDER = """
namespace stretto {
inline void after_earlier_work() {}
inline void let_next_begin() {}
}
"""
"""What runs one after the other waits for nobody."""
_made: dict[TextKey, ctypes.CDLL] = {}


def emulated(shape):
    """Return the kernel of a shape, as a function of this CPU."""
    if shape not in _made:
        folder = Path(tempfile.mkdtemp())
        for name in ("runs.cuh", "words.cuh"):
            (folder / name).write_text(headers()[name])
        (folder / "stream.cuh").write_text(_IN_ORDER)
        text = _STAND_IN + kernel_of(shape, blocks=3).text + _RUN
        (folder / "k.cpp").write_text(text)
        subprocess.run(
            ["g++", "-O1", "-w", "-shared", "-fPIC", "k.cpp", "-o", "k.so"],
            cwd=folder, check=True,
        )  # fmt: skip
        _made[shape] = ctypes.CDLL(str(folder / "k.so"))
    return _made[shape]


class FakeMover:
    """A mover whose kernels are emulated."""

    def __init__(self):
        self.blocks, self.device = 3, None

    def loaded(self, shape, grid):
        return emulated(shape), grid


def stand_in(patch):
    """Let tables lie in host memory, and launches be calls; return a mover."""
    held = {}

    def ask(name, *args):
        if name == "cuMemAlloc":
            block = np.zeros(args[0], np.uint8)
            held[block.ctypes.data] = block
            return block.ctypes.data
        if name == "cuMemcpyHtoD":
            ctypes.memmove(args[0], args[1], args[2])
            return None
        if name == "cuMemcpyAsync":
            ctypes.memmove(args[0], args[1], args[2])
            return None
        raise AssertionError(name)

    def enqueue(device, loaded, stream, arguments):
        function, blocks = loaded
        at = ctypes.c_uint64.from_address(arguments).value
        function["all"](ctypes.c_void_p(at), ctypes.c_uint(blocks))

    class Api:
        CUstream = staticmethod(lambda stream: stream)

    patch.setattr(movers, "ask", ask)
    patch.setattr(movers, "enqueue", enqueue)
    patch.setattr(movers, "api", Api)
    patch.setattr(movers, "_batch", lambda: None)
    return FakeMover()


def boxes_of(made, run, src, dst):
    """Return a run as a mover takes it."""
    box = run.boxes[0]
    return movers.Boxes(
        src_box=np.array([src[b.src_part].ctypes.data + b.src_at for b in run.boxes]),
        dst_box=np.array([dst[b.dst_part].ctypes.data + b.dst_at for b in run.boxes]),
        src_chunk=run.src_at, dst_chunk=run.dst_at, axes=box.axes, run=box.run,
        src_dtype=made.src.dtype, dst_dtype=made.dst.dtype,
        src_item=made.src.itemsize, dst_item=made.dst.itemsize,
    )  # fmt: skip


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@settings(max_examples=examples(40), deadline=None)
@given(pairs(dtypes=("int32",)))
def test_the_kernel_moves_what_the_loops_move(drawn):
    """Whatever the layouts, pages and distances."""
    src_layout, dst_layout, pages, to, tokens = drawn
    made = plan(src_layout, dst_layout)
    src, want, got = memory(src_layout), memory(dst_layout), memory(dst_layout)
    with pytest.MonkeyPatch.context() as patch:
        mover = stand_in(patch)
        for run in made.runs(pages, to, tokens):
            at = [[t.ctypes.data for t in some] for some in (src, want)]
            CopyWork(made, run, *at).run()
            movers._ByKernel(mover, boxes_of(made, run, src, got)).enqueue(7)

    assert all(map(np.array_equal, want, got))


def one_run(nbytes, src, dst):
    """Return one run between two arrays."""
    zero = np.zeros(1, np.int64)
    return movers.Boxes(
        src_box=np.array([src.ctypes.data]), dst_box=np.array([dst.ctypes.data]),
        src_chunk=zero, dst_chunk=zero, axes=(), run=nbytes,
        src_dtype="uint8", dst_dtype="uint8", src_item=1, dst_item=1,
    )  # fmt: skip


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("nbytes", [1, 4096, 8192, 8176, 8208, 100_000, 1 << 20])
def test_a_long_run_is_divided_and_a_word_is_raised(nbytes):
    """Every byte comes, once; the word has the number of the call, each time."""
    src = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    word = np.zeros(1, np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        mover = stand_in(patch)
        for by in (movers._ByKernel, movers._ByEngines):
            dst = np.zeros(nbytes + 1, np.uint8)
            move = by(mover, one_run(nbytes, src, dst), word.ctypes.data)
            for call in range(1, 4):
                dst[:] = 0
                word[:] = 0
                move.enqueue(7)
                assert call == word[0]
                assert np.array_equal(src, dst[:-1])
                assert not dst[-1]
            if by is movers._ByKernel and nbytes == 1 << 20:
                assert move._loaded[1] == mover.blocks


@settings(max_examples=examples(60), deadline=None)
@given(pairs(dtypes=("int8",)))
def test_pieces_for_copy_engines_are_all_runs_once(drawn):
    """Neighbours on both sides are one piece, and nothing is lost or added."""
    src_layout, dst_layout, pages, to, tokens = drawn
    made = plan(src_layout, dst_layout)
    src, want, got = memory(src_layout), memory(dst_layout), memory(dst_layout)
    for run in made.runs(pages, to, tokens):
        at = [[t.ctypes.data for t in some] for some in (src, want)]
        CopyWork(made, run, *at).run()
        for a, b, n in zip(*movers.pieces(boxes_of(made, run, src, got)), strict=True):
            ctypes.memmove(int(b), int(a), int(n))

    assert all(map(np.array_equal, want, got))


def test_neighbouring_pages_are_one_piece():
    """So copy engines get few pieces where blocks lie side by side."""
    layout = Layout("B=64 X=4096 int8")
    made = plan(layout, layout)
    (run,) = made.runs([*range(10, 30), 40], [*range(20), 50])
    block = memory(layout)

    _, _, sizes = movers.pieces(boxes_of(made, run, block, block))
    assert [20 * 4096, 4096] == sizes.tolist()


EDGES = [
    TextKey(vector=vector, lanes=lanes, depth=depth)
    for vector in (16, 8, 4, 2, 1)
    for lanes, depth in ((1, 0), (32, 0), (1, 8), (32, 8))
] + [
    TextKey(vector=0, lanes=lanes, depth=depth, src_dtype=a, dst_dtype=b)
    for a, b in (("float32", "bfloat16"), ("bfloat16", "float8_e4m3fn"),
                 ("float8_e5m2", "float16"), ("float16", "float32"))
    for lanes, depth in ((1, 0), (32, 8))
] + [
    TextKey(vector=16, lanes=32, depth=8, raises=raises, one=True)
    for raises in (False, True)
]  # fmt: skip
"""Every vector and type, with the least and the most of everything else."""


@pytest.mark.parametrize("shape", nightly(EDGES, 4), ids=str)
def test_every_kernel_compiles_without_a_stack(shape):
    """And without a warning: compilers of other versions warn of more."""
    try:
        _, log = build(kernel_of(shape, blocks=100), arch=(9, 0))
    except MissingExtraError as e:
        pytest.skip(str(e))

    assert usage(log).stack == 0
    assert usage(log).registers <= 128


def test_vectors_are_as_wide_as_everything_is_aligned():
    """One odd place makes all of them narrow."""
    assert 16 == shape_of(8192, 0, [0, 64, 4096], "int8", "int8", 1).vector
    assert 4 == shape_of(8192, 1, [0, 64, 20], "int8", "int8", 1).vector
    assert 1 == shape_of(33, 1, [0, 64], "int8", "int8", 1).vector
    assert 4 == shape_of(64, 1, [0], "int8", "int8", 1).lanes


@pytest.mark.parametrize(
    ("nbytes", "count", "by"),
    [(512 << 10, 8, "engines"), (256 << 10, 8, "kernel"), (512 << 10, 5000, "kernel")],
)
def test_large_pieces_that_are_few_go_by_engines(nbytes, count, by, monkeypatch):
    """Short ones, and very many, by a kernel, unless the caller says otherwise."""

    class Device:
        def enter(self):
            """Do nothing."""

    class Chosen:
        def __init__(self, mover, boxes, word):
            """Do nothing."""

    class Engines(Chosen):
        by = "engines"

    class Kernel(Chosen):
        by = "kernel"

    monkeypatch.setattr(movers, "_ByEngines", Engines)
    monkeypatch.setattr(movers, "_ByKernel", Kernel)
    mover = object.__new__(movers.GpuMover)
    mover.device = Device()
    layout = Layout(f"B={2 * count} X={nbytes} int8")
    made = plan(layout, layout)
    (run,) = made.runs(range(0, 2 * count, 2), range(1, 2 * count, 2))
    box = run.boxes[0]
    boxes = movers.Boxes(
        src_box=np.zeros(1, np.int64), dst_box=np.zeros(1, np.int64),
        src_chunk=run.src_at, dst_chunk=run.dst_at, axes=box.axes, run=box.run,
        src_dtype="int8", dst_dtype="int8", src_item=1, dst_item=1,
    )  # fmt: skip

    assert by == mover.prepare(boxes).by
    assert "engines" == mover.prepare(boxes, by="engines").by
