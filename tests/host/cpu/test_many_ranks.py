"""The first call of many ranks: one of them chooses and proves, all of them run it."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.fabric.memory import memory_bytes
from stretto.runtime.choice import plans

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def first_calls(comm, place):
    """Return how many plans this rank proved for its calls, and what they gave."""
    os.environ["STRETTO_CACHE_DIR"] = place
    made, prove = [], plans._prove
    plans._prove = lambda *args: made.append(args) or prove(*args)
    small, large = np.ones(256, np.float32), np.full(1 << 16, comm.rank, np.float32)
    comm.all_reduce(small)
    comm.all_reduce(large)
    parts = comm.all_gather(small[:4])
    half = comm.split(comm.rank % 2)
    half.all_reduce(small)
    return len(made), (small[0], large[0], parts.sum())


def test_sixteen_ranks_prove_every_plan_once(tmp_path):
    """Three of the world; and one of its halves, which are alike."""
    out = stretto.spawn(first_calls, str(tmp_path), num_ranks=16, deadline_s=60)

    assert 4 == sum(many for many, _ in out)
    assert {(128.0, 120.0, 1024.0)} == {tuple(map(float, got)) for _, got in out}


def nowhere(comm, place):
    """The same where nothing can be kept: the cache's place is a file."""
    os.environ["STRETTO_CACHE_DIR"] = place
    x = np.ones(256, np.float32)
    comm.all_reduce(x)
    return float(x[0])


def test_ranks_that_can_keep_nothing_prove_it_all_themselves(tmp_path):
    """It takes them longer, and gives the same."""
    (tmp_path / "file").write_text("")
    out = stretto.spawn(nowhere, str(tmp_path / "file"), num_ranks=8, deadline_s=60)

    assert [8.0] * 8 == out


def addresses(comm):
    """Return how many bytes of addresses are used: none registered, and then some."""

    def now():
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * resource.getpagesize()

    before = now()
    comm.all_reduce(np.ones(256, np.float32))
    x = comm.empty((1 << 20,), "float32")
    x[:] = comm.rank
    comm.all_reduce(x)
    return before, now() - before, float(x[0])


def test_addresses_are_used_as_memory_is():
    """A slab of each rank; with registered memory twice what this machine has."""
    ranks = 12
    out = stretto.spawn(addresses, num_ranks=ranks, deadline_s=60)

    assert {66.0} == {got for *_, got in out}
    assert max(before for before, *_ in out) < (ranks + 16) << 28
    room = max(2 * 2 * memory_bytes(), ranks << 28) + (1 << 30)
    assert max(more for _, more, _ in out) < room


def summed(comm):
    """Sum once."""
    x = np.full(1024, comm.rank, np.float32)
    comm.all_reduce(x)
    return float(x[0])


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.timeout(600)
def test_sixty_four_ranks_connect_and_sum_within_80_seconds_of_processors():
    """Which two cores have in 40 s. What others run meanwhile does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = stretto.spawn(summed, num_ranks=64, deadline_s=300)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert [sum(range(64))] * 64 == out
    assert now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime < 80
