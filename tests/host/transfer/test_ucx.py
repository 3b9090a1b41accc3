"""Transfers by UCX, in a process that has loaded nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checking.libraries import lacks

ROOT = Path(__file__).resolve().parents[3]

FILES = [f"tests/host/transfer/test_{name}.py"
         for name in ("paths", "faults", "gpu_staged")]  # fmt: skip
ON_GPUS = "bytes_go_from_a_gpu or many_at_once or taken_back or prepared"
pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]


def test_paths_faults_and_gpus_by_ucx():
    """All that goes by UCX of the files on paths and faults; of those on GPUs, a part.

    What a GPU's memory goes through does not know by what it is carried: it is enough
    that large and small parts go both ways, and are taken back.
    """
    if why := lacks("ucx"):
        pytest.skip(why)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k",
         f"two_carriers or ucx and (not gpu_staged or {ON_GPUS})", *FILES],
        cwd=ROOT, env={**os.environ, "STRETTO_TEST_BY_UCX": "yes"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout[-3000:]
    assert " passed" in run.stdout
