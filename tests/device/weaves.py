"""Random weaves on GPUs, one a rank, against NCCL and the same matmuls.

PYTHONPATH=src python tests/device/weaves.py --ranks 2 --many 30
"""

# ruff: noqa: T201  (a program: it prints its report)

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.host.torch_weaves import weaving  # noqa: E402

import stretto  # noqa: E402


def main() -> int:
    """Weave, and use found files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--many", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.update(
        NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
        NVSHMEM_DISABLE_NVLS="1",
    )  # fmt: skip
    n = args.ranks
    with tempfile.TemporaryDirectory() as folder:
        found = stretto.spawn(
            weaving.weave, folder, "cuda", args.seed, args.many, num_ranks=n
        )
        print(f"{found[0]} weaves, three calls each: right on {n} GPUs")
        if n == 2:
            stretto.spawn(weaving.use_found, folder, "cuda", num_ranks=n)
            print("found files are used")
    return 0


if __name__ == "__main__":
    sys.exit(main())
