"""Ranks of two hosts, 2 and 2: one is lost, or a whole host is; the job goes on."""

import sys
import time

import pytest
from tests.host.hop.conftest import hosts, start

__all__ = ["hosts", "start"]
pytestmark = [pytest.mark.host, pytest.mark.slow, pytest.mark.timeout(120)]
MEET = """
def elastic(**more):
    said = stretto.Elastic(min_ranks=2, **more)
    return stretto.connect(rank % 4, 4, address, deadline_s=20.0, elastic=said)
def until_lost(comm):
    x = np.ones(1 << 10, np.float32)
    try:
        while True:
            comm.all_reduce(x)
    except StrettoError as e:
        return type(e).__name__, time.monotonic()
def total(comm):
    return float(comm.all_reduce(np.full(1000, comm.rank + 1.0))[7])
"""
REPLACE = f"""{MEET}
comm = elastic(standby=1)
if comm.generation == 0:
    while not comm.standbys:
        time.sleep(0.01)
    total(comm)
    say("met")
    kind, told = until_lost(comm)
    comm.replace()
else:
    say("met")
    kind, told = "PeerLost", 0.0
say(comm.rank, comm.hosts, kind, total(comm), told, time.monotonic())
comm.close()
"""
SHRINK = f"""{MEET}
comm = elastic()
total(comm)
say("met")
kind, told = until_lost(comm)
try:
    comm.shrink()
    say(comm.rank, comm.hosts, kind, total(comm), told, time.monotonic())
except StrettoError as e:
    say("left", type(e).__name__, time.monotonic())
comm.close()
"""


def said(lines):
    """Each rank's number, hosts, error and sum; and when the last of them went on."""
    parts = [one.rsplit(" ", 4) for one in lines]
    return [one[:3] for one in parts], max(float(one[4]) for one in parts)


@pytest.mark.parametrize(
    ("killed", "hosts_then"), [(0, (0, 1, 0, 0)), (3, (0, 0, 1, 0))]
)
def test_a_standby_of_the_other_host_takes_a_lost_ranks_place(
    start, killed, hosts_then
):
    """Rank 0 is one like any other: the hub is in no rank."""
    there = 1 - killed // 2
    job = start((0, 0, 1, 1, there), REPLACE, rank4={"STRETTO_STANDBY": "1"})
    assert ["met"] * 4 == [job.hear(rank) for rank in range(4)]
    begun = time.monotonic()
    job.ranks[killed].kill()
    assert "met" == job.hear(4)
    left = [rank for rank in range(4) if rank != killed]
    told, last = said([job.hear(rank) for rank in (*left, 4)])
    sys.stdout.write(f"replaced after {last - begun:.3f} s\n")

    assert [[f"{r} {hosts_then}", "PeerLost", "10.0"] for r in (*left, killed)] == told


def test_those_who_are_left_go_on_without_a_host_that_vanished(start, hosts):
    """The wire is cut; the others are told that they are out, and do not hang."""
    job = start((0, 0, 1, 1), SHRINK)
    assert ["met"] * 4 == job.hear_all()
    begun = time.monotonic()
    hosts.cut()
    told, last = said([job.hear(rank) for rank in (0, 1)])
    there = [job.hear(rank) for rank in (2, 3)]
    sys.stdout.write(f"shrunk after {last - begun:.3f} s\n")

    assert [[f"{r} ()", "PeerLost", "3.0"] for r in (0, 1)] == told
    assert all(one.startswith("left ") for one in there), there
