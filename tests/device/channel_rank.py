"""A rank of the checks of one's own kernels, the checks' register, and their run."""

# ruff: noqa: T201  (a part of programs: it prints their reports)

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from stretto.errors import CommunicationError  # noqa: E402

__all__ = ["CHECKS", "SHORT_S", "Rank", "check", "checked", "example", "raised",
           "report", "words"]  # fmt: skip

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


def checked(
    world: Any, checks: dict[str, Check], names: list[str], share: bool, file: Path
) -> list[dict[str, Any]]:
    """Run checks on one rank; rank 0 prints and all write as they go."""
    import torch

    torch.cuda.set_device(0 if share else world.rank)
    torch.zeros(1, device="cuda")
    rank, rows = Rank(world, torch, share), []
    for name in names:
        began, error, answer = time.monotonic(), "", None
        try:
            answer = checks[name](rank)
        except BaseException as e:
            error = f"{type(e).__name__}: {e}"[:1500]
            if not isinstance(e, AssertionError):
                error += "\n" + "".join(traceback.format_tb(e.__traceback__)[-3:])
        try:
            if rank.comm is not None:
                rank.comm.close()
        except Exception as e:
            error += f" (close: {e})"
        rank.comm = None
        world.barrier()
        took = round(time.monotonic() - began, 2)
        rows.append({"check": name, "seconds": took, "error": error, "said": answer})
        if error or world.rank == 0:
            word = "FAIL" if error else "ok  "
            text = error or json.dumps(answer, default=str)
            print(f"{word} rank {world.rank} {name} {took} s: {text[:900]}", flush=True)
        path = file.with_name(f"{file.name}{world.num_ranks}r{world.rank}.json")
        path.write_text(json.dumps(rows, indent=1, default=str))
    return rows


def words(about: str) -> argparse.ArgumentParser:
    """Return what reads the words that all such programs take."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--only", default="", help="words a check's name must contain")
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    return parser


def report(
    work: Callable[..., Any], checks: dict[str, Check], args: Any, *given: Any,
    deadline_s: float,
) -> int:  # fmt: skip
    """Spawn ranks that do `work(world, names, share, out, *given)`, and report."""
    import stretto

    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    if args.share:
        os.environ["STRETTO_CUDA_SHARE_GPU"] = "1"
    Path(args.out).mkdir(parents=True, exist_ok=True)
    names = [n for n in checks if all(word in n for word in args.only.split())]
    rows = stretto.spawn(
        work, names, args.share, args.out, *given, num_ranks=args.ranks,
        deadline_s=deadline_s,
    )  # fmt: skip
    bad = sorted({row["check"] for one in rows for row in one if row["error"]})
    print(f"{len(names)} checks on {args.ranks} ranks, failed: {bad or 'none'}")
    return 1 if bad else 0
