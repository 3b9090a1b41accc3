"""A rank of the checks of one's own kernels, and the checks' register."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from stretto.errors import CommunicationError  # noqa: E402

__all__ = ["CHECKS", "SHORT_S", "Rank", "check", "example", "raised"]

Check = Callable[["Rank"], Any]
CHECKS: dict[str, Check] = {}
"""Every check by its name, in the order they run."""
DEADLINE_S = 15.0
SHORT_S = 2.0
"""The deadline of checks that wait for it."""


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


def example(name: str) -> Any:
    """Return the module of an example."""
    found = sys.modules.get(name)
    if found is None:
        path = ROOT / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None, path
        assert spec.loader is not None, path
        found = importlib.util.module_from_spec(spec)
        sys.modules[name] = found
        spec.loader.exec_module(found)
    return found


class Rank:
    """What a check is given: a communicator, torch, and how it is run."""

    def __init__(self, world: Any, torch: Any, share: bool) -> None:
        self.world, self.torch, self.share = world, torch, share
        self.rank, self.n = world.rank, world.num_ranks
        self.comm: Any = None

    def open(self, deadline_s: float = DEADLINE_S) -> Any:
        """Return a communicator for a check (collective)."""
        self.comm = self.world.split(0, deadline_s=deadline_s)
        return self.comm

    def together(self) -> None:
        """Wait for all ranks, GPUs included."""
        self.torch.cuda.synchronize()
        self.world.barrier()

    def zeros(self, count: int, dtype: Any = None) -> Any:
        """Return zeros on the GPU, 64-bit integers unless said otherwise."""
        dtype = dtype or self.torch.int64
        return self.torch.zeros(count, dtype=dtype, device="cuda")


def raised(r: Rank, what: Callable[[], None]) -> str:
    """Return what is raised, by the call or soon after it, on a usable device."""
    began = time.monotonic()
    text = ""
    try:
        what()
        r.torch.cuda.synchronize()
        while time.monotonic() - began < 3 * SHORT_S + 2:
            r.comm.check()
            time.sleep(0.02)
    except CommunicationError as e:
        text = f"{type(e).__name__}: {e}"
    assert text, "nothing was raised"
    assert r.torch.ones(1000, device="cuda").sum().item() == 1000, "the device is gone"
    return text
