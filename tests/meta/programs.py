"""How programs are run that documents and examples show."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALONE = ROOT / "tests" / "host" / "without_scipy"


def run(words, text, **options):
    """Run Python with such words; return how it ended, and what it printed.

    SciPy is hidden from a program or page with such a text, as from ranks of
    tests/host: Numba would import it in each of them. Whoever finds programs needs it.
    """
    paths = [ROOT / "src", ROOT]
    if "synth" not in text:
        paths.insert(0, ALONE)
    path = os.pathsep.join(map(str, paths))
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=dict(os.environ) | {"PYTHONPATH": path, "COLUMNS": "80"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
        **options,
    )


def run_program(path, text, *, fresh, **options):
    """Run a program; its ranks are forked from it, unless they are to be `fresh`."""
    fresh = fresh or "spawn" not in text
    return run([path] if fresh else ["-m", "tests.host.forked", path], text, **options)
