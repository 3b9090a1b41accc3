"""Carriers that come with a library, each in a process of its own.

NIXL cannot live in one with OR-Tools; UCX has its own memory checked here.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checking.libraries import lacks

from stretto.errors import MissingExtraError
from stretto.fabric.hop.nixl import library
from stretto.synth import solvers

HERE = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[3]
HAS_MPI = importlib.util.find_spec("mpi4py") is not None
CHECKED = {
    "LD_PRELOAD": "libc_malloc_debug.so.0",
    "GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.perturb=165",
}
"""Have glibc check and fill what is freed."""
RUN = "import {first}sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def check(carrier, *words, first="", names=("test_conformance", "test_channels")):
    """Run the checks of a carrier, after a module has been imported."""
    if why := lacks(carrier):
        pytest.skip(why)
    own = {
        "STRETTO_TEST_LIBRARY": carrier,
        "UCX_TLS": "tcp,self,posix,sysv",
        "UCX_LOG_LEVEL": "fatal",
        **(CHECKED if carrier == "ucx" else {}),
    }
    files = [str(HERE / f"{name}.py") for name in (f"{carrier}_checks", *names)]
    run = subprocess.run(
        [sys.executable, "-c", RUN.format(first=first), "-q", "-p", "no:cacheprovider",
         *files, *words],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **own},
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout[-3000:] + run.stderr[-3000:]
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout


@pytest.mark.timeout(240)
@pytest.mark.parametrize("carrier", ["nixl", "ucx"])
def test_a_hop_by_a_library(carrier):
    """All that every carrier must do, and what a file of its own says."""
    check(carrier, names=("test_conformance",))


@pytest.mark.slow
@pytest.mark.parametrize("carrier", ["nixl", "ucx"])
def test_channels_by_a_library(carrier):
    """All that channels over every carrier must do."""
    check(carrier)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not HAS_MPI, reason="no mpi4py")
def test_a_process_has_one_ucx():
    """Open MPI has brought its own, of the same names: that is used."""
    check("ucx", "-k", "before_their_signal or any_threads", first="mpi4py.MPI, ")


def test_nobody_loads_it_to_say_whether_it_is_there():
    """`doctor` asks, and so does whoever lists carriers."""
    program = (
        "import sys\nfrom stretto.fabric import hop\n"
        "said = hop.get('nixl').doctor()\n"
        "assert not [m for m in sys.modules if m.startswith(('nixl_cu', 'nixl_rocm'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_each_refuses_to_come_beside_the_other(monkeypatch):
    """Before both end the process."""
    with monkeypatch.context() as m:
        m.setitem(sys.modules, "ortools", sys)
        with pytest.raises(MissingExtraError, match="OR-Tools crash in one process"):
            library.new_agent("x", ("UCX",))
    for name in [n for n in sys.modules if n.split(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nixl_cu13", sys)
    with pytest.raises(MissingExtraError, match="NIXL crash in one process"):
        solvers.cp_model()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Return where the program of a wheel is written that stands for NIXL's."""
    folder = tmp_path / "nixl_cu13"
    folder.mkdir()
    (folder / "__init__.py").touch()
    about = tmp_path / "nixl_cu13-9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nixl-cu13\nVersion: 9\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    library.fault_at_end.cache_clear()
    yield folder / "_api.py"
    library.fault_at_end.cache_clear()


AGENT = """
class nixl_agent:
    def __init__(*args, **how):
        pass
nixl_agent_config = dict
"""
DIES = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
"""


def test_a_wheel_that_ends_its_process_is_named(wheel):
    """As NIXL's fault, and what to do; one that ends in order is not."""
    wheel.write_text(DIES + AGENT)

    said = library.fault_at_end()
    assert "nixl-cu13 9 ends its process with SIGSEGV, without stretto too" in said
    assert "ctypes.CDLL('libnl-route-3.so.200')" in said
    library.fault_at_end.cache_clear()
    wheel.write_text(AGENT)
    assert "" == library.fault_at_end()


def test_the_systems_libnl_is_loaded_before_the_wheels(wheel, monkeypatch):
    """In this order each copy finds its own functions."""
    order = []
    monkeypatch.setattr(library.ctypes, "CDLL", lambda name: order.append(name))
    monkeypatch.setattr(library.importlib, "import_module", order.append)

    library.api()
    assert ["libnl-route-3.so.200", "nixl_cu13._api"] == order


USES = """
from stretto.fabric.hop.nixl import library
library.new_agent("one", ("UCX",))
print("used")
"""


def test_a_program_of_ours_that_used_nixl_ends_in_order():
    """Also where the system has libraries of RDMA, whose libnl is another copy."""
    if why := lacks("nixl"):
        pytest.skip(why)
    run = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip

    assert (0, "used\n") == (run.returncode, run.stdout), run.stderr
