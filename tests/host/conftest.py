"""Ranks of these tests have no SciPy: Numba would import it, a third of a start.

It comes with the extra `synth`, whose tests keep it, as do those of PyTorch.
"""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHOUT = str(HERE / "without_scipy")
KEEP = ("synth", "torch", "torch_ops")


@pytest.fixture(autouse=True)
def _without_scipy(request, monkeypatch):
    """Tell processes that this test starts."""
    if request.path.parent.name not in KEEP:
        old = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([WITHOUT, old] if old else [WITHOUT])
        monkeypatch.setenv("PYTHONPATH", path)
