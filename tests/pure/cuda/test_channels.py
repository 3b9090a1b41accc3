"""Channels for kernels of one's own: their handles, and that the headers compile."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from cuda_fakes import on_ranks

from stretto.errors import CallError
from stretto.executors.cuda import include_path
from stretto.executors.cuda.abi import Kernel
from stretto.executors.cuda.channels import CHANNEL
from stretto.executors.cuda.compile import build
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


def test_channels_of_nothing_are_refused(fake):
    """A buffer has bytes."""

    def work(group):
        session = CudaSession(group)
        with pytest.raises(CallError, match="channels of 0 bytes"):
            session.channels(0)
        session.close()

    on_ranks(fake, 1, work)


@pytest.mark.parametrize("arch", [(8, 0), (9, 0), (10, 0)])
def test_a_kernel_of_the_users_compiles_against_the_headers(arch):
    """Warnings are errors there, too."""
    kernel = Kernel(text=KERNEL, ranks=(0,), grid=1, threads=128)
    image, log = build(kernel, arch=arch)

    assert image
    assert "error" not in log


def test_the_include_path_holds_the_header():
    """For NVRTC, CuPy or torch's inline loader of one's own."""
    assert (Path(include_path()) / "channel.cuh").is_file()


def _ranks_program():
    """Return the module of the device program, whose kernels are its text."""
    path = Path(__file__).parents[2] / "device" / "ranks.py"
    text = path.read_text()
    start = text.index('PING_PONG = """')
    stop = text.index("def _own_kernel")
    spec = importlib.util.spec_from_loader("device_kernels", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(text[start:stop], module.__dict__)
    return module


@pytest.mark.parametrize("name", ["PING_PONG", "ALL_REDUCE"])
def test_the_example_kernels_compile(name):
    """What device tests run compiles without a GPU."""
    text = getattr(_ranks_program(), name)
    kernel = Kernel(text=text, ranks=(0,), grid=1, threads=128)

    assert build(kernel, arch=(9, 0))[0]
