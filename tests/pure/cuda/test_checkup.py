"""The doctor: what it finds out by trying, over a fake driver of two GPUs."""

from __future__ import annotations

import ctypes
import sys

import pytest
from cuda_fakes import OK

from stretto.executors import cuda
from stretto.executors.cuda.checkup import examine

module = sys.modules["stretto.executors.cuda.checkup"]


@pytest.fixture
def two(fake, monkeypatch):
    """Return a fake driver of two GPUs whose links work."""
    monkeypatch.setattr(module, "CHECKED_BYTES", 4096)
    fake.current = 0
    fake.spoil = lambda to, near: None
    fake.allowed = lambda one, other: 1
    fake.enabled = lambda near: OK

    def become(context):
        fake.current = context
        return (OK,)

    def copy(to, source, nbytes):
        ctypes.memmove(to, source, nbytes)
        fake.spoil(to, fake.current)
        return (OK,)

    fake.cuDriverGetVersion = lambda: (OK, 13000)
    fake.cuDeviceGetCount = lambda: (OK, 2)
    fake.cuDeviceGet = lambda index: (OK, index)
    fake.cuDeviceCanAccessPeer = lambda a, b: (OK, fake.allowed(a, b))
    fake.cuDevicePrimaryCtxRetain = lambda device: (OK, device)
    fake.cuCtxSetCurrent = become
    fake.cuCtxEnablePeerAccess = lambda far, flags: (fake.enabled(fake.current),)
    fake.cuMemcpyDtoD = copy
    fake.cuMemcpyDtoH = fake.cuMemcpyHtoD
    return fake


def test_links_that_work_are_checked_both_ways(two):
    """Each pair, in both directions, written and read."""
    found = examine()

    assert "ok, transfers were checked (NVLink)" == found["gpu 0 to 1"]
    assert "ok, transfers were checked (NVLink)" == found["gpu 1 to 0"]
    assert "UUID" in found["gpu 0"]
    two.nvlink = False
    assert "(no NVLink)" in examine()["gpu 0 to 1"]


def test_a_link_that_only_claims_to_work_is_found(two):
    """GPU 1 reaches GPU 0, and what it moves is not what arrives."""

    def spoil(to, near):
        if near == 1:
            ctypes.c_uint8.from_address(to + 5).value ^= 1

    two.spoil = spoil
    found = examine()

    assert found["gpu 0 to 1"].startswith("ok")
    assert "broken" in found["gpu 1 to 0"]
    assert "1 of 4096 bytes that it writes" in found["gpu 1 to 0"]
    assert "1 of 4096 bytes that it reads" in found["gpu 1 to 0"]


def test_a_copy_that_does_not_arrive_is_found(two):
    """What was there before is not taken for the pattern."""
    two.cuMemcpyDtoD = lambda to, source, nbytes: (OK,)
    found = examine()

    assert "broken: 40" in found["gpu 0 to 1"]


def test_access_that_cannot_be_switched_on_is_broken(two):
    """Or the driver would copy by way of the host, and all would look well."""
    two.enabled = lambda near: two.CUresult.CUDA_ERROR_TOO_MANY_PEERS
    found = examine()

    assert "TOO_MANY_PEERS" in found["gpu 0 to 1"]


def test_access_that_is_on_already_is_fine(two):
    """Torch may have switched it on."""
    two.enabled = lambda near: two.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED

    assert examine()["gpu 0 to 1"].startswith("ok")


def test_gpus_without_peer_access_are_told(two):
    """Nothing is tried then."""
    two.allowed = lambda one, other: 0

    assert "no peer access" == examine()["gpu 0 to 1"]


def test_the_executor_can_be_asked_twice():
    """Its facade's `doctor` is a function, whatever has been imported."""
    assert cuda.doctor().keys() == cuda.doctor().keys()
