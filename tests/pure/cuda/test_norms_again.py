"""Fused norms that were called before: launched without looking at much, and right."""

import ctypes

import numpy as np
import pytest
from cuda_fakes import on_ranks

torch = pytest.importorskip("torch")

from cuda_tensors import read_as_on_gpu  # noqa: E402

from stretto.executors.cuda.codegen.generate import generate  # noqa: E402
from stretto.executors.cuda.launching import launch  # noqa: E402
from stretto.executors.cuda.launching.kernels import Loaded  # noqa: E402
from stretto.executors.cuda.words import PARAMS  # noqa: E402
from stretto.runtime.calls import Communicator  # noqa: E402
from stretto.torch.operators import norms  # noqa: E402

ROWS, HIDDEN, EPS = 4, 512, 1e-6


@pytest.fixture(autouse=True)
def tensors_on_gpu(monkeypatch):
    read_as_on_gpu(monkeypatch)
    monkeypatch.setattr(norms, "in_kernel", lambda *given: True)
    monkeypatch.setattr(launch, "current_stream", lambda ordinal: 5)


class Examined(Exception):
    """A call took the long way."""


def opened(group, kernels):
    """Return a communicator whose kernels are generated and not compiled."""
    comm = Communicator(group, executor="cuda")

    def load_call(plan, call, share=0, counted=False):
        kernels.append(
            generate(
                plan,
                rank=group.rank,
                dtype=call.dtype,
                epilogue=call.epilogue,
                rows=call.rows,
                share=share,
            )
        )
        return Loaded(None, 9, kernels[-1])

    comm._session("cuda").load_call = load_call
    return comm


def drawn(*shape, dtype=torch.bfloat16, at=0):
    """Return a tensor that begins so many bytes after a multiple of 64."""
    count = int(np.prod(shape)) * dtype.itemsize
    raw = torch.zeros(count + 128, dtype=torch.uint8)
    first = -raw.data_ptr() % 64 + at
    return raw[first : first + count].view(dtype).view(shape)


def extra_words(fake, kernel):
    """Return what the last launch was given beside the collective's arrays."""
    where = fake.launches[-1][3] + PARAMS.itemsize
    raw = ctypes.string_at(where, 8 * len(kernel.table))
    words = dict(zip(kernel.table, np.frombuffer(raw, np.int64).tolist(), strict=True))
    return [words["extra", nth, 0] for nth in range(5)]


def blind(comm):
    """Let no call be examined any more."""

    def refuse(*_):
        raise Examined

    comm._enter = refuse
    for key in [key for key in comm._calls if type(key[0]) is str]:
        del comm._calls[key]


def alone(fake, work):
    """Run on the first of two ranks."""

    def run(group):
        if group.rank == 0:
            kernels = []
            work(opened(group, kernels), kernels)
        else:
            Communicator(group, executor="cuda")
        group.exchange({})

    on_ranks(fake, 2, run)


@pytest.mark.parametrize("how", ["kept", "used", "in place"])
def test_other_tensors_are_launched_by_their_addresses(fake, how):
    """With another number, too; results are new, but for what is replaced."""

    def work(comm, kernels):
        weight = drawn(HIDDEN)

        def call(x, residual, eps):
            if how == "in place":
                return norms.normed_(comm, x, residual, weight, eps), residual
            return norms.normed(comm, x, residual, weight, eps, keep=how == "kept")

        call(drawn(ROWS, HIDDEN), drawn(ROWS, HIDDEN), EPS)
        blind(comm)
        for eps in (EPS, 0.5, 0.0):
            x, residual = drawn(ROWS, HIDDEN), drawn(ROWS, HIDDEN)
            out, total = call(x, residual, eps)
            bits = int(np.float32(eps).view(np.uint32))
            due = [residual, weight, bits, out, total]
            due = [one if type(one) is int else one.data_ptr() for one in due]

            assert due == extra_words(fake, kernels[-1])
            assert (total is residual) == (how == "in place")
            assert out.shape == total.shape == x.shape

    alone(fake, work)


OTHERS = {
    "shape": lambda x, r, w: (drawn(ROWS + 1, HIDDEN), drawn(ROWS + 1, HIDDEN), w),
    "weight": lambda x, r, w: (x, r, w.clone()),
    "element type": lambda x, r, w: (x.half(), r.half(), w),
    "strides": lambda x, r, w: (x, drawn(HIDDEN, ROWS).t(), w),
    "alignment": lambda x, r, w: (x, drawn(ROWS, HIDDEN, at=2), w),
    "overlap": lambda x, r, w: (x, x, w),
    "class": lambda x, r, w: (x, torch.nn.Parameter(r, requires_grad=False), w),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_is_examined(fake, what):
    """Another shape, weight, type, stride, alignment, overlap or class."""

    def work(comm, kernels):
        given = drawn(ROWS, HIDDEN), drawn(ROWS, HIDDEN), drawn(HIDDEN)
        norms.normed(comm, *given, EPS)
        blind(comm)
        with pytest.raises(Examined):
            norms.normed(comm, *OTHERS[what](*given), EPS)
        norms.normed(comm, *given, EPS)

    alone(fake, work)


def test_memory_that_peers_reach_by_now_is_examined(fake):
    """Registering forgets what was known; after a fault nothing is known."""

    def work(comm, kernels):
        given = drawn(ROWS, HIDDEN), drawn(ROWS, HIDDEN), drawn(HIDDEN)
        norms.normed(comm, *given, EPS)
        assert 1 == sum(type(key[0]) is int for key in comm.memo)
        session = comm._session("cuda")
        blind(comm)
        session.space._slab.offset = lambda address, nbytes: 0
        with pytest.raises(Examined):
            norms.normed(comm, *given, EPS)
        del session.space._slab.offset
        norms.normed(comm, *given, EPS)
        comm._table_before, comm._known = comm._known, {}
        with pytest.raises(Examined):
            norms.normed(comm, *given, EPS)
        comm._known = comm._table_before
        comm._calls.clear()
        assert not comm.memo

    alone(fake, work)
