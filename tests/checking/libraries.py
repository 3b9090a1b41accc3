"""Which libraries of carriers are here: asked in another process, which loads them."""

import functools
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["lacks"]

SOURCES = Path(__file__).parents[2] / "src"


@functools.cache
def lacks(carrier):
    """Return why a carrier cannot be used here, or nothing."""
    program = f"from stretto.fabric import hop; print(hop.get({carrier!r}).missing())"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )  # fmt: skip
    return run.stdout.strip()
