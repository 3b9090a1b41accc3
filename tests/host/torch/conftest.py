"""Ranks with a process group each: started once per file, they run all its checks.

Importing PyTorch takes seconds, so a file of tests has one set of ranks. A check is a
function `check_...(rank, n)` of a module that the file names; it raises when something
is wrong. Ranks run all of them, in order, and say what came of each.
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


def checks_of(*modules):
    """Return the checks of some modules by name, in order."""
    found = [vars(importlib.import_module(module)) for module in modules]
    return {
        name: check
        for names in found
        for name, check in names.items()
        if name.startswith("check_")
    }


def serve(comm, modules: tuple[str, ...], store: str):
    """Be a rank: run the checks in one process group."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch.distributed as dist

    import stretto.torch  # noqa: F401

    torch.set_num_threads(1)
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
    for name, check in checks_of(*modules).items():
        try:
            check(comm.rank, comm.num_ranks)
            said[name] = ""
        except (Exception, pytest.fail.Exception):
            said[name] = f"rank {comm.rank}:\n{traceback.format_exc()}"
        if comm.all_gather(np.array([bool(said[name])])).any():  # start afresh
            dist.destroy_process_group()
            begin()
    dist.destroy_process_group()
    return said


def outcomes(modules: tuple[str, ...], num_ranks: int) -> dict[str, str]:
    """Return what came of each check: nothing, or what ranks raised."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = stretto.spawn(
            serve, modules, f"{folder}/store", num_ranks=num_ranks, deadline_s=120
        )
    return {
        name: "\n".join(filter(None, (said[name] for said in ranks)))
        for name in checks_of(*modules)
    }


@pytest.fixture(scope="module")
def checked(request):
    """Return what came of every check of the modules that the test file names."""
    found: dict[int, dict[str, str]] = {}
    modules = request.module.CHECKS

    def of(name: str, num_ranks: int) -> str:
        if num_ranks not in found:
            try:
                found[num_ranks] = outcomes(modules, num_ranks)
            except stretto.RankFailed as e:
                found[num_ranks] = dict.fromkeys(checks_of(*modules), str(e))
        return found[num_ranks][name]

    return of
