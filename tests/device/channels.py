"""Kernels of one's own on GPUs: channels, copy engines, Triton, registered kernels.

    python tests/device/channels.py --ranks 4 --out DIR [--share] [--only WORDS]

Ranks are processes that `stretto.spawn` starts. Each check has a communicator of its
own, so that one which fails, or tests a fault, does not keep the next from running.
`--share` puts all ranks on one GPU, where kernels take turns: slow, and enough to test
what is said.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"

import channel_cuda  # noqa: E402, F401  (importing registers checks, in this order)
import channel_faults  # noqa: E402, F401
import channel_programs  # noqa: E402, F401
from channel_rank import CHECKS, checked, report, words  # noqa: E402


def work(world: Any, names: list[str], share: bool, out: str) -> list[dict[str, Any]]:
    """Run the checks on one rank."""
    return checked(world, CHECKS, names, share, Path(out) / "channels")


def main() -> int:
    """Spawn the ranks and report."""
    args = words(__doc__).parse_args()
    return report(work, CHECKS, args, deadline_s=30.0)


if __name__ == "__main__":
    sys.exit(main())
