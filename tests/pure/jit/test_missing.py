"""Without Numba all that needs no ranks works, and all else says what to install."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stretto
from stretto import executors
from stretto.cli import main
from stretto.errors import MissingExtraError
from stretto.fabric import hop, jit
from stretto.fabric.jit import loading
from stretto.runtime.calls import connect_on
from stretto.transfer import Engine
from stretto.transfer.loader import functions

SOURCE = Path(stretto.__file__).parents[1]
DOORS = {
    "spawn": lambda: stretto.spawn(print, num_ranks=2),
    "connect": lambda: stretto.connect(0, 2, "nobody comes"),
    "connect, by a store": lambda: connect_on({}, 0, 2),
    "a session": lambda: executors.get("cpu").open_session(None),
    "an engine": lambda: Engine("nobody"),
    "an engine by ucx": lambda: Engine("nobody", hop="ucx"),
    "carrier ucx": lambda: hop.get("ucx").open_hop(None),
}
VERBS = (
    "run all_reduce/ring --ranks 2 --size 4K",
    "bench all_reduce --ranks 2 --sizes 1K",
    "bench bw",
    "tune --ranks 2",
    "demo",
)
SAID = r"Numba is not installed: pip install 'stretto\[cpu\]'"


@pytest.fixture
def without(monkeypatch):
    """Have no Numba, whatever was loaded before."""
    monkeypatch.setitem(sys.modules, "numba", None)
    for cache in (jit.missing, functions):
        cache.cache_clear()
    yield monkeypatch
    for cache in (jit.missing, functions):
        cache.cache_clear()


@pytest.mark.parametrize("door", DOORS)
def test_whoever_needs_it_says_what_to_install(without, door):
    """Before anything is begun that others would wait for."""
    with pytest.raises(MissingExtraError, match=SAID):
        DOORS[door]()


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_that_run_ranks_say_it_in_a_line(without, verb, capsys):
    """No traceback, and a status that says that it was refused."""
    assert 2 == main(verb.split())
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(f"stretto {verb.split()[0]}: ")
    assert "pip install 'stretto[cpu]'" in last


def test_a_numba_that_is_told_not_to_compile_is_none(monkeypatch):
    """Its functions would take addresses for numbers."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    jit.missing.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match="DISABLE_JIT is set: unset it"):
            Engine("nobody")
    finally:
        jit.missing.cache_clear()


def test_a_numba_that_does_not_fit_is_named(monkeypatch):
    """With what it says of itself, as where NumPy is newer than it."""
    pytest.importorskip("numba")

    def refused(name):
        raise ImportError("Numba needs NumPy 2.0 or less")

    monkeypatch.setattr(importlib, "import_module", refused)
    with pytest.raises(MissingExtraError, match=r"NumPy 2\.0 or less.*--upgrade"):
        loading.load("an engine", "stretto.no_such_module")


WORKS = """
import importlib, sys
for name in ("numba", "llvmlite"):
    sys.modules[name] = None
import stretto
for name in stretto.__all__:
    getattr(stretto, name)
ROOMS = "transfer trace watch studio synth bench hop fabric.jit"
for room in ROOMS.split():
    module = importlib.import_module(f"stretto.{room}")
    for name in module.__all__:
        getattr(module, name)
from stretto.cli import main
from stretto.transfer import kv_layout, plan, prove
one, other = (kv_layout("vllm/flash", layers=2, heads=4, dim=8, blocks=8, block=n)
              for n in (4, 2))
prove(plan(one, other))
for words in sys.stdin.read().splitlines():
    if main(words.split()):
        sys.exit(f"stretto {words}")
"""
PURE = """
list
doctor
verify all_reduce/ring --ranks 2,3
show all_reduce/two_shot --ranks 4
simulate all_reduce/ring --machine h200x8 --sizes 1K --trace {0}/run.trace
trace report {0}/run.trace --perfetto {0}/run.pftrace
studio {0}/run.trace --export {0}/run.html
bound all_reduce --machine h200x8
synth all_gather --machine h200x4
"""


def test_what_needs_no_ranks_works_without_it(tmp_path):
    """Writing, proving, simulating, synthesis, recordings, layouts, and their verbs."""
    pytest.importorskip("scipy")
    done = subprocess.run(
        [sys.executable, "-c", WORKS], input=PURE.strip().format(tmp_path), text=True,
        capture_output=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr[-3000:]
    assert (tmp_path / "run.html").stat().st_size > 1000
