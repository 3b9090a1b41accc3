"""Experts whose ranks die or stay away, and experts on two hosts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from tests.host.experts.test_experts import many
from tests.waiting import until

import stretto
from stretto.errors import CollectiveTimeout, CommunicationError
from stretto.experts import cpu
from stretto.experts.ways import CallWay

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def made(comm):
    """Return experts, and what may be dispatched."""
    ep = comm.experts(4, 2, 16, 4, dtype="float32")
    x = np.ones((2, 16), np.float32)
    ids = np.array([[0, 3], [1, -1]])
    ep.combine((sent := ep.dispatch(x, ids)).rows, sent)
    return ep, x, ids


def absent(comm, folder):
    """Let the last rank stay away from a combine until the others have given up."""
    ep, x, ids = made(comm)
    sent = ep.dispatch(x, ids)
    comm.barrier()
    if comm.rank == 2:
        until(lambda: len(list(Path(folder).iterdir())) == 2, 60)
        return "", 0.0
    since = time.monotonic()
    try:
        ep.combine(sent.rows, sent)
    except CollectiveTimeout as e:
        return str(e), time.monotonic() - since
    finally:
        (Path(folder) / str(comm.rank)).touch()
    return "nothing was raised", 0.0


def test_a_rank_that_stays_away_is_named_at_the_deadline(tmp_path):
    """By the ranks that wait for it."""
    said = stretto.spawn(absent, str(tmp_path), num_ranks=3, deadline_s=2)
    for text, took_s in said[:2]:
        assert "rank 2" in text or "ranks [2]" in text
        assert 1.9 < took_s < 20, "at the deadline, however busy the machine is"


def dead(comm):
    """Let rank 1 die before a dispatch."""
    ep, x, ids = made(comm)
    if comm.rank == 1:
        os._exit(7)
    try:
        for _ in range(3):
            ep.dispatch(x, ids)
    except CommunicationError as e:
        if "rank 1" not in str(e):
            raise AssertionError(str(e)) from None
        raise
    return "nothing was raised"


def test_a_rank_that_dies_is_named():
    """At once, by the one that is left."""
    with pytest.raises(stretto.RankFailed, match="rank 1") as caught:
        stretto.spawn(dead, num_ranks=2, deadline_s=20)
    assert "AssertionError" not in str(caught.value)


def called(comm):
    """Let rows go by all_to_all_v, as they do to other hosts."""
    cpu.way_of = CallWay
    return many(comm, 700, 120)


def test_rows_that_go_by_calls_are_the_same():
    """What ranks on several hosts do, here on one."""
    assert [[]] * 3 == stretto.spawn(called, num_ranks=3)
