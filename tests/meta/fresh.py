"""The environment of processes that run what documents and examples show."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(text):
    """Return it for a program, or a page, with such a text.

    SciPy is hidden, as for ranks of tests/host: Numba would import it in each of them.
    Whoever finds programs needs it.
    """
    paths = [ROOT / "src"]
    if "synth" not in text:
        paths.insert(0, ROOT / "tests" / "host" / "without_scipy")
    path = os.pathsep.join(map(str, paths))
    return dict(os.environ) | {"PYTHONPATH": path, "COLUMNS": "80"}
