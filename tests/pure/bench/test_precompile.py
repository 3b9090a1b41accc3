"""Kernels are compiled before they are wanted, on this machine without a GPU."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stretto.bench.measuring.precompile import Precompiler
from stretto.bench.workload.cases import case_of


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Return what lies in an empty cache."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    return lambda: sorted(tmp_path.rglob("*.cubin"))


def ahead(arch):
    return Precompiler(0, 2, dtype="bfloat16", op="sum", arch=arch)


def test_what_is_waited_for_lies_in_the_cache(cached):
    """One kernel for two sizes of one tile; beside copy engines the one that meets."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="kernels are compiled by NVRTC")
    some = ahead((9, 0))
    small, large = (case_of("all_gather", n, 2, dtype="bfloat16") for n in (64, 4096))
    pins = ["all_gather/one_shot push packets", "all_gather/one_shot engine zero_copy"]

    for case in (small, large):
        some.wait(pins, case)
    assert pins == some.asked
    some.close()

    assert 2 == len(cached()) == len(some._kernels)


def test_what_cannot_be_compiled_is_met_by_whoever_calls_it(cached):
    """Waiting for it raises nothing: its own call says what is wrong."""
    some = ahead((9, 0))

    some.wait(
        ["all_gather/one_shot push packets blocks=100000"], case_of("all_gather", 64, 2)
    )
    some.close()

    assert [] == cached()


def test_what_is_waited_for_overtakes_what_may_be_wanted_later(monkeypatch):
    """Whoever waits does not wait for hundreds that nobody may ever call."""
    some = ahead(None)
    begun, going = [], threading.Event()
    some._pool = ThreadPoolExecutor(1)

    def compile_(pin, *_):
        going.wait(10)
        begun.append(pin)

    monkeypatch.setattr(some, "_compile", compile_)
    case = case_of("all_gather", 64, 2)
    some.start([f"all_gather/one_shot push packets blocks={b}" for b in range(9)], case)
    threading.Timer(0.05, going.set).start()
    wanted = [f"all_gather/one_shot push packets blocks={b}" for b in (7, 20)]

    some.wait(wanted, case)
    some.close()

    assert wanted == begun[1:3], "after the one that had begun"


def test_nobody_waits_longer_than_there_is_time(monkeypatch):
    """What is not there by then is left out; the rest is told."""
    some = ahead(None)
    some._pool = ThreadPoolExecutor(1)
    going = threading.Event()
    monkeypatch.setattr(
        some, "_compile", lambda pin, *_: "blocks=2" in pin and going.wait(10)
    )
    pins = [f"all_gather/one_shot push packets blocks={b}" for b in range(4)]

    ready = some.wait(pins, case_of("all_gather", 64, 2), at_most_s=0.1)
    going.set()
    some.close()

    assert pins[:2] == ready


def test_after_it_is_closed_nobody_waits_for_it():
    """Whoever calls a plan then compiles it."""
    some = ahead(None)
    some._pool = ThreadPoolExecutor(1)
    some.close()

    some.wait(["all_gather/one_shot push packets"], case_of("all_gather", 64, 2))

    assert {} == some._asked


def test_on_a_cpu_there_is_nothing_to_compile(cached):
    """It costs neither threads nor time."""
    some = ahead(None)

    some.wait(["all_gather/one_shot push packets"], case_of("all_gather", 64, 2))
    some.close()

    assert [] == cached()
