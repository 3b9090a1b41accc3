"""Channels for kernels of one's own: their handles, and that the headers compile."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cuda_fakes import on_ranks
from tests.nightly import nightly

import stretto
from stretto.errors import CallError, CollectiveTimeout, DeviceError
from stretto.executors.cuda.codegen import abi
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import build, headers, usage
from stretto.executors.cuda.custom import proxy
from stretto.executors.cuda.custom.channels import CHANNEL, ENGINE, Words
from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession

KERNEL = """
#include "channel.cuh"
extern "C" __global__ void stretto_kernel(const stretto::MemoryChannel* channels) {
  const stretto::MemoryChannel& to = channels[1];
  to.put(0, 0, 1024, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    to.signal();
    to.wait();
  }
  stretto::u64 value = 0;
  to.put_packet(0, threadIdx.x, 1, 2);
  to.read_packet(0, threadIdx.x, 2, value);
  if (value) to.get(0, 0, 8, threadIdx.x, blockDim.x);
}
"""


def test_both_ends_of_a_channel_name_the_same_words(fake):
    """What one rank counts up is what the other polls, and buffers are mutual."""

    def work(group):
        session = CudaSession(group)
        made = session.channels(4096)
        raw = (ctypes.c_uint8 * (3 * CHANNEL.itemsize)).from_address(made.pointer)
        handles = np.frombuffer(bytes(raw), CHANNEL)
        for q, one in enumerate(handles):
            if q != group.rank:
                word = ctypes.c_uint64.from_address(int(one["outbox"]))
                word.value = 100 * group.rank + q
        group.exchange({})
        seen = [
            ctypes.c_uint64.from_address(int(one["inbox"])).value for one in handles
        ]
        group.exchange({})
        session.close()
        return seen

    assert [[0, 100, 200], [1, 0, 201], [2, 102, 0]] == on_ranks(fake, 3, work)


def test_every_word_of_a_set_of_channels_is_its_own():
    """Blocks and peers do not share counters."""
    words = Words(blocks=3, num_ranks=4)
    pairs = [(b, q) for b in range(3) for q in range(4)]
    found = [f(b, q) for f in (words.inbox, words.engine_inbox) for b, q in pairs]
    found += [words.flushed(b, q) for b, q in pairs]
    found += [words.counts(b, q) + 8 * i for b, q in pairs for i in range(2)]
    found += [words.engine_counts(b, q) + 8 * i for b, q in pairs for i in range(3)]
    found += [*(words.calls(b) for b in range(3)), words.numbers]

    assert list(range(0, 8 * words.total, 8)) == sorted(found)


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"nbytes": 0}, CallError, "channels of 0 bytes"),
        ({"nbytes": 8, "blocks": 1000}, CallError, "1000 blocks"),
        ({"nbytes": 8, "kind": "port"}, CallError, "want .memory. or .engine."),
        ({"nbytes": 8, "kind": "switch"}, DeviceError, "does not use on any machine"),
    ],
)
def test_channels_that_cannot_be_are_refused(fake, how, error, text):
    """A buffer has bytes, a launch so many blocks, and the switch is never used."""

    def work(group):
        session = CudaSession(group)
        with pytest.raises(error, match=text):
            session.channels(**how)
        session.close()

    on_ranks(fake, 1, work)


def test_channels_differ_by_rank_is_an_error(fake):
    """channels() is collective."""

    def work(group):
        return CudaSession(group).channels(100 + group.rank)

    with pytest.raises(CallError, match=r"channels of \[\(100, 1\), \(101, 1\)\]"):
        on_ranks(fake, 2, work)


def ask_for(made, peer, kind, to=0, source=0, amount=0, block=0):
    """Write a request as a kernel does."""
    words = made.ring._words
    numbers = ctypes.c_uint64.from_address(made._words.pointer + made.words.numbers)
    at = 8 + 8 * (numbers.value % proxy.RING_SLOTS)
    words[at + 1 : at + 5] = (kind | peer << 8 | block << 16, to, source, amount)
    numbers.value += 1
    words[at] = numbers.value


def until(condition):
    """Wait for the proxy, a few seconds at most."""
    stop_at = time.monotonic() + 5
    while not condition() and time.monotonic() < stop_at:
        time.sleep(0.001)
    assert condition()


def memory(address, nbytes):
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def test_a_copy_engine_moves_what_a_kernel_asks_for(fake):
    """Put, signal and flush, more than the ring holds, in their order."""

    def work(group):
        session = CudaSession(group)
        made = session.channels(4096, kind="engine", blocks=2)
        size = 2 * group.num_ranks * ENGINE.itemsize
        raw = memory(made.engine_pointer, size)
        handles = np.frombuffer(raw.tobytes(), ENGINE).reshape(2, group.num_ranks)
        peer = 1 - group.rank
        mine = memory(made.buffer.pointer, 4096)
        mine[:100] = np.arange(100) + group.rank
        group.exchange({})
        ask_for(made, peer, proxy.PUT, to=1000, source=0, amount=100, block=1)
        for n in range(1, 300):
            until(lambda n=n: made.ring._words[0] + proxy.RING_SLOTS > n)
            ask_for(made, peer, proxy.SIGNAL, amount=n, block=1)
        ask_for(made, peer, proxy.FLUSH, amount=1, block=1)
        inbox = ctypes.c_uint64.from_address(int(handles[1, peer]["inbox"]))
        flushed = ctypes.c_uint64.from_address(int(handles[1, peer]["flushed"]))
        until(lambda: inbox.value == 299 and flushed.value == 1)
        group.exchange({})
        got = mine[1000:1100].tolist()
        thread = session._proxy
        session.close()
        return got == (np.arange(100) + peer).tolist(), thread.alive

    assert [(True, False)] * 2 == on_ranks(fake, 2, work)


def test_rings_of_channels_that_are_gone_are_used_again(fake):
    """They are looked at no more; their numbers begin at 0 for the next channels."""

    def work(group):
        session = CudaSession(group)
        kept = session.channels(4096, kind="engine")
        for _ in range(4):
            made = session.channels(4096, kind="engine")
            ask_for(made, 1 - group.rank, proxy.FLUSH, amount=1)
            until(lambda made=made: made.ring._words[0] == 1)
            group.exchange({})
            del made
            until(lambda: len(session.proxy()._rings) == 1)
        served = [r is kept.ring for r in session.proxy()._rings]
        spare = len(session.proxy()._spare)
        ask_for(kept, 1 - group.rank, proxy.FLUSH, amount=1)
        until(lambda: kept.ring._words[0] == 1)
        group.exchange({})
        session.close()
        return served, spare

    assert [([True], 1)] * 2 == on_ranks(fake, 2, work)


def test_a_wrong_request_breaks_the_session(fake):
    """It is told where and what it was, and kernels that wait may leave."""

    def work(group):
        session = CudaSession(group)
        made = session.channels(512, kind="engine")
        if group.rank == 0:
            ask_for(made, 1, proxy.PUT, to=500, source=0, amount=100)
            until(lambda: session.watch.fault is not None)
            with pytest.raises(CollectiveTimeout, match="100 bytes from 0 to 500"):
                session.check()
            until(lambda: memory(session.slab.base, 8).any())
        group.exchange({})
        session.close()

    on_ranks(fake, 2, work)


def test_channels_without_an_engine_say_so(fake):
    """There is no table of engine channels unless one was asked for."""

    def work(group):
        made = CudaSession(group).channels(512)
        with pytest.raises(CallError, match="kind='engine'"):
            _ = made.engine_pointer

    on_ranks(fake, 1, work)


def test_a_record_of_a_channel_reads_as_one():
    """Who waited, for whom and what, and at which step of the author's."""
    record = np.zeros(1, abi.RECORD)[0]
    record["state"], record["kind"], record["peer"] = 2, 1, 3
    record["channel"], record["step"], record["want"] = 3, 7, 2
    waiting, text = explain(record, {})

    assert [3] == waiting
    assert text.startswith(
        "rank 0, channel to rank 3, step 7: waited for a signal of its copy engine"
    )


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)])
def test_a_kernel_of_the_users_compiles_against_the_headers(arch):
    """Warnings are errors there, too."""
    kernel = Kernel(text=KERNEL, ranks=(0,), grid=1, threads=128)
    image, log = build(kernel, arch=arch)

    assert image
    assert "error" not in log


@pytest.mark.parametrize(("context", "entered"), [(0, 1), (1, 0)])
def test_a_kernel_of_ones_own_may_be_launched_by_any_thread(fake, context, entered):
    """One without a context gets the session's; another's is left alone."""

    def work(group):
        session = CudaSession(group)
        session.load_kernel = lambda kernel: Loaded(None, 5, kernel)
        own = session.channels(4096).kernel("text", "symbol")
        said = []
        fake.cuCtxGetCurrent = lambda: (fake.CUresult.CUDA_SUCCESS, context)
        fake.cuLaunchKernel = lambda *_: (fake.CUresult.CUDA_SUCCESS,)

        def enter(context):
            said.append(threading.get_ident())
            return (fake.CUresult.CUDA_SUCCESS,)

        fake.cuCtxSetCurrent = enter
        own(1, stream=3)
        count = said.count(threading.get_ident())  # the watcher enters, too
        del fake.cuCtxGetCurrent, fake.cuCtxSetCurrent
        session.close()
        return count

    assert [entered] == on_ranks(fake, 1, work)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_the_switch_channel_compiles_and_nothing_of_ours_can_include_it(arch):
    """It lies outside what kernels are compiled with, and wants to be asked for."""
    from cuda.bindings import nvrtc

    text = (
        '#include "compile_only/switch_channel.cuh"\n'
        "__global__ void k(stretto::SwitchChannel c, stretto::Vec* o) {\n"
        "  o[0] = c.reduce_bfloat16(0); c.broadcast(0, o[1]); c.signal(64);\n}"
    )
    said = []
    for define in ((), (b"-DSTRETTO_COMPILE_ONLY",)):
        _, made = nvrtc.nvrtcCreateProgram(text.encode(), b"s.cu", 0, [], [])
        where = f"--include-path={stretto.include_path()}".encode()
        options = [f"--gpu-architecture={arch}".encode(), where, *define]
        (code,) = nvrtc.nvrtcCompileProgram(made, len(options), options)
        said.append(int(code) == 0)

    assert [False, True] == said
    assert "switch_channel.cuh" not in headers()


def _device_kernels():
    """Return the module of the device checks' kernels, which are its text."""
    path = Path(__file__).parents[2] / "device" / "rank_calls.py"
    text = path.read_text()
    start = text.index('PING_PONG = """')
    stop = text.index("def _own_kernel")
    spec = importlib.util.spec_from_loader("device_kernels", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(text[start:stop], module.__dict__)
    return module


@pytest.mark.parametrize("name", ["PING_PONG", "ALL_REDUCE"])
def test_the_device_tests_kernels_compile(name):
    """What device tests run compiles without a GPU."""
    text = getattr(_device_kernels(), name)
    kernel = Kernel(text=text, ranks=(0,), grid=1, threads=128)

    assert build(kernel, arch=(9, 0))[0]


def _example(name):
    path = Path(__file__).parents[3] / "examples" / "gpu" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("example", "text", "symbol"),
    [
        ("ping_pong", "BY_STORES", "ping_pong"),
        ("ping_pong", "BY_ENGINE", "ping_pong"),
        ("matmul_all_reduce", "SOURCE", "matmul_all_reduce"),
    ],
)
@pytest.mark.parametrize(
    "arch", nightly(map(pytest.param, [(9, 0), (8, 0), (10, 0)]), 3)
)
def test_the_examples_compile_without_spills(example, text, symbol, arch):
    """On every architecture, with warnings as errors."""
    source = getattr(_example(example), text)
    kernel = Kernel(text=source, symbol=symbol, ranks=(0,), grid=1, threads=256)
    _, log = build(kernel, arch=arch)

    assert (0, 0) == (usage(log).spill_stores, usage(log).spill_loads)
