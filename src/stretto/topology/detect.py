"""What this machine is: GPUs as `nvidia-smi` reports them, else processor cores."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from stretto.topology.load import load
from stretto.topology.machine import Machine
from stretto.topology.shapes import DraftMachine

__all__ = ["cores", "detect", "here", "printed", "processor"]

Ask: TypeAlias = Callable[[Sequence[str]], str]
"""Runs a command and returns what it prints, nothing when there is no such command."""

_NVLINK_GBYTES_PER_S = (
    25.0  # one link of NVLink 2 to 4, nominal; NVLink 5 has twice that
)
_HOP_US = 0.36
_PCIE_GBYTES_PER_S = 25.0
_PCIE_HOP_US = 1.0


def printed(command: Sequence[str]) -> str:
    """Return what a command prints; nothing where it is missing, or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def detect(*, ask: Ask = printed, num_cores: int | None = None) -> Machine:
    """Return this machine, as far as it can be told without touching a GPU."""
    links = _read_matrix(ask(("nvidia-smi", "topo", "-m")))
    if len(links) >= 2:
        model = ask(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))
        return _gpus(links, model)
    return load(f"cpux{num_cores or cores()}")


@functools.cache
def here(device: str) -> str:
    """Return what calls on a device run on here, as profiles name it; "" if unknown.

    >>> here("cpu")  # doctest: +SKIP
    'AMD EPYC 9B45, 2 cores'
    """
    if device == "cpu":  # all of them: a launcher may have bound this process
        many = os.cpu_count() or 1
        return f"{processor()}, {many} core{'s' * (many > 1)}"
    return _gpu_model() if device == "cuda" else ""


def processor() -> str:
    """Return what the processor is called."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu_model() -> str:
    """Return what the first GPU is called, without touching it."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith("Model:"):
                    return line.partition(":")[2].strip()
        except OSError:
            continue
    said = printed(("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"))
    return said.partition("\n")[0].strip()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_matrix(text: str) -> list[list[int]]:
    """Return the NVLinks between every two GPUs in what `nvidia-smi topo -m` prints."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # it colours its header
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    size = len(rows)
    matrix = []
    for row in rows:
        cells = row[1 : size + 1]
        found = [re.fullmatch(r"NV(\d+)", cell) for cell in cells]
        matrix.append([int(f[1]) if f else 0 for f in found])
    return matrix if all(len(row) == size for row in matrix) else []


def _gpus(links: list[list[int]], model: str) -> Machine:
    n = len(links)
    counts = {links[a][b] for a in range(n) for b in range(n) if a != b}
    if counts == {18} and n <= 8:
        return load(f"h200x{n}")
    rate = _NVLINK_GBYTES_PER_S * (2 if re.search(r"\bG?B\d00", model) else 1)
    draft = DraftMachine(num_ranks=n, ranks_per_box=n)
    if len(counts) == 1 and n > 2 and 0 not in counts:
        hub = draft.switch("nvswitch")
        for r in range(n):
            draft.join(r, hub, (counts.copy().pop() * rate, _HOP_US))
    else:
        for a in range(n):
            for b in range(a + 1, n):
                if links[a][b]:
                    draft.join(a, b, (links[a][b] * rate, 2 * _HOP_US))
    if 0 in counts:
        hub = draft.switch("pcie")
        for r in range(n):
            draft.join(r, hub, (_PCIE_GBYTES_PER_S, _PCIE_HOP_US))
    return Machine(
        name="this machine",
        kind="gpu",
        num_ranks=n,
        links=tuple(draft.links),
        switches=tuple(draft.switches),
        ranks_per_box=n,
        costs=load("h200x2").costs,
        about=f"{n} GPUs ({(model.splitlines() or ['unknown'])[0]}), nominal rates",
    )
