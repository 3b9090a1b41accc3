"""What this machine has for running plans on its processors, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stretto.fabric.across import rule
from stretto.fabric.jit import missing
from stretto.fabric.memory import huge_pages, kind_of_file


def doctor() -> Mapping[str, str]:
    """Return what this machine has and what is missing, by subject."""
    why = missing()
    found = {
        "interpreter": f"missing: {why}" if why else "compiled by Numba",
        "shared memory": kind_of_file(),
        "cores": str(os.cpu_count() or 1),
        "copies between processes by the kernel": f"for {rule()}",
        "huge pages of shared memory": huge_pages() or "unknown",
    }
    if not why:
        from stretto.executors.cpu.running.kernels import supports, vector_bytes

        found["vectors"] = f"{8 * vector_bytes()} bits"
        if not supports("float16"):
            found["float16"] = "missing: this processor does not convert it (F16C)"
    return found
