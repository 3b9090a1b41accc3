"""The first start on a machine compiles once, for all ranks, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
WORK = """
import stretto
def work(comm):
    comm.barrier()
stretto.spawn(work, num_ranks=3)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_without_a_cache_compile_once(tmp_path):
    """One line, not one a rank; one file a function; nothing the second time."""
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", WORK], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE),
                 "STRETTO_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        told.append(done.stderr.count("compiling its loops"))
    names = [f.name.rpartition("-")[0] for f in (tmp_path / "compiled").iterdir()]

    assert [1, 0] == told
    assert len(set(names)) == len(names)
