"""Python values and lists of arrays, between processes."""

import numpy as np
import pytest

import stretto
from stretto.errors import CallError, RankFailed


class Odd:
    """What JSON has no word for."""

    def __init__(self, number):
        self.number = number


def exchange(comm):
    """Return what every collective of values gives this rank."""
    r, n = comm.rank, comm.num_ranks
    long = "x" * (1000 * r)
    told = {
        "all": comm.all_gather_object({"rank": r, "of": [1, None, True, 0.5, long]}),
        "root": comm.broadcast_object(["a", r] if r == 1 else None, root=1),
        "gather": comm.gather_object(f"from {r}\u00e9", root=n - 1),
        "mine": comm.scatter_object([[q] for q in range(n)] if r == 0 else None),
        "empty": comm.all_gather_object(None),
    }
    pickled = comm.all_gather_object((r, Odd(r)), pickle=True)
    assert [(q, q) for q in range(n)] == [(a, odd.number) for a, odd in pickled]
    tuples = comm.scatter_object([(q,) for q in range(n)], root=0, pickle=True)
    assert (r,) == tuples
    return told


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_values_arrive_as_they_were(num_ranks):
    """Of any size, also none; each rank's where it belongs."""
    told = stretto.spawn(exchange, num_ranks=num_ranks)

    everybody = [
        {"rank": r, "of": [1, None, True, 0.5, "x" * (1000 * r)]}
        for r in range(num_ranks)
    ]
    for rank, one in enumerate(told):
        last = rank == num_ranks - 1
        assert everybody == one["all"]
        assert ["a", 1] == one["root"]
        sent = [f"from {r}\u00e9" for r in range(num_ranks)]
        assert (sent if last else None) == one["gather"]
        assert [rank] == one["mine"]
        assert [None] * num_ranks == one["empty"]


def refuse(comm):
    """Return what is said of values that JSON would change; nothing is sent."""
    said = []
    for value in ((1,), {1: 2}, [{"a": {3}}], np.float64(1.0), b"x"):
        try:
            comm.all_gather_object(value)
        except CallError as e:
            said.append(str(e))
    try:
        comm.scatter_object([1])
    except CallError as e:
        said.append(str(e))
    comm.barrier()
    return said


def test_what_would_change_is_refused():
    """With the place in it, before anybody is kept waiting."""
    said = stretto.spawn(refuse, num_ranks=1)[0]

    for words, text in zip(
        ["value is a tuple", "the key 1", "value[0]['a'] is a set",
         "value is a float64", "value is a bytes"], said, strict=True,
    ):  # fmt: skip
        assert text.startswith("rank 0: all_gather_object: ")
        assert words in text
        assert "pickle=True" in text


def mixed(comm):
    comm.broadcast_object((1, 2), root=0, pickle=comm.rank == 0)


def test_a_pickle_is_read_only_by_who_says_so():
    """Reading one runs what its sender wants."""
    with pytest.raises(RankFailed, match="root's value is a pickle, and this rank"):
        stretto.spawn(mixed, num_ranks=2)


def together(comm):
    """Compare a block with the same calls one by one; return the launches it made."""
    r, n = comm.rank, comm.num_ranks
    rng = np.random.default_rng(r)
    xs = [rng.integers(0, 99, s).astype(np.int64) for s in [(3,), (2, 5), (), (7, 1)]]
    large = np.full(1 << 18, r, np.float32)
    sums = [x.copy() for x in xs]
    tops = [x.copy() for x in xs]
    sent = [x.copy() for x in xs]
    gathered = [np.zeros((n, *x.shape), np.int64) for x in xs]
    parts = [np.zeros((k,), np.int64) for k in (2, 3)]
    whole = [np.arange(k * n) * (r + 1) for k in (2, 3)]
    swapped = [np.zeros_like(w) for w in whole]
    strided = np.zeros((4, 6))[:, ::2]
    strided[...] = r
    with comm.coalesced() as block:
        for x, top, one in zip(sums, tops, sent, strict=True):
            block.all_reduce(x)
            block.all_reduce(top, op="max")
            block.broadcast(one, root=n - 1)
        for x, out in zip(xs, gathered, strict=True):
            block.all_gather(x, out=out)
        block.all_reduce(large)
        block.all_reduce(strided)
        block.all_reduce(np.ones(3))
        for w, p, s in zip(whole, parts, swapped, strict=True):
            block.reduce_scatter(w, out=p)
            block.all_to_all(w, out=s)
        assert all(np.array_equal(a, b) for a, b in zip(xs, sums, strict=True))
    for i, x in enumerate(xs):
        want, top, one = x.copy(), x.copy(), x.copy()
        comm.all_reduce(want)
        comm.all_reduce(top, "max")
        comm.broadcast(one, root=n - 1)
        assert np.array_equal(want, sums[i])
        assert np.array_equal(top, tops[i])
        assert np.array_equal(one, sent[i])
        assert np.array_equal(comm.all_gather(x), gathered[i])
    for i, w in enumerate(whole):
        assert np.array_equal(comm.reduce_scatter(w), parts[i])
        assert np.array_equal(comm.all_to_all(w), swapped[i])
    assert (large == n * (n - 1) / 2).all()
    assert (strided == n * (n - 1) / 2).all()
    return True


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_block_gives_what_single_calls_give(num_ranks):
    """All verbs, shapes, strides, operators; nothing moves before its end."""
    assert [True] * num_ranks == stretto.spawn(together, num_ranks=num_ranks)


def count(comm):
    """Return how many calls a block makes, and what it refuses."""
    made, said = [], []

    class Counting:
        rank, num_ranks = comm.rank, comm.num_ranks

        def all_reduce(self, x, **named):
            made.append(x.size)
            comm.all_reduce(x, **named)

    block = type(comm.coalesced())(Counting())
    with block:
        for k in range(20):
            block.all_reduce(np.ones(k))
    for call in (
        lambda: block.all_reduce(np.ones(2)),
        lambda: comm.coalesced().all_reduce([1.0]),
        lambda: comm.coalesced().all_gather(np.ones(3), out=np.ones(4)),
    ):
        try:
            call()
        except CallError as e:
            said.append(str(e))
    try:
        with comm.coalesced() as stopped:
            stopped.all_reduce(np.ones(2))
            raise KeyError
    except KeyError:
        pass
    return made, said


def test_a_block_is_one_call():
    """For all that are alike; after it has ended, or was left, none."""
    made, said = stretto.spawn(count, num_ranks=1)[0]

    assert [sum(range(20))] == made
    assert "its block has ended" in said[0]
    assert "x is a list; want NumPy arrays or torch tensors" in said[1]
    assert "x has 3 elements of float64, out 4" in said[2]
