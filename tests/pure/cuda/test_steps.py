"""Kernels that write their steps: what they write, when, and what it means."""

import ctypes
import hashlib
import re
import shutil
import struct

import cuda_emulate as _emulate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import at_night, examples

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.codegen import compile as compiler
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.executors.cuda.flags.steps import (
    CLOCK_KERNEL,
    NBYTES,
    FlagPlace,
    KnownSteps,
    bounds,
    decoded,
    on_host,
)
from stretto.executors.cuda.words import STEP_RECORD, STEP_WORKERS
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.trace import STEP_KINDS, CallKind, Comm

KIND = CallKind(collective="all_reduce", nbytes=1204, dtype="int32")
ONLY = (r"if \(thread != 0 \|\| block", "if (control_ != only || thread != 0 || block")
"""Of all ranks, that are in one launch here, one writes."""


def plan_of(name, words, ranks):
    program = algorithms.get(name).build(ranks)
    return program, verify_plan(lower(verify(program), Schedule.parse(words)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    ("name", "words", "tiles"),
    [
        ("all_reduce/two_shot", "bulk threads=32 blocks=2 tile_bytes=256", 2),
        at_night("all_reduce/one_shot", "packets threads=32", 1),
    ],
)
def test_a_kernel_writes_every_step_of_its_lanes(
    tmp_path, monkeypatch, name, words, tiles
):
    """In order, without gaps, from its entry to its end; and results stay right."""
    monkeypatch.setattr(_emulate, "REPLACED", (*_emulate.REPLACED, ONLY))
    program, plan = plan_of(name, words, 2)
    first = 'extern "C" { unsigned long long only; }\n#define STRETTO_STEPS\n'
    run = _emulate.Emulated(
        program, plan.value, tmp_path, dtype="int32", op=Operator.SUM, counts=301,
        edit=lambda text: first + text,
    )  # fmt: skip
    memory = _emulate.aligned(NBYTES)
    control = run.control[1].ctypes.data
    ctypes.c_uint64.in_dll(run.library, "only").value = control
    rng = np.random.default_rng(0)
    launches = 3
    for turn in range(launches):
        if turn:  # the first is made while nobody wants steps
            ctypes.c_uint64.in_dll(
                run.library, "stretto_steps"
            ).value = memory.ctypes.data
        inputs, want = run.draw(rng)
        got = run.launch(inputs)
        assert all(map(np.array_equal, want, got))
    assert tiles == run.where.tiles
    counts = memory[: 8 * STEP_WORKERS].view(np.uint64)
    records = memory[8 * STEP_WORKERS :].view(STEP_RECORD).reshape(STEP_WORKERS, -1)
    blocks = plan.value.schedule.blocks
    assert list(range(0, 4 * blocks, 4)) == np.flatnonzero(counts).tolist()
    found = np.concatenate([records[w, : counts[w]] for w in np.flatnonzero(counts)])
    known = {_emulate.FINGERPRINT: KnownSteps(KIND, plan.value, run.where, 1)}
    place = FlagPlace(Comm(name="w", members=(0, 1)), 1, known)
    taken = decoded(found, control, place, 0)

    assert [1 + tiles, 1 + 2 * tiles] == taken.calls["seq"].tolist()
    assert (KIND,) == tuple(taken.kinds)
    for block in range(blocks):
        for call in taken.calls:
            mine = taken.steps[
                (taken.steps["lane"] == block) & (taken.steps["seq"] == call["seq"])
            ]
            whole, steps = mine[-1], mine[:-1]
            assert STEP_KINDS[whole["kind"]] == "kernel"
            assert (whole["begin"], whole["end"]) == (
                steps["begin"][0],
                pytest.approx(steps["end"][-1], abs=10**9),
            )
            assert np.array_equal(steps["end"][:-1], steps["begin"][1:])
            assert (steps["wait"] <= steps["end"] - steps["begin"]).all()
            assert call["start"] <= whole["begin"] <= whole["end"] <= call["end"]
            assert list(range(tiles)) == sorted(set(steps["tile"].tolist()))
            for tile in range(tiles):
                places = steps["step"][steps["tile"] == tile].tolist()
                assert sorted(set(places)) == places
    waiting = [STEP_KINDS[k] for k in taken.steps["kind"][taken.steps["wait"] > 0]]
    assert set(waiting) <= {"wait", "read_packets", "reduce_packets", "kernel"}
    assert waiting
    put = taken.steps[np.isin(taken.steps["kind"], [2, 4])]
    assert {0} == set(put["peer"].tolist())
    assert (put["nbytes"] > 0).all()


@pytest.mark.parametrize("name", [at_night("all_reduce/two_shot"), "all_gather/ring"])
def test_kernels_that_do_not_write_are_what_they_were(monkeypatch, name):
    """Byte for byte the machine code of headers that know no diary."""
    _, plan = plan_of(name, "bulk staged blocks=2 threads=64", 2)
    kernel = kernel_of(plan, rank=0, dtype="float16")
    with_diary = machine_code(kernel)
    texts = dict(compiler.headers())
    for header in ("lane.cuh", "flag.cuh", "await.cuh", "stretto.cuh"):
        said = re.compile(r"^.*\bdiary\b.*;\n", re.MULTILINE)
        texts[header] = said.sub("", texts[header])
        texts[header] = texts[header].replace("  Diary diary;\n", "")
        assert "diary" not in texts[header]
    monkeypatch.setattr(compiler, "headers", lambda: texts)

    assert with_diary == machine_code(kernel)


def machine_code(kernel):
    """Return a hash of what a kernel's section of an ELF file holds."""
    image, _ = compiler.build(kernel, arch=(9, 0))
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQ", image, start + i * size) for i in range(count)
    ]
    table = sections[names][4]
    for name, _, _, _, at, nbytes in sections:
        if image[table + name :].startswith(b".text.stretto_kernel"):
            return nbytes, hashlib.sha256(image[at : at + nbytes]).hexdigest()
    raise AssertionError("there is no code")


@pytest.mark.parametrize("arch", [at_night((8, 0)), (9, 0)])
def test_kernels_that_write_compile_without_spilling(arch):
    """For an architecture of some years ago, and for one of today."""
    _, plan = plan_of("all_reduce/two_shot", "packets blocks=4 threads=256", 4)
    kernel = kernel_of(plan, rank=1, dtype="bfloat16", steps=True)
    image, log = compiler.build(kernel, arch=arch)

    assert b"stretto_steps" in image
    assert 0 == compiler.usage(log).spill_stores
    assert compiler.build(CLOCK_KERNEL, arch=arch)[0]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(-(2**50), 2**50),
    st.lists(
        st.tuples(st.integers(100, 9000), st.integers(100, 9000), st.integers(0, 5000)),
        min_size=2,
        max_size=64,
    ),
    st.sampled_from([1, 32, 1000]),
)
def test_the_stated_error_of_a_gpus_clock_holds(offset, rounds, tick):
    """Whatever the ways there and back take, and however coarsely it ticks."""
    host, asked, answered, heard = 2**51, [], [], []
    for there, back, pause in rounds:
        asked.append(host)
        true = host + there
        answered.append((true - offset) // tick * tick)
        host = true + back
        heard.append(host)
        host += pause
    found = bounds(asked, answered, heard, tick)

    assert abs(found.offset_ns - offset) <= found.error_ns
    assert found.error_ns <= min(a + b for a, b, _ in rounds) // 2 + tick + 2


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(0, 2**30), st.integers(0, 2**30)),
        min_size=1,
        max_size=9,
    ),
    st.floats(-1e-4, 1e-4),
)
def test_a_wait_is_never_longer_than_its_step_whatever_the_clocks(steps, drift):
    """A wait is a time of the GPU's clock, too, which runs at a pace of its own."""
    records = np.zeros(len(steps), STEP_RECORD)
    for row, (begin, wait, more) in enumerate(steps):
        records["begin"][row], records["wait"][row] = begin, wait
        records["end"][row] = begin + wait + more
    made = on_host(records, lambda at: np.rint(at * (1 + drift)).astype(np.int64))
    lasted = made["end"].astype(np.int64) - made["begin"].astype(np.int64)

    assert (made["wait"].astype(np.int64) >= 0).all()
    assert (made["wait"].astype(np.int64) <= lasted).all()


def test_steps_of_others_are_passed_over():
    """Of kernels that are not known here, and of other communicators."""
    records = np.zeros(3, STEP_RECORD)
    records["control"] = [1, 2, 1]
    records["what"] = [5, 5, 6]
    place = FlagPlace(Comm(name="w", members=(0, 1)), 0, {})

    assert decoded(records, 1, place, 0) is None
