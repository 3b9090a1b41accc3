"""Collectives with a root, and permutations, on memory that peers reach."""

from __future__ import annotations

import numpy as np
import pytest

import stretto
from stretto import algorithms
from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]

COUNT = 999


def one(comm, name, words, root, rng):
    """Make one call on fresh data; return whether it was right.

    What the root alone has lies in memory of its own: no peer reaches into it.
    """
    n, me = comm.num_ranks, comm.rank
    pin = f"{name} {words} zero_copy"
    given = rng.integers(-99, 99, (n, COUNT)).astype(np.float32)
    x, out = (comm.empty(COUNT, "float32") for _ in range(2))
    x[:], out[:] = given[me], np.nan
    if name == "gather/flat":
        got = comm.gather(x, root=root, algorithm=pin)
        want = given if me == root else None
    elif name == "reduce/flat":
        got = comm.reduce(x, root=root, algorithm=pin)
        want = given.sum(0) if me == root else None
    elif name == "scatter/flat":
        whole = given if me == root else None
        got = comm.scatter(whole, root=root, out=out.reshape(1, -1), algorithm=pin)
        want = given[[me]]
    elif name == "broadcast/flat":
        source = given[root].copy() if me == root else None
        got, want = (
            comm.broadcast(source, root=root, out=out, algorithm=pin),
            given[root],
        )
    else:
        pairs = tuple((q, (q + 1) % n) for q in range(n))
        got = comm.permute(x, pairs, out=out, algorithm=pin)
        want = given[me - 1]
    return got is want is None or np.array_equal(got, want)


def reached(comm):
    """Run every collective that some rank has only one array of."""
    rng, wrong = np.random.default_rng(3), []
    for name, words in (
        ("gather/flat", "pull bulk"),
        ("reduce/flat", "pull bulk"),
        ("scatter/flat", "push bulk"),
        ("broadcast/flat", "push bulk"),
        ("permute/direct", "push bulk"),
        ("permute/direct", "pull bulk"),
    ):
        right = [one(comm, name, words, q, rng) for q in range(comm.num_ranks)]
        if not all(right):
            wrong.append(f"{name} {words}: by root {right}")
    x = comm.empty(COUNT, "float32")
    try:
        comm.permute(x, ((0, 1),), algorithm="permute/direct push bulk zero_copy")
    except CallError as e:
        if "that some ranks do not have" not in str(e):
            wrong.append(str(e))
    else:
        wrong.append("a permutation of some ranks was accepted")
    try:
        comm.gather(np.ones(3), algorithm="gather/flat pull bulk zero_copy")
    except CallError as e:
        if "comm.empty() (x on every rank" not in str(e):
            wrong.append(str(e))
    else:
        wrong.append("private memory was accepted")
    return wrong


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_peers_reach_what_every_rank_has(num_ranks):
    """A gather's inputs, a scatter's outputs; both of a whole permutation."""
    assert [[]] * num_ranks == stretto.spawn(reached, num_ranks=num_ranks)


def shown(comm):
    """Write to the next rank's array, as this process maps it."""
    mine = comm.empty((2, 5), "float32")
    mine[:] = -1
    comm.barrier()
    everybodys = comm.peers(mine)
    everybodys[(comm.rank + 1) % comm.num_ranks][1] = comm.rank
    comm.barrier()
    try:
        comm.peers(np.ones(3))
    except CallError as e:
        return mine.tolist(), len(everybodys), str(e)
    return mine.tolist(), len(everybodys), ""


def test_peers_arrays_are_reached_by_stores():
    """Each as this process maps it; memory of one's own is refused."""
    found = stretto.spawn(shown, num_ranks=3)

    for rank, (mine, many, why) in enumerate(found):
        assert [[-1] * 5, [(rank - 1) % 3] * 5] == mine
        assert 3 == many
        assert f"rank {rank}: peers() of 24 bytes that peers do not reach" in why


def own_parts(comm, pins):
    """Make calls whose one array is the rank's own part of the other, by each pin.

    Return which were wrong, and which were refused.
    """
    n, me = comm.num_ranks, comm.rank
    wrong, refused = [], []
    for pin in pins:
        whole, given = comm.empty((n, COUNT)), np.arange(n, dtype=np.float32) + 1
        part = whole[me]
        gathers = pin.startswith("all_gather")
        (part if gathers else whole)[:] = given[me]
        words = pin if "/" in pin else None
        try:
            if gathers:
                comm.all_gather(part, out=whole, algorithm=words)
            else:
                comm.reduce_scatter(whole, out=part, algorithm=words)
        except CallError as e:
            refused.append((pin, str(e)))
            continue
        want = given[:, None] if gathers else given.sum()
        if not np.array_equal(whole if gathers else part, 0 * part + want):
            wrong.append(pin)
    return wrong, refused


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_ranks_own_part_of_registered_memory_is_in_place_by_all_that_serves(
    num_ranks,
):
    """It lies elsewhere on every rank, so no peer may reach it by its own offset.

    What lets peers do so is refused when it is named with its schedule, on all ranks
    alike, and chosen by none else.
    """
    names = [
        one
        for one in algorithms.names()
        if one.startswith(("all_gather/", "reduce_scatter/"))
        and algorithms.get(one).refuses(num_ranks) is None
    ]
    hows = "", " push bulk zero_copy", " pull bulk zero_copy"
    pins = [
        "all_gather",
        "reduce_scatter",
        *(f"{one}{how}" for one in names for how in hows),
    ]

    found = stretto.spawn(own_parts, pins, num_ranks=num_ranks)

    assert [wrong for wrong, _ in found] == [[]] * num_ranks
    refused = [dict(one) for _, one in found]
    assert all(one.keys() == refused[0].keys() for one in refused)
    assert "all_gather/ring pull bulk zero_copy" in refused[0]
    assert "in place each rank's" in refused[0]["all_gather/ring pull bulk zero_copy"]
    assert not [pin for pin in refused[0] if " " not in pin or "push" in pin]
