#!/usr/bin/env python3
"""Write kernels/words.cuh: what kernels and the host agree on, as words.py says it.

python scripts/words.py
"""

from __future__ import annotations

import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(SRC))

from stretto.executors.cuda.words import header  # noqa: E402

FILE = SRC / "stretto" / "executors" / "cuda" / "kernels" / "words.cuh"

if __name__ == "__main__":
    FILE.write_text(header())
