"""Ranks with a process group each: started once per file, they run all its checks.

Importing PyTorch takes seconds, so a file of checks has one set of ranks. A check is a
function `check_...(rank, n)` of a module; it raises when something is wrong. Ranks run
all of them, in order, and say what came of each.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import traceback
from datetime import timedelta

import numpy as np
import pytest

import stretto

pytest.importorskip("torch")


def names_of(module) -> list[str]:
    """Return the checks of a module, in order."""
    return [name for name in vars(module) if name.startswith("check_")]


def serve(comm, module: str, names: list[str], store: str):
    """Be a rank: run the checks in one process group."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch.distributed as dist

    import stretto.torch  # noqa: F401

    torch.set_num_threads(1)
    checks = importlib.import_module(module)
    said, groups = {}, 0

    def begin():
        nonlocal groups
        groups += 1
        dist.init_process_group(
            "stretto",
            init_method=f"file://{store}{groups}",
            rank=comm.rank,
            world_size=comm.num_ranks,
            timeout=timedelta(seconds=20),
        )

    begin()
    for name in names:
        try:
            getattr(checks, name)(comm.rank, comm.num_ranks)
            said[name] = ""
        except (Exception, pytest.fail.Exception):
            said[name] = f"rank {comm.rank}:\n{traceback.format_exc()}"
        if comm.all_gather(np.array([bool(said[name])])).any():  # start afresh
            dist.destroy_process_group()
            begin()
    dist.destroy_process_group()
    return said


def outcomes(module: str, names: list[str], num_ranks: int) -> dict[str, str]:
    """Return what came of each check: nothing, or what ranks raised."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = stretto.spawn(
            serve, module, names, f"{folder}/store", num_ranks=num_ranks, deadline_s=120
        )
    return {
        name: "\n".join(filter(None, (said[name] for said in ranks))) for name in names
    }


@pytest.fixture(scope="module")
def checked(request):
    """Return what came of every check of the module that the test file names."""
    found: dict[int, dict[str, str]] = {}
    module = request.module.CHECKS

    def of(name: str, num_ranks: int) -> str:
        if num_ranks not in found:
            names = names_of(importlib.import_module(module))
            try:
                found[num_ranks] = outcomes(module, names, num_ranks)
            except stretto.RankFailed as e:
                found[num_ranks] = dict.fromkeys(names, str(e))
        return found[num_ranks][name]

    return of
