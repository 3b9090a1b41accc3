"""How programs are run that documents and examples show."""

import os
import subprocess
import sys
from pathlib import Path

from tests.host import warm

ROOT = Path(__file__).parents[2]


def run(words, *, fresh=False, **options):
    """Run Python with such words; return how it ended, and what it printed.

    It is forked, as are its ranks, unless it is to be `fresh`.
    """
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
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
