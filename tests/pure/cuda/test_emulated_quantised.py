"""The kernel of quantised sums on this CPU, a thread each, against the definition."""

import ctypes
import shutil

import numpy as np
import pytest
from cuda_emulate import aligned
from cuda_emulate_own import Handles, build
from tests.host.quantised.oracle import TYPES, all_reduce

from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import build as compile_text
from stretto.executors.cuda.codegen.compile import usage
from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.words import KINDS
from stretto.quantised.gpu import OPTIONS, UNIT, SumCall, memory_of, text_of
from stretto.quantised.wire import Parts

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

BLOCKS, THREADS = 2, 64
ROOM = 8192
ENTRY = """
extern "C" void sum(const stretto::SumCall* of, unsigned ranks, unsigned grid,
                    unsigned threads, unsigned absent) {
  launch_ranks(stretto_quantised_sum, of, ranks, grid, threads, absent);
}
"""


class Emulated:
    """All ranks' memory, and the kernel."""

    def __init__(self, n, dtype, wire, folder, *, divide=False, deadline_s=60):
        self.n, self.kind = n, TYPES[dtype]
        text = text_of(dtype, wire, n, divide=divide, blocks=BLOCKS, threads=THREADS)
        self.library = build(text, folder, ENTRY)
        nbytes = memory_of(n, ROOM)
        self.handles = Handles(n, nbytes, blocks=BLOCKS, deadline_s=deadline_s)

    def run(self, xs, *, shift=0, absent=0, names=None):
        """Run a sum; return what each rank has, and what lies behind its output.

        `names` are what ranks call it, where they do not call the same.
        """
        item = np.dtype(self.kind).itemsize
        calls, outs, held = (SumCall * self.n)(), [], []
        for r, x in enumerate(xs):
            count = len(x)
            parts = Parts.of(self.n, count, UNIT)
            source, target = (aligned(item * (count + 64)) for _ in range(2))
            target[:] = 0xA5
            at = slice(item * shift, item * (shift + count))
            source[at] = np.ascontiguousarray(x).view(np.uint8)
            table = self.handles.memory[r]
            calls[r] = SumCall(
                table.ctypes.data, source.ctypes.data + item * shift,
                target.ctypes.data + item * shift, count, parts.each, ROOM, r,
                names[r] if names else 7,
            )  # fmt: skip
            held += [source, table]
            outs.append((target[at].view(self.kind), target[at.stop :]))
        self.library.sum(ctypes.byref(calls), self.n, BLOCKS, THREADS, absent)
        return outs


def given(rank, count, kind, seed):
    """Return a rank's elements, some of them zeros, some far larger."""
    rng = np.random.default_rng([seed, rank, count])
    x = (
        rng.standard_normal(count)
        * 10.0 ** rng.integers(-3, 4, count // 60 + 1)[np.arange(count) // 60]
    )
    x[rng.random(count) < 0.1] = 0
    return x.astype(kind)


@pytest.mark.parametrize("wire", ["fp8_128", "int8_128"])
@pytest.mark.parametrize(
    ("n", "dtype"), [(1, "float32"), (2, "bfloat16"), (3, "float32"), (2, "float16")]
)
def test_sums_are_the_definitions_bit_for_bit(n, dtype, wire, tmp_path):
    """Of any number of elements, aligned or not; nothing is written behind them."""
    divide = n == 3
    ranks = Emulated(n, dtype, wire, tmp_path, divide=divide)
    for seed, (count, shift) in enumerate(
        ((1, 0), (700, 0), (n * 2048, 1), (n * 5000, 3), (n * ROOM, 0), (515, 0))
    ):
        xs = [given(r, count, ranks.kind, seed) for r in range(n)]
        want = all_reduce(xs, wire, "avg" if divide else "sum")
        for out, behind in ranks.run(xs, shift=shift):
            assert out.tobytes() == want.tobytes(), (count, shift)
            assert (behind == 0xA5).all()


def test_who_does_not_come_is_named(tmp_path):
    """The others leave at the deadline, and their records say whom they missed."""
    ranks = Emulated(2, "float32", "int8_128", tmp_path, deadline_s=0.2)
    ranks.run([np.ones(9, np.float32)] * 2, absent=0b10)

    missing, said = explain(ranks.handles.record(0), {})
    assert missing == [1]
    assert "channel to rank 1, step 1" in said


@pytest.mark.parametrize("counts", [(9, 9, 9), (900, 5000, 900)])
def test_who_calls_another_sum_is_found_by_all_and_at_once(counts, tmp_path):
    """Of another size, or of another type or wire: that is what its name says."""
    ranks = Emulated(3, "float32", "fp8_128", tmp_path, deadline_s=60)
    alike = [np.ones(n, np.float32) for n in (9, 9, 9)]
    want = all_reduce(alike, "fp8_128", "sum")
    for name in (5, 6):  # the names of earlier calls are no names of later ones
        for out, _ in ranks.run(alike, names=[name] * 3):
            assert out.tobytes() == want.tobytes()

    ranks.run([np.ones(n, np.float32) for n in counts], names=[5, 6, 5])

    kinds = [KINDS[int(ranks.handles.record(r)["kind"])] for r in range(3)]
    assert "mismatch" in kinds
    assert set(kinds) <= {"mismatch", "told"}
    for r, kind in enumerate(kinds):
        record = ranks.handles.record(r)
        assert record["fingerprint"] == (6 if r == 1 else 5)
        waiting, said = explain(record, {})
        if kind == "mismatch":
            assert "called something else" in said
            assert waiting == ([1] if r != 1 else waiting)
        else:
            assert "as ranks called different things" in said


def test_who_comes_late_to_another_call_is_told_of_by_name(tmp_path):
    """At the deadline the record says which call it was that waited."""
    ranks = Emulated(2, "float32", "fp8_128", tmp_path, deadline_s=0.2)
    ranks.run([np.ones(9, np.float32)] * 2, absent=0b10, names=[11, 11])

    record = ranks.handles.record(0)
    assert KINDS[int(record["kind"])] == "timeout"
    assert record["fingerprint"] == 11


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [2, 8])
def test_it_compiles_and_keeps_almost_all_in_registers(dtype, n):
    """With as many threads as it is launched with."""
    text = text_of(dtype, "fp8_128", n, divide=True, blocks=64, threads=512)
    kernel = Kernel(
        text=text, symbol="stretto_quantised_sum", ranks=(0,), grid=64, threads=512,
        options=OPTIONS,
    )  # fmt: skip
    _, log = compile_text(kernel, arch=(9, 0))

    assert usage(log).registers <= 128
    assert usage(log).spill_stores <= 64
