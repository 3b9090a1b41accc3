"""Experts whose ranks die or stay away, and experts on two hosts."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from tests.host.experts.test_experts import many

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


def absent(comm):
    """Let the last rank stay away from a combine."""
    ep, x, ids = made(comm)
    sent = ep.dispatch(x, ids)
    comm.barrier()
    if comm.rank == 2:
        time.sleep(2)
        return "", 0.0
    since = time.monotonic()
    try:
        ep.combine(sent.rows, sent)
    except CollectiveTimeout as e:
        return str(e), time.monotonic() - since
    return "nothing was raised", 0.0


def test_a_rank_that_stays_away_is_named_at_the_deadline():
    """By the ranks that wait for it."""
    for said, took_s in stretto.spawn(absent, num_ranks=3, deadline_s=0.5)[:2]:
        assert "rank 2" in said or "ranks [2]" in said
        assert took_s < 1.9


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
