"""NIXL, in a process of its own: it cannot live in one with OR-Tools."""

import subprocess
import sys
from pathlib import Path

import pytest

from stretto.errors import MissingExtraError
from stretto.hop.nixl import library
from stretto.synth import solvers

CHECKS = Path(__file__).with_name("nixl_checks.py")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(240)
@pytest.mark.skipif(bool(library.missing()), reason=library.missing() or "here")
def test_a_hop_by_nixl():
    """All that `nixl_checks.py` says of it; nothing is left out there."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout[-3000:]
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout


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
