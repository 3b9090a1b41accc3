"""Channels for kernels of one's own: their handles, and that the headers compile."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest
from cuda_fakes import on_ranks
from tests.nightly import nightly

from stretto.errors import CallError
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.executors.cuda.custom.channels import ChannelsLayout
from stretto.executors.cuda.flags.watch import explain
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import CHANNEL, RECORD

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
    words = ChannelsLayout(blocks=3, num_ranks=4)
    pairs = [(b, q) for b in range(3) for q in range(4)]
    found = [words.inbox(b, q) for b, q in pairs]
    found += [words.counts(b, q) + 8 * i for b, q in pairs for i in range(2)]
    found += [words.calls(b) for b in range(3)]

    assert list(range(0, 8 * words.total, 8)) == sorted(found)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"nbytes": 0}, "channels of 0 bytes"),
        ({"nbytes": 8, "blocks": 1000}, "1000 blocks"),
    ],
)
def test_channels_that_cannot_be_are_refused(fake, how, text):
    """A buffer has bytes, a launch so many blocks."""

    def work(group):
        session = CudaSession(group)
        with pytest.raises(CallError, match=text):
            session.channels(**how)
        session.close()

    on_ranks(fake, 1, work)


def test_channels_differ_by_rank_is_an_error(fake):
    """channels() is collective."""

    def work(group):
        return CudaSession(group).channels(100 + group.rank)

    with pytest.raises(CallError, match=r"channels of \[\(100, 1\), \(101, 1\)\]"):
        on_ranks(fake, 2, work)


def test_a_record_of_a_channel_reads_as_one():
    """Who waited, for whom and what, and at which step of the author's."""
    record = np.zeros(1, RECORD)[0]
    record["state"], record["kind"], record["peer"] = 2, 1, 3
    record["channel"], record["step"], record["want"] = 2, 7, 2
    waiting, text = explain(record, {})

    assert [3] == waiting
    assert text.startswith("rank 0, channel to rank 3, step 7: waited for a packet")


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)])
def test_a_kernel_of_the_users_compiles_against_the_headers(arch):
    """Warnings are errors there, too."""
    kernel = Kernel(text=KERNEL, ranks=(0,), grid=1, threads=128)
    image, log = build(kernel, arch=arch)

    assert image
    assert "error" not in log


@pytest.mark.parametrize(("has_context", "entered"), [(False, 1), (True, 0)])
def test_a_kernel_of_ones_own_may_be_launched_by_any_thread(fake, has_context, entered):
    """One without a context gets the session's; another's is left alone."""
    said, launch = [], fake._launch

    def launched(*given):
        has = has_context or threading.get_ident() in said  # each thread has its own
        return launch(*given) if has else 201  # CUDA_ERROR_INVALID_CONTEXT

    fake._launch = launched

    def work(group):
        session = CudaSession(group)
        session.load_kernel = lambda kernel: Loaded(None, 5, kernel)
        own = session.channels(4096).kernel("text", "symbol")
        said.clear()

        def enter(context):
            said.append(threading.get_ident())
            return (fake.CUresult.CUDA_SUCCESS,)

        fake.cuCtxSetCurrent = enter
        own(1, stream=3)
        count = said.count(threading.get_ident())  # the watcher enters, too
        del fake.cuCtxSetCurrent
        session.close()
        return count

    assert [entered] == on_ranks(fake, 1, work)


def test_a_kernel_of_ones_own_begins_after_the_kernel_before_it(fake):
    """It does not wait on the device."""

    def work(group):
        session = CudaSession(group)
        session.load_kernel = lambda kernel: Loaded(None, 5, kernel)
        own = session.channels(4096).kernel("text", "symbol")
        fake.early.clear()
        own(1, stream=3)
        session.close()
        return list(fake.early)

    assert [[False]] == on_ranks(fake, 1, work)


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
        ("ping_pong", "SOURCE", "ping_pong"),
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
