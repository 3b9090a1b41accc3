"""Quantised sums on GPUs, bound: what is launched, and what launches share."""

from __future__ import annotations

import pytest
from cuda_fakes import on_ranks

torch = pytest.importorskip("torch")

from cuda_tensors import read_as_on_gpu  # noqa: E402

from stretto.executors.cuda.codegen.abi import Kernel  # noqa: E402
from stretto.executors.cuda.device import driver  # noqa: E402
from stretto.executors.cuda.launching.kernels import Loaded  # noqa: E402
from stretto.quantised import gpu  # noqa: E402
from stretto.runtime.calls import Communicator  # noqa: E402


def test_sums_of_one_room_share_memory_and_each_is_one_launch(fake, monkeypatch):
    """Of other sizes, types and wires; a larger one has memory of its own."""
    read_as_on_gpu(monkeypatch)
    monkeypatch.setattr(driver, "_torch", [lambda ordinal: 0])
    kernel = Kernel(text="one", ranks=(0, 1), grid=gpu.BLOCKS, threads=gpu.THREADS)

    def run(group):
        comm = Communicator(group, executor="cuda")
        session = comm._session("cuda")
        session.load_kernel = lambda one: Loaded(None, 7, kernel)
        before = len(fake.launches)
        for count, kind, wire in (
            (100, torch.float32, "fp8_128"),
            (9000, torch.bfloat16, "fp8_128"),
            (100, torch.float32, "int8_128"),
            (100, torch.float32, "int8_128"),
        ):
            comm.all_reduce(torch.ones(count, dtype=kind), wire=wire)
        small = len(comm._shared)
        comm.all_reduce(torch.ones(1 << 19), wire="fp8_128")
        both, launched = len(comm._shared), len(fake.launches) - before
        group.exchange({})
        comm.close()
        return small, both, len(comm._shared), launched >= 5

    assert [(1, 2, 0, True)] * 2 == on_ranks(fake, 2, run)
