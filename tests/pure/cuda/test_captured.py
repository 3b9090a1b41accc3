"""Launches into graphs: behind which kernels they begin early, and how the edge is."""

import ctypes
from types import SimpleNamespace

import pytest
from cuda.bindings import driver as real
from cuda_fakes import OK

from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.launching import captured
from stretto.executors.cuda.launching import kernels as launch_module
from stretto.executors.cuda.launching.kernels import Loaded

KERNEL = Kernel(text="any", ranks=(0,), grid=3, threads=64)
OURS, THEIRS, STREAM = 7, 70, 9
FROM_BEGUN = 2 | 1 << 16
"""An edge from the launch-order port, programmatic: cuda.h's numbers."""


def launch(stream=STREAM, **how):
    arguments = (ctypes.c_void_p * 1)(4096)
    loaded = Loaded(None, OURS, KERNEL, **how)
    assert loaded.launch(stream, ctypes.addressof(arguments)) == 0


def test_behind_somebody_elses_kernel_a_captured_launch_begins_with_it(fake):
    """The edge says it: the launch itself asks for nothing more."""
    fake.kernel_nodes[41] = THEIRS
    fake.before[STREAM] = [(41, 0)]

    launch()

    assert [(41, FROM_BEGUN)] == fake.before[STREAM]
    assert [False] == fake.early


def test_behind_our_own_kernel_it_begins_when_that_says_so(fake):
    """Once what its peers wait for is on its way."""
    fake.kernel_nodes[41] = OURS
    fake.before[STREAM] = [(41, 0)]

    launch()

    assert [(41, 0)] == fake.before[STREAM]
    assert [True] == fake.early


@pytest.mark.parametrize(
    "before",
    [[], [(41, 0), (42, 0)], [(50, 0)], [(41, 1 | 1 << 16)]],
    ids=["nothing", "two branches", "a copy", "an edge that says something itself"],
)
def test_any_other_edge_is_left_as_it_is(fake, before):
    """Only a kernel has such a port, and only one of them is waited for."""
    fake.kernel_nodes |= {41: THEIRS, 42: THEIRS}
    fake.before[STREAM] = list(before)

    launch()

    assert before == fake.before[STREAM]
    assert [True] == fake.early


def test_a_stream_that_is_not_captured_is_launched_on_as_ever(fake):
    """The driver is asked, and says no."""
    launch()

    assert [True] == fake.early


@pytest.mark.parametrize("captures", [True, False])
def test_torch_is_asked_first_where_it_is_in_use(fake, monkeypatch, captures):
    """It answers in a tenth of a microsecond, and nearly always no."""
    monkeypatch.setattr(captured, "_torch", [lambda: captures])
    fake.kernel_nodes[41] = THEIRS
    fake.before[STREAM] = [(41, 0)]

    launch()

    assert [(41, FROM_BEGUN if captures else 0)] == fake.before[STREAM]


def test_a_kernel_that_cannot_wait_on_the_device_never_begins_early(fake):
    """Before sm_90 there is no such instruction: it would read what is not there."""
    fake.kernel_nodes[41] = THEIRS
    fake.before[STREAM] = [(41, 0)]

    launch(waits=False)

    assert [(41, 0)] == fake.before[STREAM]
    assert [False] == fake.early


@pytest.mark.parametrize(("arch", "waits"), [((8, 0), False), ((9, 0), True)])
def test_who_loads_a_kernel_says_whether_it_waits(fake, monkeypatch, arch, waits):
    """It is compiled for the GPU that it is loaded on."""
    monkeypatch.setattr(launch_module, "_resident", lambda *_: 3)
    for name in ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad"):
        monkeypatch.setattr(fake, name, lambda *_: (OK, OURS), raising=False)
    device = SimpleNamespace(arch=arch, shared_bytes=0, name="any")

    assert waits == launch_module.load(device, KERNEL, b"").waits


def test_a_driver_that_refuses_the_edge_is_not_fatal(fake):
    """The launch then waits for the kernel's end, as behind anything else."""
    fake.kernel_nodes[41] = THEIRS
    fake.before[STREAM] = [(41, 0)]
    fake.refuses_edges = real.CUresult.CUDA_ERROR_INVALID_VALUE

    launch()

    assert [True] == fake.early
    assert fake.refuses_edges != OK


def test_the_setting_that_switches_early_launches_off_switches_this_off(
    fake, monkeypatch
):
    """Both are the same thing to whoever looks for a fault."""
    monkeypatch.setenv("STRETTO_CUDA_EARLY", "0")
    fake.kernel_nodes[41] = THEIRS
    fake.before[STREAM] = [(41, 0)]

    launch()

    assert [(41, 0)] == fake.before[STREAM]
    assert [False] == fake.early
