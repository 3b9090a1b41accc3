"""Calls with an epilogue, from the communicator to a kernel's parameters."""

import ctypes

import numpy as np
import pytest
from cuda_fakes import on_ranks
from tests.stand_ins import TensorLike

from stretto.errors import CallError, PlanError
from stretto.executors.cuda.codegen.generate import generate
from stretto.executors.cuda.flags import regions
from stretto.executors.cuda.launching.kernels import Loaded, TooManyBlocks
from stretto.executors.cuda.words import PARAMS
from stretto.program import epilogues as ep
from stretto.runtime.calls import Communicator

made = []
"""Addresses given to new tensors."""


class Tensor(TensorLike):
    """As much of a CUDA tensor as a call looks at."""

    def __init__(self, at, shape, dtype="bfloat16", gpu=0):
        self.at, self.shape, self.dtype = at, shape, f"torch.{dtype}"
        self.gpu = gpu

    def data_ptr(self):
        return self.at

    def __dlpack_device__(self):
        return 2, self.gpu

    def detach(self):
        return self

    def new_empty(self, shape, dtype=None):
        made.append(1 << 24 | len(made) << 16)
        return Tensor(made[-1], shape, str(dtype or self.dtype).removeprefix("torch."))


@ep.epilogue
def add_rms_norm(y, residual, weight, eps):
    s = y + residual
    return {"out": s * ep.rsqrt(ep.row_mean(s * s) + eps) * weight, "residual": s}


def opened(group, kernels):
    """Return a communicator whose kernels are generated and not compiled."""
    comm = Communicator(group, executor="cuda")
    session = comm._session("cuda")

    def load_call(plan, call, share=0, counted=False):
        kernel = generate(
            plan,
            rank=group.rank,
            dtype=call.dtype,
            epilogue=call.epilogue,
            rows=call.rows,
            share=share,
        )
        kernels.append(kernel)
        return Loaded(None, 9, kernel)

    session.load_call = load_call
    return comm


def words(fake, kernel):
    """Return the words of the last launch's table."""
    where = fake.launches[-1][3] + PARAMS.itemsize
    raw = ctypes.string_at(where, 8 * len(kernel.table))
    return dict(zip(kernel.table, np.frombuffer(raw, np.int64).tolist(), strict=True))


def test_a_call_gives_its_kernel_the_addresses_of_all_arrays(fake):
    """Inputs and outputs in the function's order; a number by its bits."""

    def work(group):
        kernels = []
        comm = opened(group, kernels)
        x, residual = Tensor(4096, (2, 8192)), Tensor(1 << 20, (2, 8192))
        weight = Tensor(1 << 22, (8192,), "float32")
        if group.rank == 0:
            fused = add_rms_norm(residual=residual, weight=weight, eps=0.5)
            got = comm.all_reduce(x, epilogue=fused.into(residual=residual), stream=5)
            found = words(fake, kernels[-1])
            extra = [found["extra", i, 0] for i in range(5)]

            assert got["residual"] is residual
            want = [1 << 20, 1 << 22, 0x3F000000, got["out"].at, 1 << 20]
            assert want == extra
            assert "static constexpr u32 share = 8;" in kernels[-1].text
            launches = len(fake.launches)
            comm.all_reduce(x, epilogue=fused.into(**got), stream=5)
            assert fake.launches[-1] == fake.launches[launches - 1]
        group.exchange({})

    on_ranks(fake, 2, work)


def test_other_arrays_are_written_into_parameters_that_are_there(fake):
    """What is packed once for a set of flags serves all arrays; old ones stay right."""

    def work(group):
        kernels = []
        comm = opened(group, kernels)
        if group.rank == 0:
            for turn in (0, 1, 2, 0, 1):
                at = 1 + turn << 22
                x, residual = Tensor(at, (2, 8192)), Tensor(at + (1 << 20), (2, 8192))
                out, weight = Tensor(at + (2 << 20), (2, 8192)), Tensor(64, (8192,))
                fused = add_rms_norm(residual=residual, weight=weight, eps=turn / 2)
                made = fused.into(residual=residual, out=out)
                comm.all_reduce(x, epilogue=made, stream=5)
                found = words(fake, kernels[-1])
                bits = int(np.float32(turn / 2).view(np.uint32))
                want = [residual.at, 64, bits, out.at, residual.at]

                assert want == [found["extra", i, 0] for i in range(5)]
        group.exchange({})

    on_ranks(fake, 2, work)


def test_rows_are_whole_where_their_clusters_do_not_fit(fake):
    """A GPU with few SMs in a group runs the same plan, with idle blocks."""

    def work(group):
        kernels = []
        comm = opened(group, kernels)
        session = comm._session("cuda")
        load_call = session.load_call

        def load_few(plan, call, share=0, counted=False):
            if share > 1:
                raise TooManyBlocks("16 blocks wait for each other")
            return load_call(plan, call, share)

        session.load_call = load_few
        x, residual = Tensor(4096, (2, 8192)), Tensor(1 << 20, (2, 8192))
        weight = Tensor(1 << 22, (8192,))
        if group.rank == 0:
            fused = add_rms_norm(residual=residual, weight=weight, eps=0.5)
            comm.all_reduce(x, epilogue=fused, stream=5)

            assert "static constexpr u32 share = 1;" in kernels[-1].text
            tile = PARAMS.fields["tile"][1]
            raw = ctypes.string_at(fake.launches[-1][3] + tile, 8)
            assert 8192 == int.from_bytes(raw, "little")
        group.exchange({})

    on_ranks(fake, 2, work)


@pytest.mark.parametrize("room", [256, 128])
def test_a_gpu_with_little_room_has_half_the_blocks(fake, monkeypatch, room):
    """128 rows of 8192 are 256 blocks where two find room on an SM."""
    monkeypatch.setitem(regions.HALVES, "packets", 4 << 20)

    def work(group):
        kernels = []
        comm = opened(group, kernels)
        session = comm._session("cuda")
        load_call = session.load_call

        def load_few(plan, call, share=0, counted=False):
            if plan.plan.schedule.blocks > room:
                raise TooManyBlocks("256 blocks wait for each other")
            return load_call(plan, call, share)

        session.load_call = load_few
        x, residual = Tensor(4096, (128, 8192)), Tensor(1 << 22, (128, 8192))
        weight = Tensor(1 << 24, (8192,))
        if group.rank == 0:
            fused = add_rms_norm(residual=residual, weight=weight, eps=0.5)
            out = Tensor(1 << 26, (128, 8192))
            into = fused.into(residual=residual, out=out)
            comm.all_reduce(x, epilogue=into, stream=5)

            assert room == kernels[-1].grid
            assert f"share = {room // 128};" in kernels[-1].text
        group.exchange({})

    on_ranks(fake, 2, work)


def test_arrays_that_cannot_be_moved_by_16_bytes_are_refused(fake):
    """With what to pass instead."""

    def work(group):
        comm = opened(group, [])
        x, weight = Tensor(4096, (2, 64)), Tensor(1 << 22, (64,))
        if group.rank == 0:
            odd = Tensor((1 << 20) + 2, (2, 64))
            fused = add_rms_norm(residual=odd, weight=weight, eps=0.5)
            with pytest.raises(
                CallError, match=r"residual begins 2 bytes after.*clone"
            ):
                comm.all_reduce(x, epilogue=fused, stream=5)
            fused = add_rms_norm(residual=x, weight=weight, eps=0.5)
            with pytest.raises(PlanError, match="copy engines compute nothing"):
                comm.all_gather(
                    Tensor(1 << 26, (1, 64)),
                    epilogue=fused,
                    algorithm="all_gather/one_shot push engine staged",
                    stream=5,
                )
        group.exchange({})

    on_ranks(fake, 2, work)


def test_arrays_of_another_gpu_are_refused(fake):
    """Whichever they are: the collective's, or the epilogue's."""

    def work(group):
        comm = opened(group, [])
        near, far = Tensor(4096, (2, 64)), Tensor(1 << 20, (2, 64), gpu=1)
        weight = Tensor(1 << 22, (64,))
        if group.rank == 0:
            for x, residual in ((near, far), (far, near)):
                fused = add_rms_norm(residual=residual, weight=weight, eps=0.5)
                with pytest.raises(CallError, match="a Tensor on GPU 1; this rank"):
                    comm.all_reduce(x, epilogue=fused, stream=5)
        group.exchange({})

    on_ranks(fake, 2, work)


def test_an_all_to_all_along_other_axes_says_how_its_parts_lie(fake):
    """In bytes, in the kernel's table."""

    def work(group):
        kernels = []
        comm = opened(group, kernels)
        x = Tensor(4096, (3, 8, 64))
        if group.rank == 0:
            got = comm.all_to_all(x, split=1, concat=0, stream=5)
            found = words(fake, kernels[-1])

            assert (6, 4, 64) == got.shape
            assert 2 * 3 * 4 * 64 == found["extra", 0, 0]
            assert 2 * 4 * 64 == found["extra", 1, 0]
        group.exchange({})

    on_ranks(fake, 2, work)
