"""The fake driver in place of the real one."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")


def load(name, file):
    """Load a helper of these tests under a name that they can import."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load("cuda_fake_memory", "fake_memory.py")
_fakes = load("cuda_fakes", "fakes.py")
load("cuda_model", "model.py")
_emulate = load("cuda_emulate", "emulate.py")
load("cuda_emulate_own", "emulate_own.py")
load("cuda_emulate_experts", "emulate_experts.py")
load("cuda_tensors", "tensors.py")


@pytest.fixture(scope="session", autouse=True)
def shared_libraries(tmp_path_factory):
    """Let all processes of a session have one folder of emulated kernels."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    _emulate.SHARED = folder / "emulated"


@pytest.fixture(autouse=True)
def single_bytes_stay():
    """Fail the test in which a driver or compiler writes into a byte of Python's own.

    Every `bytes` of one element is shared by the whole process: tests that come later,
    and have nothing to do with GPUs, would find another one in its place.
    """
    yield
    spoilt = [n for n in range(256) if bytes([n])[0] != n]
    for n in spoilt:
        ctypes.c_char.from_address(id(bytes([n])) + bytes.__basicsize__ - 1).value = n
    assert not spoilt, "written over: give it a buffer of two bytes or more"


@pytest.fixture(scope="module")
def one_hop():
    """Register the kernel of an example, for as long as a module's tests run."""
    from stretto.program.lang import byhand

    path = Path(__file__).parents[3] / "examples" / "write_a_kernel.py"
    spec = importlib.util.spec_from_file_location("write_a_kernel", path)
    with mock.patch.dict(byhand._registered):
        module = importlib.util.module_from_spec(spec)
        sys.modules["write_a_kernel"] = module
        spec.loader.exec_module(module)
        yield module
        del sys.modules["write_a_kernel"]


@pytest.fixture
def fake(monkeypatch):
    """Return a fake driver that every module asks."""
    from stretto.executors.cuda.device import driver
    from stretto.executors.cuda.flags import regions
    from stretto.executors.cuda.flags.watch import SessionWatch

    watches, begin = [], SessionWatch.__init__

    def noted(self, *args, **options):
        begin(self, *args, **options)
        watches.append(self)

    monkeypatch.setattr(SessionWatch, "__init__", noted)
    made = _fakes.FakeDriver()
    replace_driver(monkeypatch, made)
    monkeypatch.setattr(driver, "_devices", {})
    small = {"stage": 1 << 20, "packets": 1 << 20}
    monkeypatch.setattr(regions, "HALVES", small)
    monkeypatch.setenv("STRETTO_CUDA_STREAMS", "2")
    yield made
    # Of sessions that a test leaves open: their threads would write into memory that is
    # gone, by the driver of the tests to come.
    for watch in watches:
        watch._stop.set()
    for watch in watches:
        watch._thread.join(10)
        assert not watch._thread.is_alive(), "it looks after a GPU for ever"
    made.forget()


def replace_driver(monkeypatch, made):
    """Make every module of the executor ask `made`."""
    import stretto.executors.cuda.session  # noqa: F401  every module is loaded by it

    for name, module in list(sys.modules.items()):
        if name.startswith("stretto.executors.cuda.") and hasattr(module, "api"):
            monkeypatch.setattr(module, "api", lambda: made)
