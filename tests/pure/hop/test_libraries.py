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
from stretto.hop.nixl import library
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


def check(carrier, *words, first=""):
    """Run the checks of a carrier, after a module has been imported."""
    if why := lacks(carrier):
        pytest.skip(why)
    own = {
        "STRETTO_TEST_LIBRARY": carrier,
        "UCX_TLS": "tcp,self,posix,sysv",
        "UCX_LOG_LEVEL": "fatal",
        **(CHECKED if carrier == "ucx" else {}),
    }
    files = [str(HERE / f"{name}_checks.py") for name in ("library", carrier)]
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
    """All that is said of it in `library_checks.py`, and in a file of its own."""
    check(carrier)


@pytest.mark.timeout(120)
@pytest.mark.skipif(not HAS_MPI, reason="no mpi4py")
def test_a_process_has_one_ucx():
    """Open MPI has brought its own, of the same names: that is used."""
    check("ucx", "-k", "what_was_put or any_threads", first="mpi4py.MPI, ")


def test_nobody_loads_it_to_say_whether_it_is_there():
    """`doctor` asks, and so does whoever lists carriers."""
    program = (
        "import sys\nfrom stretto import hop\n"
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
