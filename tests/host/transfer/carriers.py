"""The carriers that tests of transfers go by: by day those that need no library.

Tests by a library have a process of their own (`test_ucx.py`, `test_nixl.py`): beside
all that other tests have loaded, a connection of UCX has been seen to hang, and UCX and
NIXL refuse to live in one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checking.libraries import lacks

__all__ = ["CARRIERS", "SOME", "run_by"]

BY = "STRETTO_TEST_BY"
SOME = (
    "70001] or layers_are_put or need_not_fit or dead_peer or is_cancelled or "
    "close_while or 5000] or roused or threads_put"
)
"""Which of the tests run by a library by day."""
CARRIERS = tuple(dict.fromkeys(("tcp", os.environ.get(BY, "tcp"))))
HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[3]


def run_by(carrier, names, which, **environment):
    """Run tests of this folder by a carrier, in a process that has loaded nothing."""
    if carrier != "tcp" and (why := lacks(carrier)):
        pytest.skip(why)
    files = [str(HERE / f"{name}.py") for name in names]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", which,
         *files],
        cwd=ROOT, env={**os.environ, BY: carrier, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == run.returncode, run.stdout[-3000:]
    assert " passed" in run.stdout
