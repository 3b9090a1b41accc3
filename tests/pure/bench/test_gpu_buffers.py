"""Arrays of other libraries over a tensor's memory: as those libraries take them."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from stretto.bench.contender import CallBuffer, host_buffer
from stretto.bench.peers._arrays import _viewer
from stretto.bench.peers._ours import OurCalls
from stretto.bench.workload.cases import case_of
from stretto.errors import MissingExtraError


@pytest.mark.parametrize(
    ("kind", "modules", "function"),
    [
        ("cupy", ["cupy"], "from_dlpack"),
        ("numba", ["numba", "numba.cuda"], "as_cuda_array"),
    ],
)
def test_each_library_makes_its_own_view(monkeypatch, kind, modules, function):
    """CuPy by DLPack, Numba by the interface of CUDA arrays; nothing is copied."""
    for name in modules:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    setattr(sys.modules[modules[-1]], function, lambda tensor: (function, tensor))
    tensor = object()

    assert (function, tensor) == _viewer(kind)(tensor)


def test_a_tensor_is_its_own_view():
    """And a library that is not there is named."""
    tensor = object()

    assert _viewer("torch")(tensor) is tensor


@pytest.mark.parametrize("kind", ["cupy", "numba"])
def test_a_library_that_is_missing_is_named(monkeypatch, kind):
    """With the option that asked for it."""
    name = {"cupy": "cupy", "numba": "numba.cuda"}[kind]
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(MissingExtraError, match=f"--buffer {kind}: no {name}"):
        _viewer(kind)


class Raw:
    """A bfloat16 as Numba shows it: |V2, which PyTorch cannot take."""

    dtype = np.dtype("V2")


def test_peers_inside_pytorch_are_given_the_tensor_itself(monkeypatch):
    """What other libraries show of it may have lost its type."""
    torch = pytest.importorskip("torch")
    from stretto.bench.peers._arrays import GpuArrays
    from stretto.bench.peers._torch import as_tensor

    tensor = torch.zeros(4, dtype=torch.bfloat16)
    buffer = GpuArrays.wrap(torch, tensor, Raw(), "bfloat16")

    assert as_tensor(buffer, "bfloat16") is tensor
    assert as_tensor(host_buffer("numpy", np.zeros(4), "float64"), "float64").shape


@pytest.mark.parametrize(
    ("test", "verbs"),
    [("all_reduce", ["all_reduce"]), ("broadcast", ["broadcast"]), ("latency", "sr")],
)
def test_our_calls_say_the_type_that_an_array_has_lost(test, verbs):
    """Of tensors, and of types that every library has, nothing is said."""
    told = []

    class Comm:
        rank, num_ranks = 0, 2

        def __getattr__(self, name):
            return lambda *_, dtype=None, **__: told.append(dtype)

    for dtype, array in (("bfloat16", Raw()), ("float32", Raw())):
        case = case_of(test, 64, 2, dtype=dtype)
        buffer = CallBuffer(given=array, host=None)
        OurCalls(Comm(), device="cuda").prepare(case, buffer, buffer).call()

    assert ["bfloat16"] * len(verbs) + [None] * len(verbs) == told
