"""Channels on this CPU, a thread each: values, order, faults."""

import ctypes
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from cuda_emulate_own import Handles, built
from cuda_fakes import on_ranks

from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.session import CudaSession

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

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
    handles = Handles(2, 1024)
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
    handles = Handles(2, 1024, deadline_s=0.05)
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
    handles = Handles(3, 16384, blocks=2)
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
    handles = Handles(3, 1024)
    for r in range(3):
        handles.buffers[r][512:544].view(np.uint32)[:] = 10 + r
    given = parameters(
        *((handles.memory[r].ctypes.data, 0, pair(r, 3)) for r in range(3))
    )
    go(ctypes.c_char_p(given), 3, 1, 32, 0)

    for buffer in handles.buffers:
        assert [6.0] * 32 == buffer[:128].view(np.float32).tolist()
        assert [33] * 8 == buffer[256:288].view(np.uint32).tolist()


def _example():
    """Return examples/gpu/ping_pong.py."""
    path = Path(__file__).parents[3] / "examples" / "gpu" / "ping_pong.py"
    spec = importlib.util.spec_from_file_location("example_ping_pong", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WHOLE = """
struct A {
  const MemoryChannel* channels; int rounds; u32 nbytes; u64* wrong;
};
void once(const A a) { ping_pong(a.channels, a.rounds, a.nbytes, a.wrong); }
extern "C" void go(const A* a) { launch_ranks(once, a, 1, 1, 32, 0); }
"""


def test_the_channels_of_a_session_play_ping_pong(tmp_path, fake):
    """The tables that a session writes are those that the headers read."""
    module = _example()
    go = built(module.SOURCE, tmp_path, WHOLE)

    def work(group):
        session = CudaSession(group)
        made = session.channels(1024)
        wrong = np.zeros(2, np.uint64)
        given = parameters((made.pointer, pair(12, 512), wrong.ctypes.data))
        for _ in range(2):
            go(ctypes.c_char_p(given))
        group.exchange({})
        session.check()
        session.close()
        return wrong.tolist()

    assert [[0, 0]] * 3 == on_ranks(fake, 3, work)
