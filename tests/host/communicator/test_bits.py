"""A row's bits, whatever lies beside it: `bits="invariant"`, against NumPy alone.

The oracle shares no code with the library: each row is added by itself, in the order
of ranks, in the type that is documented, and rounded once by NumPy or `ml_dtypes`.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from tests.nightly import nightly

import stretto
from stretto.errors import CallError
from stretto.program import algorithms

pytestmark = [pytest.mark.host, pytest.mark.timeout(300)]

TYPES = {
    "float32": (np.float32, np.float32),
    "float64": (np.float64, np.float64),
    "float16": (np.float16, np.float32),
    "bfloat16": (ml_dtypes.bfloat16, np.float32),
    "float8_e5m2": (ml_dtypes.float8_e5m2, np.float32),
    "complex64": (np.complex64, np.complex64),
    "int32": (np.int32, np.int32),
}
"""What is stored, and what is added in."""
RAW = {"bfloat16": np.uint16, "float8_e5m2": np.uint8}
ROWS = (1, 2, 3, 7, 64, 1000, 9000)
WIDTH = 24
RING = """
executor = "cpu"
[[rule]]
collective = "all_reduce"
memory = "staged"
ranks = [2, 8]
sizes = [["1T", "all_reduce/ring push bulk staged"]]
"""


def drawn(rank, rows, dtype):
    """Return a rank's rows, which every rank can draw: they round, and cancel."""
    rng = np.random.default_rng((rank, 77))
    numbers = rng.standard_normal((rows, WIDTH)) * 2.0 ** rng.integers(-6, 7, (rows, 1))
    if dtype == "int32":
        return (numbers * 1e6).astype(np.int32)
    return numbers.astype(TYPES[dtype][0])


def added(parts, dtype, op="sum"):
    """Return the sum in rank order, added in the wide type and rounded once."""
    stored, wide = TYPES[dtype]
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = (total + part.astype(wide)).astype(wide)
    total = total.astype(stored)
    if op == "avg":
        total = (total.astype(wide) / wide(len(parts))).astype(stored)
    return total


def bits_of(array):
    return array.view(np.uint8).reshape(len(array), -1)


def batches(rows, rng):
    """Yield which rows make a batch: the first so many, and some in any order."""
    for many in ROWS:
        if many <= rows:
            yield np.arange(many)
            yield rng.permutation(rows)[:many]


def summed(comm, x, dtype, how, **options):
    """Make one call in one of the ways there are; return what it gave."""
    raw = x.view(RAW[dtype]) if dtype in RAW else x
    if dtype in RAW:
        options["dtype"] = dtype
    if how == "in place":
        got = comm.all_reduce(raw.copy(), **options)
    elif how == "out":
        got = comm.all_reduce(raw, out=np.empty_like(raw), **options)
    elif how == "started":
        got = comm.all_reduce_async(raw.copy(), **options).wait()
    else:
        room = comm.empty(raw.shape, dtype)
        room[...] = raw
        got = np.array(comm.all_reduce(room, **options))
    return np.ascontiguousarray(got).view(x.dtype)


def differing(comm, dtype, how, rows=ROWS[-1], op="sum", **options):
    """Return how many rows had other bits than the oracle's, over all batches."""
    every = [drawn(r, rows, dtype) for r in range(comm.num_ranks)]
    want = bits_of(added(every, dtype, op))
    rng, wrong = np.random.default_rng(5), 0
    for some in batches(rows, rng):
        got = summed(comm, every[comm.rank][some], dtype, how, op=op, **options)
        wrong += int((bits_of(got) != want[some]).any(axis=1).sum())
    return wrong


def chosen(comm, dtype):
    hows = ("in place", "out", "started", "registered")
    return {how: differing(comm, dtype, how, bits="invariant") for how in hows}


@pytest.mark.parametrize(
    ("dtype", "num_ranks"), nightly(itertools.product(TYPES, (2, 3, 4)), 2)
)
def test_a_rows_bits_are_those_of_the_row_alone(dtype, num_ranks):
    """In place or not, started or not, registered or not; in any batch, anywhere."""
    found = stretto.spawn(chosen, dtype, num_ranks=num_ranks)

    right = dict.fromkeys(("in place", "out", "started", "registered"), 0)
    assert [right] * num_ranks == found


def averaged(comm):
    return [
        differing(comm, dtype, "out", 1000, op="avg", bits="invariant")
        for dtype in ("float32", "bfloat16", "float16")
    ]


def test_an_average_divides_the_rounded_sum():
    """Once, after the sum: wherever the row lies."""
    assert [[0, 0, 0]] * 3 == stretto.spawn(averaged, num_ranks=3)


def each(comm):
    """Return by pin: how many rows were wrong, or why it was refused."""
    found = {}
    for one in algorithms.of("all_reduce", comm.num_ranks):
        for words in ("push packets staged", "push bulk staged", "pull bulk staged"):
            pin = f"{one.name} {words}"
            try:
                wrong = differing(
                    comm, "float32", "out", 1000, algorithm=pin, bits="invariant"
                )
            except CallError as e:
                wrong = str(e)
            free = differing(comm, "float32", "out", 1000, algorithm=pin, bits="any")
            found[pin] = wrong, free
    return found


def test_whatever_is_named_keeps_the_bits_or_is_refused():
    """Every algorithm under several schedules; what is refused has other bits."""
    for found in stretto.spawn(each, num_ranks=4):
        kept = {pin for pin, (wrong, _) in found.items() if wrong == 0}
        assert any("one_shot" in pin for pin in kept)
        assert any("two_shot" in pin for pin in kept)
        for pin, (wrong, free) in found.items():
            if pin in kept:
                assert free == 0, pin
            else:
                assert free > 0, pin
                assert "bits='invariant', and all_reduce/" in wrong, wrong
                assert "adds otherwise (" in wrong
                assert "want an algorithm that adds all ranks at once" in wrong


def under_ring(comm):
    """Return what is chosen, and how many rows differ, where a profile says ring."""
    return [
        (
            comm.explain("all_reduce", 9000 * WIDTH, bits=bits).split()[0],
            differing(comm, "float32", "out", bits=bits),
        )
        for bits in ("any", "invariant", None)
    ]


@pytest.mark.parametrize("said", ["", "invariant"])
def test_a_profile_is_passed_over_where_it_would_change_bits(
    said, monkeypatch, tmp_path
):
    """And the environment says what calls do that say nothing."""
    (tmp_path / "cpu.toml").write_text(RING)
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    monkeypatch.setenv("STRETTO_BITS", said)
    for ring, kept, default in stretto.spawn(under_ring, num_ranks=4):
        assert "all_reduce/ring" == ring[0]
        assert ring[1] > 0  # or this test would see nothing
        assert "all_reduce/ring" != kept[0]
        assert 0 == kept[1]
        assert (kept if said else ring) == default


def told(comm):
    before, wrong = comm.bits, []
    for bad in ("exact", "", 1, b"invariant"):
        for ask in (
            lambda bad=bad: comm.all_reduce(np.ones(4), bits=bad),
            lambda bad=bad: setattr(comm, "bits", bad),
        ):
            try:
                ask()
            except CallError as e:
                wrong.append(str(e))
    comm.bits = "invariant"
    half = comm.split(comm.rank % 2)
    inherited = half.bits
    half.close()
    try:
        comm.all_reduce(np.ones(4), algorithm="all_reduce/ring")
    except CallError as e:
        wrong.append(str(e))
    comm.all_reduce(np.ones(4), algorithm="all_reduce/ring", bits="any")
    with comm.coalesced() as together:
        many = [np.full(k, 0.1 * (comm.rank + 1)) for k in (1, 2, 3)]
        for one in many:
            together.all_reduce(one)
    return before, inherited, wrong, many[2][0]


def test_a_communicator_is_told_once_and_bad_words_are_one_sentence():
    """Parts inherit it; a call may say otherwise."""
    for rank, (before, inherited, wrong, total) in enumerate(
        stretto.spawn(told, num_ranks=4)
    ):
        assert ("any", "invariant") == (before, inherited)
        assert 9 == len(wrong)
        want = "want 'invariant', 'pairs' or 'any'"
        assert f"rank {rank}: all_reduce: bits='exact'; {want}" == wrong[0]
        assert all(want in said for said in wrong[:8])
        assert "all_reduce/ring adds otherwise" in wrong[8]
        assert 0.1 + 0.2 + 0.1 * 3 + 0.4 == total


def test_a_bad_word_in_the_environment_is_refused(monkeypatch):
    """By all ranks alike, before anything else is done."""
    monkeypatch.setenv("STRETTO_BITS", "always")
    with pytest.raises(Exception, match="STRETTO_BITS of rank 0='always'; want 'inv"):
        stretto.spawn(told, num_ranks=2)


def a_million(comm):
    """Return how many of 10^6 rows had other bits, in batches of all sizes."""
    rows, dtype = 10**6, "bfloat16"
    every = [drawn(r, rows, dtype) for r in range(comm.num_ranks)]
    want = bits_of(added(every, dtype))
    rng = np.random.default_rng(9)
    order, wrong, at = rng.permutation(rows), 0, 0
    while at < rows:
        many = int(2.0 ** rng.uniform(0, 15))
        some = order[at : at + many]
        how = ("in place", "out")[at % 2]
        got = summed(comm, every[comm.rank][some], dtype, how, bits="invariant")
        wrong += int((bits_of(got) != want[some]).any(axis=1).sum())
        at += many
    whole = summed(comm, every[comm.rank], dtype, "in place", bits="invariant")
    return wrong, int((bits_of(whole) != want).any(axis=1).sum())


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_million_rows_have_the_bits_of_each_alone(num_ranks):
    """In batches of 1 to 32,768 rows in any order, and all at once."""
    assert [(0, 0)] * num_ranks == stretto.spawn(a_million, num_ranks=num_ranks)
