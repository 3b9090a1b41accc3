"""One rank of mpirun's: `python -m stretto.bench.ranks.child FOLDER JOB`."""

from __future__ import annotations

import sys

from stretto.bench.ranks.launch import run_child

if __name__ == "__main__":
    run_child(sys.argv[1], sys.argv[2])
