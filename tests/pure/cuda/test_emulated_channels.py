"""Channels and registered kernels on this CPU, a thread each: values, order, faults."""

import ctypes
import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_fakes import on_ranks

from stretto import algorithms, collectives
from stretto.collectives import Operator, Shape, storage
from stretto.executors import Call
from stretto.executors.cuda import abi
from stretto.executors.cuda.byhand import (
    hand_footprint,
    hand_kernel,
    hand_layout,
    taken_by_hand,
)
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.watch import explain
from stretto.lower import lower
from stretto.plan import Schedule
from stretto.testing import draw, input_counts, interpret, output_counts
from stretto.verify import verify, verify_plan

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("one_hop"),
]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"


def _module(name, path):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


_emulate = _module("cuda_emulate", HERE / "emulate.py")
_own = _module("cuda_emulate_own", HERE / "emulate_own.py")

_built = {}


def built(text, folder, entry):
    """Return the function `go` of a text, compiled once."""
    if (text, entry) not in _built:
        _built[text, entry] = _own.build(text, folder, entry).go
    return _built[text, entry]


PING_PONG = """
#include "channel.cuh"
using namespace stretto;
struct P { const MemoryChannel* channels; u64* out; int rank, rounds; };
void kernel(const P p) {
  const MemoryChannel& to = p.channels[1 - p.rank];
  bool ok = true;
  for (int i = 0; i < p.rounds && ok; ++i) {
    if (i % 2 == p.rank) {
      u64* mine = reinterpret_cast<u64*>(to.local);
      for (u32 k = threadIdx.x; k < 64; k += blockDim.x) mine[k] = i * 1000 + k;
      __syncthreads();
      to.put(512, 0, 512, threadIdx.x, blockDim.x);
      __syncthreads();
      if (threadIdx.x == 0) to.signal();
    } else {
      if (threadIdx.x == 0) ok = to.wait(i);
      ok = __syncthreads_and(ok);
      const u64* got = reinterpret_cast<const u64*>(to.local + 512);
      for (u32 k = threadIdx.x; ok && k < 64; k += blockDim.x) {
        const u64 want = i * 1000 + k;
        if (load_relaxed_word(got + k) != want) p.out[0] = 1 + i;
      }
      __syncthreads();
    }
  }
  if (!ok) p.out[1] = 99;
}
"""
ENTRY = """
extern "C" void go(const P* of, unsigned ranks, unsigned grid, unsigned threads,
                   unsigned absent) {
  launch_ranks(kernel, of, ranks, grid, threads, absent);
}
"""


def parameters(*fields):
    """Return one structure of 64-bit words and one of pairs of ints, for each rank."""
    return b"".join(np.array(words, "<u8").tobytes() for words in fields)


def pair(low, high):
    return low | high << 32


def test_a_ping_pong_by_signals_brings_every_value(tmp_path):
    """What was put before a signal is there after the wait, launch after launch."""
    go = built(PING_PONG, tmp_path, ENTRY)
    handles = _own.Handles(2, 1024)
    out = np.zeros(2, np.uint64)
    for _ in range(3):
        given = parameters(
            *(
                (handles.memory[r].ctypes.data, out.ctypes.data, pair(r, 6))
                for r in range(2)
            )
        )
        go(ctypes.c_char_p(given), 2, 1, 32, 0)

    assert [0, 0] == out.tolist()


def test_who_waits_for_an_absent_rank_says_so_and_leaves(tmp_path):
    """The record names the rank, the kind of wait and the author's step."""
    go = built(PING_PONG, tmp_path, ENTRY)
    handles = _own.Handles(2, 1024, deadline_s=0.05)
    out = np.zeros(2, np.uint64)
    given = parameters(
        *((handles.memory[r].ctypes.data, out.ctypes.data, pair(r, 6)) for r in (0, 1))
    )
    go(ctypes.c_char_p(given), 2, 1, 32, 1 << 0)
    waiting, text = explain(handles.record(1), {})

    assert [0] == waiting
    assert "rank 1, channel to rank 0, step 0: waited for a signal" in text
    assert 99 == out[1]
    broken = [c.view(np.uint64)[0] for c in handles.control]
    assert all(broken), "the peer is told, so that it leaves too"


PACKETS = """
#include "channel.cuh"
using namespace stretto;
struct P { const MemoryChannel* channels; u64* out; int rank, ranks; };
void kernel(const P p) {
  const MemoryChannel* mine = p.channels + blockIdx.x * p.ranks;
  const u64 epoch = mine[p.rank].epoch();
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  const u64 at = (epoch & 1) * 8192, value = 100 * p.rank + i + (epoch << 32);
  for (int k = 1; k < p.ranks; ++k) {
    mine[(p.rank + k) % p.ranks].put_packet(at, p.rank * 64 + i, value, epoch);
  }
  u64 sum = value;
  for (int q = 0; q < p.ranks; ++q) {
    u64 part = 0;
    if (q != p.rank && !mine[q].read_packet(at, q * 64 + i, epoch, part)) return;
    sum += part;
  }
  p.out[i] = sum;
  __syncthreads();
  if (threadIdx.x == 0) mine[p.rank].end_call();
}
"""


def test_packets_need_no_signal_and_epochs_make_their_flags(tmp_path):
    """Two blocks a rank, three ranks: sums of 64-bit values, call after call."""
    go = built(PACKETS, tmp_path, ENTRY)
    handles = _own.Handles(3, 16384, blocks=2)
    out = [np.zeros(64, np.uint64) for _ in range(3)]
    for call in range(1, 5):
        given = parameters(
            *(
                (handles.memory[r].ctypes.data, out[r].ctypes.data, pair(r, 3))
                for r in range(3)
            )
        )
        go(ctypes.c_char_p(given), 3, 2, 32, 0)
        want = [300 + 3 * i + 3 * (call << 32) for i in range(64)]

        assert [want] * 3 == [o.tolist() for o in out]


ADD = """
#include "channel.cuh"
using namespace stretto;
struct P { const MemoryChannel* channels; u64* out; int rank, ranks; };
void kernel(const P p) {
  const float value = 1 + p.rank;
  for (int q = 0; q < p.ranks; ++q) {
    p.channels[q].add<float>(4 * threadIdx.x, value);
    p.channels[q].add<u32>(256, 512, 8, threadIdx.x, blockDim.x);
  }
}
"""


def test_additions_in_peers_memory_all_arrive(tmp_path):
    """Everybody adds to everybody, themselves included."""
    go = built(ADD, tmp_path, ENTRY)
    handles = _own.Handles(3, 1024)
    for r in range(3):
        handles.buffers[r][512:544].view(np.uint32)[:] = 10 + r
    given = parameters(
        *((handles.memory[r].ctypes.data, 0, pair(r, 3)) for r in range(3))
    )
    go(ctypes.c_char_p(given), 3, 1, 32, 0)

    for buffer in handles.buffers:
        assert [6.0] * 32 == buffer[:128].view(np.float32).tolist()
        assert [33] * 8 == buffer[256:288].view(np.uint32).tolist()


class ByHand:
    """All ranks of a registered kernel in one launch."""

    def __init__(self, name, ranks, words, folder, *, dtype, op, count):
        self.n, self.dtype, self.op = ranks, dtype, op
        self.program = algorithms.get(name).build(ranks)
        proved = verify_plan(lower(verify(self.program), Schedule.parse(words)))
        self.plan = proved.value
        kind = collectives.get(self.plan.collective)
        shape = Shape(num_ranks=ranks, split=1, params=self.plan.params)
        self.counts = (count,) * kind.num_parts(shape)
        call = Call(dtype=dtype, op=op, counts=self.counts)
        found = taken_by_hand(self.plan, call)
        assert found is not None
        item = storage(dtype).itemsize
        sizes = kind.symbol_sizes(shape, np.asarray(self.counts), item)
        self.kernel = hand_kernel(found, self.plan, rank=None, dtype=dtype, op=op)
        self.where = hand_layout(self.plan, sizes, call)
        needs = hand_footprint(found, self.plan, call)
        self.stage = [_emulate.aligned(2 * needs.stage, 0x5A) for _ in range(ranks)]
        self.packets = [_emulate.aligned(2 * needs.packets) for _ in range(ranks)]
        self.halves = needs.stage, needs.packets
        self.control = [
            _emulate.aligned(abi.control_bytes(ranks)) for _ in range(ranks)
        ]
        self.records = [_emulate.aligned(abi.RECORD.itemsize) for _ in range(ranks)]
        entry = (
            "void once(const Calls calls) { stretto_kernel(calls); }\n"
            'extern "C" void go(Calls* calls, unsigned grid, unsigned threads,'
            " unsigned from) {\n"
            "  launch_ranks(once, calls, 1, grid, threads, 0, from);\n}\n"
        )
        text = self.kernel.text.replace('#line 1 "', "// ")
        self.go = built(text, folder, entry)

    def __call__(self, given, shift=0, *, fingerprints=(7, 7, 7), absent=0):
        """Return every rank's output; the first `absent` ranks do not come."""
        n_out = output_counts(self.program, self.counts)
        item = storage(self.dtype).itemsize
        source = [_emulate.aligned(g.nbytes + 16)[shift:] for g in given]
        target = [_emulate.aligned(c * item + 16, 0x77)[shift:] for c in n_out]
        for memory, values in zip(source, given, strict=True):
            memory[: values.nbytes] = values.view(np.uint8)
        fields = {
            "input": source,
            "output": target,
            "stage": self.stage,
            "packets": self.packets,
            "control": self.control,
        }
        addresses = {k: [m.ctypes.data for m in v] for k, v in fields.items()}
        packed = b"".join(
            abi.pack(
                self.kernel,
                self.where,
                {
                    **addresses,
                    "record": self.records[r].ctypes.data,
                    "deadline_ns": 300_000_000 if absent else 60_000_000_000,
                    "fingerprint": fingerprints[r],
                    "stage_half": self.halves[0],
                    "packet_half": self.halves[1],
                },
            ).tobytes()
            for r in range(self.n)
        )
        grid, threads = self.kernel.grid, self.kernel.threads
        self.go(ctypes.c_char_p(packed), grid, threads, absent * grid // self.n)
        for memory, count in zip(target, n_out, strict=True):
            assert (memory[count * item :] == 0x77).all(), "it wrote past the end"
        return [
            t[: c * item].view(storage(self.dtype))
            for t, c in zip(target, n_out, strict=True)
        ]


@pytest.mark.parametrize(
    ("dtype", "op", "count", "shift"),
    [
        ("float32", Operator.AVG, 203, 4),
        ("uint8", Operator.MAX, 301, 1),
    ],
)
def test_the_registered_example_gives_the_programs_bits(
    tmp_path, dtype, op, count, shift
):
    """Launch after launch, any length and alignment; packet memory is left empty."""
    words = "packets blocks=2 threads=32"
    run = ByHand(
        "all_reduce/one_hop", 3, words, tmp_path, dtype=dtype, op=op, count=count
    )
    rng = np.random.default_rng(1)
    for _ in range(3):
        counts = input_counts(run.program, run.counts)
        given = [draw(rng, c, dtype, op) for c in counts]
        want = interpret(run.program, given, dtype=dtype, op=op, counts=run.counts)
        got = run(given, shift)

        for rank in range(3):
            assert want[rank].tobytes() == got[rank].tobytes()
        assert not any(memory.any() for memory in run.packets)


def test_packets_carry_the_word_that_means_nothing(tmp_path):
    """Data that look like an empty place arrive all the same."""
    run = two_ranks(tmp_path)
    given = [np.full(200, 0x7FB52C91, np.int32) for _ in range(2)]
    given[1][::3] = 5
    got = run(given)

    assert [0x7FB52C91] * 200 == got[0].tolist() == got[1].tolist()


def two_ranks(folder):
    words = "packets threads=32"
    how = {"dtype": "int32", "op": Operator.MAX, "count": 200}
    return ByHand("all_reduce/one_hop", 2, words, folder, **how)


def test_ranks_that_call_something_else_are_told_apart(tmp_path):
    """A registered kernel calls the roll like every other."""
    run = two_ranks(tmp_path)
    run([np.ones(200, np.int32)] * 2, fingerprints=(7, 8))
    plans = {7: run.plan, 8: run.plan}
    said = [explain(r.view(abi.RECORD)[0], plans)[1] for r in run.records]
    whole = [t for t in said if "entering: ranks [" in t and "called something" in t]

    assert whole, f"the first to find it says so, the other may be told: {said}"
    assert all(t.startswith(f"rank {r}, {run.plan.name}") for r, t in enumerate(said))


def test_who_does_not_enter_a_registered_kernel_is_named(tmp_path):
    """The others leave at the deadline, and say whom they missed in which call."""
    run = two_ranks(tmp_path)
    run([np.ones(200, np.int32)] * 2, absent=1)
    waiting, text = explain(run.records[1].view(abi.RECORD)[0], {7: run.plan})

    assert [0] == waiting
    assert text.startswith("rank 1, all_reduce/one_hop")
    assert "ranks [0] did not enter the call" in text


WHOLE = """
struct A {
  const MemoryChannel* channels; const EngineChannel* engines; int rounds; u32 nbytes;
  u64* wrong;
};
void once(const A a) { ping_pong(a.channels, a.engines, a.rounds, a.nbytes, a.wrong); }
extern "C" void go(const A* a) { launch_ranks(once, a, 1, 1, 32, 0); }
"""


def test_kernel_proxy_and_stream_play_ping_pong_together(tmp_path, fake):
    """Tables, requests, the thread, copies and flags: all of the engine channel.

    The kernel runs as threads here, the driver is the fake one, the rest is real.
    """
    module = _module("example_ping_pong", EXAMPLES / "gpu" / "ping_pong.py")
    go = built(module.BY_ENGINE, tmp_path, WHOLE)

    def work(group):
        session = CudaSession(group)
        made = session.channels(1024, kind="engine")
        wrong = np.zeros(2, np.uint64)
        given = parameters(
            (made.pointer, made.engine_pointer, pair(12, 512), wrong.ctypes.data)
        )
        for _ in range(2):
            group.exchange({})
            go(ctypes.c_char_p(given))
        group.exchange({})
        session.check()
        session.close()
        return wrong.tolist()

    assert [[0, 0]] * 2 == on_ranks(fake, 2, work)


def test_the_channels_of_a_session_play_ping_pong(tmp_path, fake):
    """The tables that a session writes are those that the headers read."""
    module = _module("example_ping_pong", EXAMPLES / "gpu" / "ping_pong.py")
    entry = WHOLE.replace("a.engines, ", "").replace("EngineChannel", "MemoryChannel")
    go = built(module.BY_STORES, tmp_path, entry)

    def work(group):
        session = CudaSession(group)
        made = session.channels(1024)
        wrong = np.zeros(2, np.uint64)
        given = parameters((made.pointer, 0, pair(12, 512), wrong.ctypes.data))
        for _ in range(2):
            go(ctypes.c_char_p(given))
        group.exchange({})
        session.check()
        session.close()
        return wrong.tolist()

    assert [[0, 0]] * 3 == on_ranks(fake, 3, work)
