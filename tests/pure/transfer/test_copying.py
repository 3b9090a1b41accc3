"""Loops move the same part by part or at once, and convert as our types round."""

import ctypes
import itertools
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.pure.transfer.oracle import memory, pairs

from stretto.program.collectives import storage
from stretto.transfer.copying import work
from stretto.transfer.copying.convert import converted
from stretto.transfer.copying.words import Job, Mode, Status
from stretto.transfer.layouts import Layout
from stretto.transfer.plans import plan

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def addresses(tensors):
    """Return where arrays begin."""
    return [t.ctypes.data for t in tensors]


@pytest.mark.parametrize("pair", list(itertools.permutations(FLOATS, 2)), ids=str)
def test_conversions_round_as_the_types_do(pair):
    """Every value of a small type; of float32, every exponent and the ties."""
    src, dst = pair
    if src == "float32":
        rng = np.random.default_rng(5)
        bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
        ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
        whole = bits & np.uint32(0xFFF00000)
        edges = np.array([0x477FEFFF, 0x477FF000, 0x43E80000, 0x7F7F7FFF, 0x7F7F8000,
                          0x7F800000, 0x80000000, 1], np.uint32)  # fmt: skip
        given_ = np.concatenate([bits, ties, whole, edges]).view(np.float32)
        given_ = given_[~np.isnan(given_)]
    else:
        kind = f"uint{8 * storage(src).itemsize}"
        codes = np.arange(1 << 8 * storage(src).itemsize, dtype=kind)
        given_ = codes.view(storage(src))
    count = len(given_)
    made = np.zeros(count, storage(dst))
    layouts = [Layout(f"N={count} {name}") for name in (src, dst)]
    p = plan(*layouts)
    (run,) = p.runs()
    assert (
        Status.DONE
        == work.CopyWork(p, run, addresses([given_]), addresses([made])).run()
    )

    want = np.ascontiguousarray(converted(given_, src, dst))
    assert want.tobytes() == made.tobytes()


@settings(max_examples=examples(60), deadline=None)
@given(pairs(dtypes=("int8", "float32")), st.data())
def test_packing_and_unpacking_in_any_parts_is_a_copy(drawn, data):
    """The two sides agree on the order of the runs, wherever it is cut."""
    src_layout, dst_layout, pages, to, tokens = drawn
    p = plan(src_layout, dst_layout)
    src, want, got = memory(src_layout), memory(dst_layout), memory(dst_layout)
    for run in p.runs(pages, to, tokens):
        whole = work.CopyWork(p, run, addresses(src), addresses(want))
        assert Status.DONE == whole.run()
        packs = work.CopyWork(p, run, addresses(src), addresses(src), mode=Mode.PACK)
        back = work.CopyWork(p, run, addresses(got), addresses(got), mode=Mode.UNPACK)
        stage = np.zeros(run.nbytes + 64, np.uint8)
        cuts = data.draw(st.lists(st.integers(0, packs.rows), max_size=3))
        for first, stop in itertools.pairwise(sorted([0, *cuts, packs.rows])):
            for job in (packs, back):
                job.part(first, stop, stage.ctypes.data)
        sums = whole.summed(Mode.SUM_SRC), whole.summed(Mode.SUM_DST)
        assert sums[0] == sums[1]

    assert all(map(np.array_equal, want, got))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux copies across")
@pytest.mark.parametrize("mode", [Mode.WRITE, Mode.READ])
def test_the_kernel_copies_between_processes(mode):
    """Here from this process to itself, which is the same call."""
    layout, other = Layout("A=40 C=600 int8"), Layout("C=600 A=40 int8")
    p = plan(layout, other)
    (run,) = p.runs()
    src, got = memory(layout), memory(other)
    job = work.CopyWork(
        p, run, addresses(src), addresses(got), mode=mode, pid=os.getpid()
    )

    assert Status.DONE == job.run()
    assert np.array_equal(src[0].reshape(40, 600).T, got[0].reshape(600, 40))


def test_what_the_kernel_refuses_is_told():
    """By its number; nothing else happens."""
    layout = Layout("A=8 int8")
    p = plan(layout, layout)
    (run,) = p.runs()
    job = work.CopyWork(p, run, addresses(memory(layout)), [8], mode=Mode.WRITE,
                    pid=os.getpid())  # fmt: skip

    assert Status.FAILED == job.run()
    assert job.error == 14


def test_memory_of_another_epoch_is_not_touched():
    """And the word that says that we write is taken back."""
    layout = Layout("A=8 int8")
    p = plan(layout, layout)
    (run,) = p.runs()
    src, got = memory(layout), [np.zeros(8, np.uint8)]
    words = np.array([0, 4], np.int64)
    job = work.CopyWork(p, run, addresses(src), addresses(got))
    job.guard(words.ctypes.data, words.ctypes.data + 8, 3)
    done = job.run()

    assert Status.STALE == done
    assert not got[0].any()
    assert [0, 4] == words.tolist()


def test_what_is_cancelled_stops_and_says_how_far_it_came():
    """It is looked at between parts, not between bytes."""
    layout = Layout("A=64 C=65536 int8")
    p = plan(layout.strided((65600, 1)), layout)
    (run,) = p.runs()
    word = np.ones(1, np.int64)
    src, got = memory(p.src), memory(layout)
    job = work.CopyWork(p, run, addresses(src), addresses(got), cancel=word)
    done = job.run()

    assert Status.CANCELLED == done
    assert 0 <= job.job[Job.ROW] < 64
    word[0] = 0
    assert Status.DONE == job.run()
    rows = np.lib.stride_tricks.as_strided(src[0], (64, 65536), (65600, 1))
    assert np.array_equal(rows, got[0].reshape(64, 65536))


@pytest.mark.parametrize("mode", [Mode.READ, Mode.WRITE])
@pytest.mark.parametrize("bad", [0, 1, 5, 7, -1])
def test_what_counts_as_moved_has_been_moved(mode, bad):
    """Though the kernel refuses some of what was listed; -1: the process is gone."""
    page, layout = 4096, Layout("B=16 X=4096 uint8")
    there = mmap.mmap(-1, 16 * page)
    far = np.frombuffer(there, np.uint8)
    here = np.zeros(16 * page, np.uint8)
    (here if mode is Mode.WRITE else far)[:] = np.repeat(np.arange(1, 17), page)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    pages = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    if bad >= 0:
        pages[bad] = 15  # nobody may touch it
        call = ctypes.CDLL(None, use_errno=True).mprotect
        at = ctypes.c_void_p(int(far.ctypes.data) + 15 * page)
        assert call(at, ctypes.c_size_t(page), 0) == 0
    p = plan(layout, layout)
    (run,) = p.runs(pages, pages)
    both = [here, far] if mode is Mode.WRITE else [far, here]
    pid = os.getpid() if bad >= 0 else ended.pid
    src, dst = addresses(both[:1]), addresses(both[1:])
    job = work.CopyWork(p, run, src, dst, mode=mode, pid=pid)
    assert Status.FAILED == job.run()
    assert 0 <= job.chunks_done <= max(bad, 0)
    for chunk in pages[: job.chunks_done]:
        got = (far if mode is Mode.WRITE else here)[page * chunk : page * (chunk + 1)]
        assert (got == chunk + 1).all()
