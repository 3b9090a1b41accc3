"""Generated kernels run on this CPU, and give the reference interpreter's bits."""

import shutil
import threading
import time

import cuda_emulate as _emulate
import numpy as np
import pytest
from tests.nightly import at_night, nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.words import CONTROL, KINDS, MAX_WORKERS
from stretto.program import algorithms
from stretto.program.collectives import Operator, widen

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

KEY = 0x7FB52C91
"""The word that packets send as nothing (packet.cuh)."""


def emulated(folder, name, words, ranks, **call):
    program = algorithms.get(name).build(ranks)
    plan = verify_plan(lower(verify(program), Schedule.parse(words))).value
    call = {"dtype": "int32", "op": Operator.SUM, "counts": 300} | call
    return _emulate.Emulated(program, plan, folder, **call)


CASES = [
    ("all_reduce/two_shot", 3, "packets threads=64 blocks=2 tile_bytes=512", "float32"),
    ("all_reduce/ring", 3, "packets threads=32 tile_bytes=256", "int64"),
    ("all_to_all/one_shot", 4, "packets threads=64", "uint16"),
    ("all_reduce/two_shot", 2, "bulk zero_copy threads=64", "float32"),
    ("all_gather/one_shot", 3, "pull bulk threads=32 tile_bytes=512", "int8"),
    ("broadcast/binomial", 4, "packets threads=32", "int32"),
    ("all_gather/one_shot", 3, "bulk zero_copy threads=32", "float32"),
    ("all_reduce/two_shot", 2, "bulk threads=32 blocks=2 tile_bytes=512", "float16"),
    ("reduce_scatter/recursive", 4, "packets threads=32", "int16"),
    pytest.param(
        *("reduce_scatter/recursive", 8, "packets threads=32", "int16"),
        marks=pytest.mark.slow,
    ),
    ("all_to_all/one_shot", 3, "bulk zero_copy threads=32 tile_bytes=512", "int16"),
]


@pytest.mark.parametrize(("name", "ranks", "words", "dtype"), nightly(CASES, 4))
def test_kernels_keep_the_promise(tmp_path, name, ranks, words, dtype):
    """Launch after launch, with ragged ends, in the bits of the reference."""
    op = Operator.AVG if "zero_copy" in words else Operator.SUM
    run = emulated(tmp_path, name, words, ranks, dtype=dtype, op=op, counts=701)
    rng = np.random.default_rng(0)
    for _ in range(3):
        given, want = run.draw(rng)
        got = run.launch(given)

        for rank in range(ranks):
            assert want[rank].tobytes() == got[rank].tobytes()
        assert not any(memory.any() for memory in run.packets)


ODD = [
    ("all_reduce/two_shot", 1, "packets threads=32", "float32"),
    ("all_reduce/two_shot", 3, "packets threads=32 tile_bytes=256", "float8_e4m3fn"),
    pytest.param(
        *("all_reduce/two_shot", 5),
        *("packets threads=32 tile_bytes=256", "float8_e4m3fn"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        *("all_reduce/ring", 6, "bulk threads=32", "bfloat16"),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        *("reduce_scatter/one_shot", 7),
        *("pull bulk zero_copy threads=32", "float8_e5m2"),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("name", "ranks", "words", "dtype"), ODD)
def test_any_number_of_ranks_is_served(tmp_path, name, ranks, words, dtype):
    """One, and numbers that nothing divides; the second time arrays lie askew."""
    op, counts = Operator.AVG, 301
    run = emulated(tmp_path, name, words, ranks, dtype=dtype, op=op, counts=counts)
    rng = np.random.default_rng(7)
    for shift in (0, run.itemsize):
        given, want = run.draw(rng)
        got = run.launch(given, shift=shift)

        assert [w.tobytes() for w in want] == [g.tobytes() for g in got]


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("float8_e4m3fn", Operator.SUM), at_night("float8_e5m2", Operator.PROD)],
)
def test_every_pair_of_8_bit_floats_is_combined_and_rounded(tmp_path, dtype, op):
    """All 65,536; a NaN is a NaN, of either sign."""
    words = "packets threads=64 tile_bytes=65536"
    run = emulated(
        tmp_path, "all_reduce/one_shot", words, 2, dtype=dtype, op=op, counts=1 << 16
    )
    every = np.arange(256, dtype=np.uint8)
    given = [np.repeat(every, 256), np.tile(every, 256)]
    due = widen(run.expected(given)[0], dtype)
    for got in run.launch(given):
        np.testing.assert_array_equal(due, widen(got, dtype))
        assert (np.signbit(due) == np.signbit(widen(got, dtype)))[~np.isnan(due)].all()


def test_a_plan_without_data_runs(tmp_path):
    """A barrier's table is empty, and a structure in C++ never is."""
    run = emulated(tmp_path, "barrier/closed", "bulk threads=32", 2)
    run.launch([np.zeros(0, np.int32)] * 2)

    assert [0, 0] == [int(run.record(r)["state"]) for r in range(2)]


def test_arrays_of_any_alignment_are_served(tmp_path):
    """An array that begins 4 bytes off is moved word by word, with the same result."""
    run = emulated(tmp_path, "all_reduce/one_shot", "packets threads=32", 2, counts=37)
    given, want = run.draw(np.random.default_rng(1))

    got = run.launch(given, shift=4)

    assert [w.tobytes() for w in want] == [g.tobytes() for g in got]


def test_packets_carry_the_word_that_means_nothing(tmp_path):
    """Data equal to the key arrive unchanged, by way of the escape."""
    run = emulated(tmp_path, "all_gather/one_shot", "packets threads=32 depth=2", 2)
    rng = np.random.default_rng(2)
    given = [np.where(rng.random(300) < 0.3, KEY, 5).astype(np.int32) for _ in "ab"]

    got = run.launch(given)

    assert [w.tobytes() for w in run.expected(given)] == [g.tobytes() for g in got]


def test_epochs_of_all_blocks_advance_alike(tmp_path):
    """Also of the blocks that the launch does not have."""
    words = "packets threads=32 blocks=2 tile_bytes=128"
    run = emulated(tmp_path, "all_reduce/one_shot", words, 2)
    run.launch(run.draw(np.random.default_rng(3))[0])
    start = CONTROL["epochs"]
    epochs = run.control[1][start : start + 8 * MAX_WORKERS].view(np.uint64)

    assert {run.where.tiles} == set(epochs.tolist())
    assert run.where.tiles > 1


def test_who_does_not_come_is_named(tmp_path):
    """Rank 0 stays away: the others leave at the deadline and say who is missing."""
    words = "packets threads=32"
    run = emulated(tmp_path, "all_reduce/one_shot", words, 3, counts=8, deadline_s=0.3)
    run.launch(run.draw(np.random.default_rng(4))[0], absent=1)

    for rank in (1, 2):
        record = run.record(rank)

        assert 2 == record["state"]
        assert KINDS[record["kind"]] in ("timeout", "told")
        assert 0b001 == record["absent"]
        assert rank == record["rank"]


@pytest.mark.parametrize(
    ("words", "stop", "missed"),
    [("bulk", "  signal<4>(me", 5), ("packets", "  put_packets<0>(me", 1)],
)
def test_who_stops_inside_a_call_is_missed_where_it_stopped(
    tmp_path, words, stop, missed
):
    """Rank 0 stops in the second epoch of three: step and epoch are those."""
    words = f"{words} threads=32 tile_bytes=256"

    def stops(text):
        head, mark, body = text.partition("steps_R0L0(")
        there = f"  if (t == 1) me.ok = false;\n{stop}"
        return head + mark + body.replace(stop, there, 1)

    how = {"counts": 384, "deadline_s": 0.3, "edit": stops}
    run = emulated(tmp_path, "all_reduce/ring", words, 2, **how)
    run.launch(run.draw(np.random.default_rng(6))[0])
    record = run.record(1)

    assert 3 == run.where.tiles
    assert "timeout" == KINDS[record["kind"]]
    assert (1, missed) == (record["epoch"], record["step"])
    assert (0, 0) == (record["peer"], record["absent"])


def test_kernels_leave_when_the_host_says_so(tmp_path):
    """Long before the deadline; those that are not told hear it from who was."""
    words = "push packets staged blocks=2 threads=32"
    run = emulated(tmp_path, "all_reduce/one_shot", words, 3, counts=8, deadline_s=60)
    told = threading.Timer(0.3, lambda: run.record(1).__setitem__("leave", 1))
    told.start()
    began = time.monotonic()

    run.launch(run.draw(np.random.default_rng(4))[0], absent=1)

    assert time.monotonic() - began < 20
    assert 2 == run.record(1)["state"] == run.record(2)["state"]


def test_who_calls_something_else_is_named(tmp_path):
    """A rank with another fingerprint is found, though its data would fit."""
    run = emulated(tmp_path, "all_reduce/one_shot", "packets threads=32", 2, counts=8)
    run.launch(run.draw(np.random.default_rng(5))[0], fingerprints=[1, 2])
    kinds = {KINDS[run.record(r)["kind"]] for r in range(2)}

    assert "mismatch" in kinds
    assert kinds <= {"mismatch", "told", "none"}
