"""Memory given back and taken again: values after it, who is refused, what is freed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.errors import CallError, RankFailed, SharedMemoryError
from stretto.executors.cpu import session as cpu_session

COUNT = 300_000
ROOT = Path(__file__).parents[3]


def shared_pages():
    """Return the bytes of shared memory that this process has touched."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"RssShmem:\s+(\d+)", text)[1]) << 10


def wrong_results(comm, turn):
    """Return which calls are wrong, of kinds known since before and of new ones."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    for count in (1, 300, COUNT, COUNT + turn):
        x = np.arange(count, dtype=np.float32) % 97 + r + turn
        base = np.arange(count, dtype=np.float32) % 97 + turn
        if not np.array_equal(comm.all_reduce(x.copy()), n * base + n * (n - 1) / 2):
            wrong.append(("all_reduce", count))
        every = np.concatenate([base + q for q in range(n)])
        if not np.array_equal(comm.all_gather(x).ravel(), every):
            wrong.append(("all_gather", count))
        if not np.array_equal(comm.broadcast(x.copy(), root=n - 1), base + n - 1):
            wrong.append(("broadcast", count))
    got = np.zeros(COUNT, np.float32)
    if r == 0:
        comm.send(np.full(COUNT, turn, np.float32), 1)
    elif r == 1 and not (comm.recv(got, 0) == turn).all():
        wrong.append(("recv", COUNT))
    return wrong


def three_times(comm):
    """Suspend and resume between calls; return what was wrong, and what was held."""
    wrong, held = [], []
    kept = comm.empty((COUNT,), "float32")
    kept[:] = comm.rank + 1
    for turn in range(3):
        wrong += wrong_results(comm, turn)
        pages, memory = shared_pages(), comm.memory()["cpu"]
        comm.suspend()
        less = comm.memory()["cpu"]
        held.append((memory, less, pages - shared_pages()))
        comm.resume()
        if not (kept == comm.rank + 1 + turn).all():
            wrong.append(("kept", turn))
        kept += 1
    total = comm.all_reduce(kept)  # zero-copy
    n = comm.num_ranks
    if not (total == n * (n + 1) / 2 + 3 * n).all():
        wrong.append("registered")
    return wrong, held


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_calls_are_right_after_it_and_memory_was_free(num_ranks):
    """Of kinds that were known and of new ones; sends have sessions of their own."""
    for wrong, held in stretto.spawn(three_times, num_ranks=num_ranks):
        assert wrong == []
        for memory, less, freed in held:
            assert memory["staging"] > 1 << 19
            assert less["staging"] == 0
            assert less["registered"] == memory["registered"] > 4 * COUNT
            assert freed >= memory["staging"] // 2  # others' pages are mapped, too


FAR = """
import stretto
from tests.host.communicator.test_suspend import wrong_results
with stretto.connect(deadline_s=60) as comm:
    wrong = wrong_results(comm, 0)
    comm.suspend()
    left = comm.memory()["cpu"]["staging"]
    comm.resume()
    print(comm.hosts, wrong + wrong_results(comm, 1), left)
"""


def test_ranks_of_two_hosts_give_it_back_too(tmp_path):
    """By TCP, which has nothing pinned."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("5e" * 32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "WORLD_SIZE": "3",
        "STRETTO_CARRIER": "tcp",
        "STRETTO_ADDRESS": f"tcp://127.0.0.1:{port}",
        "STRETTO_SECRET_FILE": str(secret),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src"))),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FAR],
            text=True,
            stdout=subprocess.PIPE,
            env={**os.environ, **own, "RANK": str(r), "STRETTO_HOST": f"pretended{h}"},
        )
        for r, h in enumerate((0, 0, 1))
    ]
    try:
        said = [rank.communicate(timeout=90)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert ["(0, 0, 1) [] 0"] * 3 == said


def refusals(comm):
    """Return what each call says while it is suspended, and twice."""
    said, x = [], np.ones(64, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        comm.send(x, 1)
    else:
        comm.recv(x, 0)
    with pytest.raises(CallError) as error:
        comm.resume()
    said.append(str(error.value))
    started = comm.all_reduce_async(x)
    comm.suspend()
    started.wait()
    comm.check()
    asked = [
        lambda: comm.all_reduce(x),
        lambda: comm.barrier(),
        lambda: comm.empty((4,)),
        lambda: comm.split(0),
        lambda: comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0),
        lambda: comm.suspend(),
        lambda: comm.all_reduce_async(x).wait(),
    ]
    for one in asked:
        with pytest.raises(CallError) as error:
            one()
        said.append(str(error.value))
    comm.resume()
    return said, comm.all_reduce(np.ones(64, np.float32)).sum()


def test_calls_in_between_are_refused_in_one_sentence():
    """And nothing is broken by it."""
    for rank, (said, total) in enumerate(stretto.spawn(refusals, num_ranks=2)):
        assert total == 128
        assert said[0].startswith(f"rank {rank}: resume: this communicator is not susp")
        for text in said[1:]:
            assert text.startswith(f"rank {rank}: ")
            assert "is suspended" in text
        assert "want resume() first, on all ranks" in said[1]


def one_cannot(comm):
    """Rank 1 has something that keeps its memory; return what all hear."""
    x = np.ones(COUNT, np.float32)
    comm.all_reduce(x)
    if comm.rank == 1:
        cpu_session.CpuSession.keeps = lambda _: "a carrier has pinned it"
    with pytest.raises(CallError) as error:
        comm.suspend()
    return str(error.value), comm.memory()["cpu"]["staging"], comm.all_reduce(x / x)[0]


def test_where_one_rank_cannot_none_gives_anything_back():
    """All ranks say who and why, and go on."""
    for rank, (text, staging, total) in enumerate(
        stretto.spawn(one_cannot, num_ranks=3)
    ):
        assert text == (
            f"rank {rank}: suspend: rank 1 cannot give the memory of cpu: a carrier "
            "has pinned it; nothing was given back"
        )
        assert staging > 0
        assert total == 3


def no_memory(comm):
    """Rank 1 finds no memory at first; return what all hear, and hold then."""
    x = np.ones(COUNT, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)
    comm.suspend()
    populate = cpu_session.prefault
    if comm.rank == 1:

        def refuse(address, nbytes):
            raise SharedMemoryError("pages: Cannot allocate memory")

        cpu_session.prefault = refuse
    with pytest.raises(CallError) as error:
        comm.resume()
    held = comm.memory()["cpu"]["staging"]
    with pytest.raises(CallError, match="is suspended"):
        comm.all_reduce(x)
    cpu_session.prefault = populate
    comm.resume()
    return str(error.value), held, comm.all_reduce(x / x)[0]


def test_where_one_finds_no_memory_all_stay_suspended():
    """They hold nothing, and may try again."""
    for rank, (text, held, total) in enumerate(stretto.spawn(no_memory, num_ranks=3)):
        assert text == (
            f"rank {rank}: resume: rank 1: pages: Cannot allocate memory; it is "
            "suspended still: free some"
        )
        assert held == 0
        assert total == 3


def another_call(comm):
    """Rank 0 wants to suspend what rank 1 calls."""
    x = np.ones(8, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        comm.suspend()
    else:
        comm.all_reduce(x)


def test_one_that_calls_meanwhile_is_named():
    """It is no deadlock."""
    with pytest.raises(RankFailed) as error:
        stretto.spawn(another_call, num_ranks=2, deadline_s=5.0)
    assert "CollectiveMismatch" in str(error.value)
    assert "rank 0 called suspend; rank 1 called all_reduce" in str(error.value)


def ends_suspended(comm):
    """Close without taking anything back."""
    comm.all_reduce(np.ones(COUNT, np.float32))
    kept = comm.empty((16,), "float32")
    kept[:] = 7
    comm.suspend()
    comm.close()
    return float(kept.sum())


def test_a_suspended_communicator_can_be_closed():
    """Its arrays live on."""
    assert [112.0] * 2 == stretto.spawn(ends_suspended, num_ranks=2)
