"""How programs are run that documents and examples show."""

import os
import subprocess
import sys
from pathlib import Path

from tests.host import warm

ROOT = Path(__file__).parents[2]
ALONE = ROOT / "tests" / "host" / "without_scipy"


def run(words, text, *, fresh=False, **options):
    """Run Python with such words; return how it ended, and what it printed.

    It is forked, as are its ranks, unless it is to be `fresh`.

    SciPy is hidden from a program or page with such a text, as from ranks of
    tests/host: Numba would import it in each of them. Whoever finds programs needs it.
    """
    paths = [ROOT / "src", ROOT]
    if "synth" not in text:
        paths.insert(0, ALONE)
    path = os.pathsep.join(map(str, paths))
    words = [sys.executable, *map(str, words)] if fresh else words
    return (subprocess.run if fresh else warm.run)(
        words,
        env=dict(os.environ) | {"PYTHONPATH": path, "COLUMNS": "80"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
        **options,
    )


def run_program(path, text, *, fresh, **options):
    """Run the program of a file; see `run`."""
    return run([path], text, fresh=fresh, **options)
