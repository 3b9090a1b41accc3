"""One rank that mpirun has started: `python -m stretto.bench.child FOLDER JOB`."""

from __future__ import annotations

import sys

from stretto.bench.launch import run_child

if __name__ == "__main__":
    run_child(sys.argv[1], sys.argv[2])
