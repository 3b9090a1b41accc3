"""A sum of eight shards has the same bits on 1, 2, 4 and 8 ranks, which NumPy gives."""

import functools

import ml_dtypes
import numpy as np
import pytest

import stretto
from stretto import shards
from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
TYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "complex64": np.complex64, "int32": np.int32,
}  # fmt: skip
SIZES = ((8, 3), (64, 40), (8000, 64))
ALL = 8


@functools.cache
def numbers(shard, shape):
    """Return what a shard has before it is rounded, for all types the same."""
    chance = np.random.default_rng((shard, *shape))
    return chance.standard_normal(shape) * 2.0 ** chance.integers(-6, 7, shape) * 1000


def drawn(shard, shape, dtype):
    """Return a shard, which every rank can draw: its numbers round, and cancel."""
    return numbers(shard, shape).astype(TYPES[dtype])


def tree(parts, dtype):
    """Return the sum as it is documented, by NumPy: of two, rounded, then of those."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    one, other = tree(parts[:half], dtype), tree(parts[half:], dtype)
    wide = np.float32 if dtype in ("float16", "bfloat16") else TYPES[dtype]
    return (one.astype(wide) + other.astype(wide)).astype(TYPES[dtype])


def bits_of(array):
    """Return an array's bytes."""
    return np.ascontiguousarray(array).tobytes()


def summed(comm):
    """Return what is wrong: of every type and size, whole and in parts."""
    each, wrong = ALL // comm.num_ranks, []
    mine = range(comm.rank * each, (comm.rank + 1) * each)
    for dtype in TYPES:
        for shape in SIZES:
            want = tree([drawn(s, shape, dtype) for s in range(ALL)], dtype)
            parts = np.stack([drawn(s, shape, dtype) for s in mine])
            before = bits_of(parts)
            out = np.empty(shape, TYPES[dtype])
            for nth, found in enumerate((
                shards.all_reduce(comm, parts),
                shards.all_reduce(comm, parts, out=out),
                comm.all_reduce(np.array(shards.add_pairs(parts)), bits="pairs"),
            )):  # fmt: skip
                if bits_of(found) != bits_of(want):
                    wrong.append((dtype, shape, nth))
            part = shards.reduce_scatter(comm, parts)
            rows = len(want) // comm.num_ranks
            here = want[comm.rank * rows : (comm.rank + 1) * rows]
            if bits_of(part) != bits_of(here) or bits_of(parts) != before:
                wrong.append((dtype, shape, "parts"))
    return wrong


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_bits_are_those_of_the_tree_on_any_number_of_ranks(num_ranks):
    """Of floats of two and four bytes, complex numbers and integers."""
    found = stretto.spawn(summed, num_ranks=num_ranks)
    assert [[]] * num_ranks == found


def test_a_sum_in_rank_order_has_other_bits():
    """Else nothing would be proved by their being equal."""
    parts = [drawn(s, (8000, 64), "float32") for s in range(ALL)]
    flat = parts[0]
    for part in parts[1:]:
        flat = flat + part
    assert bits_of(flat) != bits_of(tree(parts, "float32"))


def refused(comm):
    """Return what is said of calls that make no sense."""
    found = []
    for call in (
        lambda: shards.all_reduce(comm, np.ones((3, 4), np.float32)),
        lambda: shards.all_reduce(comm, np.ones((2, 4), np.float32), shards=6),
        lambda: shards.add_pairs([]),
        lambda: comm.all_reduce(np.ones(4, np.float32), bits="pairs"),
        lambda: comm.reduce_scatter(np.ones(6, np.float32), bits="invariant"),
        lambda: comm.reduce_scatter(np.ones(6, np.float32), bits="few"),
        lambda: shards.all_reduce(comm, 3),
    ):
        try:
            call()
            found.append("")
        except CallError as e:
            found.append(str(e))
    return found


def test_what_is_no_tree_is_refused():
    """Another number of shards or ranks, in words that say what is wanted."""
    said = stretto.spawn(refused, num_ranks=3)[1]

    assert "3 parts on each of 3 ranks, and shards=8; want a power of two" in said[0]
    assert "2 parts on each of 3 ranks, and shards=6; want a power of two" in said[1]
    assert "add_pairs: 0 parts; want 1, 2, 4, 8" in said[2]
    assert (
        "serves 3 ranks with bits='pairs'; pairs are of 2, 4, 8, ... ranks" in said[3]
    )
    assert said[4] == ""
    assert "bits='few'; want 'invariant', 'pairs' or 'any'" in said[5]
    assert "shards.all_reduce: parts is a int; want shards / ranks arrays" in said[6]
