"""Ranks of these tests start fast: `spawn` forks them; others have no SciPy.

Numba would import it, a third of a start. It comes with the extra `synth`, whose tests
keep it, as do those of PyTorch.
"""

import os
from pathlib import Path

import pytest
from tests.host import forked

from stretto.meeting.launching import launch

HERE = Path(__file__).parent
WITHOUT = str(HERE / "without_scipy")
KEEP = ("synth", "torch", "torch_ops")


@pytest.fixture(scope="session", autouse=True)
def _forked_ranks():
    """Fork ranks from here, where all is loaded: see `tests/conftest.py`."""
    forked.begin()


@pytest.fixture(autouse=True)
def _fresh_ranks(request, monkeypatch):
    """Start ranks of marked tests as everybody's are."""
    forked.is_on = request.node.get_closest_marker("fresh") is None
    if not forked.is_on:
        monkeypatch.setattr(launch, "GRACE_S", forked.GRACE_S)
    yield
    forked.is_on = True


@pytest.fixture(autouse=True)
def _without_scipy(request, monkeypatch):
    """Tell processes that this test starts."""
    if request.path.parent.name not in KEEP:
        old = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([WITHOUT, old] if old else [WITHOUT])
        monkeypatch.setenv("PYTHONPATH", path)
