"""Memory that all ask for together is alike on all; times to wait are times."""

from __future__ import annotations

import math

import numpy as np
import pytest

import stretto
from stretto.errors import CallError, CollectiveMismatch

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]

ODD = [((3,), "int32"), ((1, 3), "float32"), ((6,), "float16"), ((7,), "float32")]
NO_TIMES = [math.nan, -1, -0.001, math.inf, 10**30, "5", True]


def ask_for_others(comm):
    """Let rank 1 ask for something else; return what each group was told."""
    told = []
    for shape, dtype in ODD:
        group = comm.split(0)
        mine = (shape, dtype) if comm.rank == 1 else ((3,), "float32")
        try:
            group.empty(*mine)
        except CollectiveMismatch as e:
            told.append(str(e))
        else:
            told.append("nothing")
    return told


def test_ranks_that_ask_for_other_memory_are_told_who_did():
    """Of as many bytes, too: another type, another shape."""
    for told in stretto.spawn(ask_for_others, num_ranks=3):
        for (shape, dtype), said in zip(ODD, told, strict=True):
            assert f"rank 1: {shape} {dtype}, cpu" in said
            assert "ranks 0, 2: (3,) float32, cpu" in said


def wait_for(comm):
    """Return what times that are none are answered with, wherever one is taken."""
    work = comm.all_reduce_async(np.ones(4, np.float32))
    ways = {
        "work": work.wait,
        "split": lambda given: comm.split(0, deadline_s=given),
        "set": lambda given: setattr(comm, "deadline_s", given),
    }
    kept = comm.deadline_s
    wrong = []
    for name, way in ways.items():
        for given in NO_TIMES if name == "work" else [*NO_TIMES, 0]:
            try:
                way(given)
            except CallError:
                continue
            wrong.append((name, given))
    assert 1 == work.wait(5)[0]
    return wrong, comm.deadline_s == kept


def test_times_that_are_none_are_refused():
    """Neither nan, which no clock reaches, nor what is over before it begins."""
    assert [([], True)] == stretto.spawn(wait_for, num_ranks=1)


@pytest.mark.parametrize("given", [*NO_TIMES, 0])
def test_groups_do_not_begin_with_such_times(given):
    """They are refused before anything is started."""
    with pytest.raises(CallError, match="deadline_s="):
        stretto.spawn(wait_for, num_ranks=1, deadline_s=given)
    with pytest.raises(CallError, match="deadline_s="):
        stretto.connect(rank=0, num_ranks=1, deadline_s=given)
