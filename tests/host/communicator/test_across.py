"""What the kernel copies between two processes: values, and who cannot be reached."""

from __future__ import annotations

import mmap
import os
import signal

import numpy as np
import pytest
from tests.waiting import until

import stretto
from stretto.errors import CallError

TAKEN = {
    "all_gather": "all_gather/one_shot",
    "all_to_all": "all_to_all/one_shot",
    "broadcast": "broadcast/flat",
    "gather": "gather/flat",
    "scatter": "scatter/flat",
}
HALVES = "permute/halves pull bulk across given:push"
DIRECT = "permute/direct pull bulk across"
JUST_BEHIND = (0, 1, 8, 16, 31, 32, 4080)
"""Where what is written lies in its page, before and behind what is read."""


def at(place, count, dtype):
    """Return an array that begins at that place of a page."""
    room = np.zeros(count * np.dtype(dtype).itemsize + 8192, np.uint8)
    start = (place - room.ctypes.data) % 4096
    return room[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def same_as_staged(comm, count):
    """Return which collectives give other results than their staged plans."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    for name, algorithm in TAKEN.items():
        sides = {"all_gather": (1, n), "gather": (1, n), "scatter": (n, 1)}
        many, few = sides.get(name, (n, n) if name == "all_to_all" else (1, 1))
        for tile in (64, 1 << 18):
            x = np.random.default_rng(r).integers(0, 9, count * many).astype("int16")
            results = []
            for words in ("pull bulk staged", f"pull bulk across tile_bytes={tile}"):
                out = np.full(count * few, -1, "int16")
                pin = f"{algorithm} {words}"
                given = {"root": n - 1} if name in VERBS_WITH_A_ROOT else {}
                has = r == n - 1 or name not in ("broadcast", "scatter")
                takes = r == n - 1 or name != "gather"
                getattr(comm, name)(
                    x if has else None,
                    out=out if takes else None,
                    algorithm=pin,
                    **given,
                )
                results.append(out if takes else None)
            if results[0] is not None and not np.array_equal(*results):
                wrong.append((name, tile))
    return wrong


VERBS_WITH_A_ROOT = ("broadcast", "gather", "scatter")


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("count", [1, 37, 5000])
def test_collectives_are_as_their_staged_plans(num_ranks, count):
    """In tiles and without; of every collective that only copies."""
    assert [[]] * num_ranks == stretto.spawn(same_as_staged, count, num_ranks=num_ranks)


def at_all_places(comm, pin):
    """Return at which places a message arrived changed."""
    wrong = []
    for dtype, count in (("uint8", 70_001), ("float32", 40_000)):
        size = np.dtype(dtype).itemsize
        for place in JUST_BEHIND:
            if place % size:
                continue
            x, out = at(0, count, dtype), at(place, count, dtype)
            x[:] = np.arange(count) % 251
            comm.permute(x, [(0, 1)], out=out, algorithm=pin)
            if comm.rank == 1 and not np.array_equal(x, out):
                wrong.append((dtype, place))
    return wrong


@pytest.mark.parametrize("pin", [HALVES, DIRECT, f"{HALVES} tile_bytes=4096"])
def test_messages_arrive_wherever_arrays_lie(pin):
    """Also where the processor copies slowly: through memory between them."""
    assert [[], []] == stretto.spawn(at_all_places, pin, num_ranks=2)


def where_its_own_is(comm, count):
    """Return which calls in place are wrong, and what was kept of their inputs."""
    n, r, wrong = comm.num_ranks, comm.rank, []
    session = comm._session("cpu")
    want = np.concatenate([np.arange(count) + q for q in range(n)]).astype("int32")
    out = np.full((n, count), -1, "int32")
    out[r] = np.arange(count) + r
    comm.all_gather(out[r], out=out, algorithm=f"all_gather/one_shot {TAKEN_BY}")
    wrong += ["all_gather"] * (out.ravel().tolist() != want.tolist())
    for root in range(n):
        x = np.arange(count) * (1 if r == root else 0) + root
        comm.broadcast(x, out=x, root=root, algorithm=f"broadcast/flat {TAKEN_BY}")
        wrong += ["broadcast"] * (x.tolist() != (np.arange(count) + root).tolist())
        out = np.full((n, count), -1, "int32")
        out[r] = np.arange(count) + r
        here = out if r == root else None
        comm.gather(out[r], out=here, root=root, algorithm=f"gather/flat {TAKEN_BY}")
        wrong += ["gather"] * (r == root and out.ravel().tolist() != want.tolist())
    return wrong, session._copy.nbytes


TAKEN_BY = "pull bulk across"


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_in_place_is_no_copy_where_the_output_has_it_anyway(num_ranks):
    """Peers read what nobody writes."""
    for count in (5, 40_000):
        found = stretto.spawn(where_its_own_is, count, num_ranks=num_ranks)
        assert [([], 0)] * num_ranks == found


def in_place(comm):
    """Return what an exchange in place gives, twice, and what was asked of it."""
    found = []
    for _ in range(2):
        x = np.full(1 << 18, comm.rank, np.int32)
        comm.permute(x, [(0, 1), (1, 0)], out=x, algorithm=DIRECT)
        found.append(int(x.sum()))
    return found


def test_a_peer_copies_from_a_copy_of_what_is_overwritten():
    """In place, where one side reads what the other writes."""
    n = 1 << 18
    assert [[n, n], [0, 0]] == stretto.spawn(in_place, num_ranks=2)


def chosen(comm):
    """Return how messages of three sizes would go, and whether one arrives."""
    comm.barrier()
    pairs = ((0, 1),)
    said = [comm.explain("permute", n // 4, pairs=pairs) for n in (8192, 1 << 20)]
    x = np.arange(1 << 18, dtype=np.float32)
    out = np.zeros_like(x)
    (comm.send(x, 1) if comm.rank == 0 else comm.recv(out, 0))
    return said, bool(comm.rank == 0 or np.array_equal(x, out))


def test_large_messages_go_across_by_themselves():
    """Small ones do not: two copies in caches are quicker."""
    for said, arrived in stretto.spawn(chosen, num_ranks=2):
        assert arrived
        assert "across" not in said[0]
        assert said[1].startswith("permute/halves pull bulk across")


def without(comm):
    """Return how a message goes where rank 1 has said no, and what a pin is told."""
    if comm.rank == 1:
        os.environ["STRETTO_ACROSS"] = "0"
    comm = comm.split(0)  # what opens now asks again
    comm.barrier()
    said = comm.explain("permute", 1 << 20, pairs=((0, 1),))
    x = np.ones(1 << 20, np.float32)
    with pytest.raises(CallError) as caught:
        comm.permute(x, [(0, 1)], algorithm=HALVES)
    return said, str(caught.value)


def test_one_rank_that_may_not_is_enough():
    """All choose alike; who pins it is told what it takes."""
    for said, refused in stretto.spawn(without, num_ranks=2):
        assert "staged" in said
        assert "the kernel does not copy between these ranks' memories" in refused
        assert "stretto doctor" in refused


def sums(comm):
    """Return what a sum across is told."""
    with pytest.raises(stretto.errors.StrettoError) as caught:
        comm.all_reduce(np.ones(64), algorithm="all_reduce/two_shot pull bulk across")
    return str(caught.value)


def test_sums_are_refused():
    """They would need memory to add from."""
    for said in stretto.spawn(sums, num_ranks=2):
        assert "does more than copy once" in said
        assert "want staged" in said


def unreadable(comm):
    """Send from memory whose file has become shorter: nobody may touch it."""
    nbytes = 1 << 20
    fd = os.memfd_create("short")
    os.ftruncate(fd, nbytes)
    x = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    comm.barrier()
    os.ftruncate(fd, 0)
    os.close(fd)
    with pytest.raises(stretto.errors.StrettoError) as caught:
        comm.permute(x, [(0, 1)], out=np.zeros(nbytes, np.uint8), algorithm=DIRECT)
    return type(caught.value).__name__, str(caught.value)


def test_memory_that_cannot_be_read_is_named_on_all_ranks():
    """Not a hang, and nothing of it is lost silently."""
    found = stretto.spawn(unreadable, num_ranks=2)

    for kind, said in found:
        assert kind == "CallError"
        assert "does not copy from the array of rank 0: Bad address" in said


def dies(comm, told):
    """Let rank 1 find rank 0's process gone between its word and the copy."""
    pids = comm.all_gather(np.array([os.getpid()], np.int64)).ravel()
    comm.barrier()
    x = np.ones(1 << 20, np.uint8)
    if comm.rank == 1:
        theirs = comm._sessions["cpu"]._slabs
        until(lambda: theirs[0].call()[0] > theirs[1].call()[0])  # it has said its word
        os.kill(int(pids[0]), signal.SIGKILL)
    try:
        comm.permute(x, [(0, 1)], out=np.zeros_like(x), algorithm=DIRECT)
    except stretto.errors.StrettoError as e:
        told.write_text(f"{type(e).__name__}: {e}")
        raise


def test_a_peer_that_ends_is_named(tmp_path):
    """Whoever was to copy from it waits until it is known who has gone."""
    with pytest.raises(stretto.errors.StrettoError):
        stretto.spawn(dies, tmp_path / "told", num_ranks=2)
    said = (tmp_path / "told").read_text()
    assert said.startswith("PeerLost: ")
    assert "rank 0" in said
