"""Arrays of other libraries over a tensor's memory: as those libraries take them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stretto.bench.peers._arrays import _viewer
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
