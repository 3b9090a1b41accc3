"""Transfers by UCX, in a process that has loaded nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto import hop

ROOT = Path(__file__).resolve().parents[3]
LACKS = hop.get("ucx").missing()

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]


@pytest.mark.skipif(bool(LACKS), reason=LACKS or "here")
def test_paths_and_faults_by_ucx():
    """All of both files that goes by UCX."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k",
         "ucx or two_carriers", "tests/host/transfer/test_paths.py",
         "tests/host/transfer/test_faults.py"],
        cwd=ROOT, env={**os.environ, "STRETTO_TEST_BY_UCX": "yes"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout[-3000:]
    assert " passed" in run.stdout
