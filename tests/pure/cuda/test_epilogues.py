"""Epilogues in generated kernels: run on this CPU, the bits of NumPy."""

import shutil
import time

import cuda_emulate as _emulate
import numpy as np
import pytest
from cuda_fakes import generated
from tests.nightly import nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, PlanError
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.executors.cuda.codegen.rowwise import shared_by
from stretto.program import algorithms, epilogues
from stretto.program.collectives import Operator, narrow, storage
from stretto.program.epilogues import Named, ValueForm, evaluate, resolve
from stretto.runtime.choice import Choice, Profile, Question
from stretto.runtime.choice.fused import fused_choice

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@epilogues.epilogue
def add_rms_norm(y, residual, weight, eps):
    s = y + residual
    scale = epilogues.rsqrt(epilogues.row_mean(s * s) + eps)
    return {"out": s * scale * weight, "residual": s}


@epilogues.epilogue
def quantised(y, residual, least):
    s = y + residual
    scale = epilogues.maximum(epilogues.row_amax(s) / 448.0, least)
    return {
        "q": epilogues.cast(s / scale, "float8_e4m3fn"),
        "scale": epilogues.cast(scale, "float32"),
    }


@epilogues.epilogue
def layer_norm(y, weight, bias, keep):
    centred = y - epilogues.row_mean(y)
    scale = epilogues.rsqrt(epilogues.row_mean(centred * centred) + 1e-5)
    return centred * scale * weight + epilogues.where(keep > 0.5, bias, -bias)


@epilogues.epilogue
def scaled(y, scale):
    half = epilogues.cast(y * scale, "bfloat16")
    return {"half": half, "byte": epilogues.cast(abs(half) - y, "float8_e5m2")}


E, R, C, S = ValueForm.ELEMENT, ValueForm.ROW, ValueForm.COLUMN, ValueForm.SCALAR
CASES = {
    "several rows at a time": (
        *(add_rms_norm, "all_reduce/two_shot", "packets threads=96", 3),
        *("float16", 136, 7, {"residual": E, "weight": R, "eps": 1e-6}),
    ),
    "a row that a warp reads again and again": (
        *(layer_norm, "reduce_scatter/one_shot", "packets threads=32", 2),
        *("float32", 2052, 2, {"weight": R, "bias": R, "keep": C}),
    ),
    "rows that are no whole cells": (
        *(quantised, "all_reduce/two_shot", "bulk zero_copy threads=64", 2),
        *("float32", 37, 5, {"residual": E, "least": 1e-9}),
    ),
    "a row for two blocks, tile after tile": (
        *(add_rms_norm, "all_reduce/two_shot", "packets threads=32 blocks=2", 2),
        *("bfloat16", 1024, 5, {"residual": E, "weight": R, "eps": 1e-6}),
        *(2,),
    ),
    "rows that stay in registers": (
        *(add_rms_norm, "all_reduce/two_shot", "packets threads=64 blocks=2", 2),
        *("bfloat16", 1024, 5, {"residual": E, "weight": R, "eps": 1e-6}),
        *(2,),
    ),
    "blocks that share a row by memory: too many for a cluster": (
        *(layer_norm, "reduce_scatter/one_shot", "packets threads=32 blocks=10", 2),
        *("float32", 1280, 3, {"weight": R, "bias": R, "keep": C}),
        *(10,),
    ),
    "a row of three blocks that stays, each part with warps of its own": (
        *(quantised, "all_reduce/two_shot", "packets threads=128 blocks=3", 2),
        *("float16", 1536, 3, {"residual": E, "least": 1e-9}),
        *(3,),
    ),
    "a row of two blocks that stays, each thread with two of four parts": (
        *(add_rms_norm, "all_reduce/two_shot", "packets threads=128 blocks=2", 4),
        *("bfloat16", 1024, 5, {"residual": E, "weight": R, "eps": 1e-6}),
        *(2,),
    ),
    "a row of four blocks that is read again, reduction after reduction": (
        *(layer_norm, "reduce_scatter/one_shot", "packets threads=32 blocks=4", 2),
        *("float32", 2048, 3, {"weight": R, "bias": R, "keep": C}),
        *(4,),
    ),
    "a row of four blocks that stays, with idle warps": (
        *(quantised, "all_reduce/one_shot", "packets threads=96 blocks=4", 2),
        *("float32", 1024, 5, {"residual": E, "least": 1e-9}),
        *(4,),
    ),
    "a row of one block that stays, tile after tile": (
        *(add_rms_norm, "all_reduce/one_shot", "packets threads=128 blocks=2", 2),
        *("bfloat16", 1024, 5, {"residual": E, "weight": R, "eps": 1e-6}),
        *(1,),
    ),
    "a row of one block that stays, some threads without a cell": (
        *(layer_norm, "all_reduce/one_shot", "packets threads=224 blocks=2", 3),
        *("float32", 776, 4, {"weight": R, "bias": R, "keep": C}),
        *(1,),
    ),
    "a row that is read again and replaces what it was made of": (
        *(add_rms_norm, "all_reduce/one_shot", "packets threads=32 blocks=2", 2),
        *("bfloat16", 4096, 2, {"residual": E, "weight": R, "eps": 1e-6}),
        *(1,),
    ),
    "whole rows of parts with warps of their own": (
        *(add_rms_norm, "all_reduce/two_shot", "packets threads=128 blocks=2", 2),
        *("bfloat16", 512, 3, {"residual": E, "weight": R, "eps": 1e-6}),
        *(1,),
    ),
    "no rows": (
        *(scaled, "all_gather/one_shot", "pull bulk threads=32 tile_bytes=512", 3),
        *("float32", 0, 701, {"scale": S}),
    ),
}
"""Function, algorithm, schedule, ranks, type, row, rows of a part, forms of inputs; and
how many blocks share a row."""
QUICK = (
    "several rows at a time",
    "rows that stay in registers",
)
"""The cases of every run; the others are for the night."""


def planned(name, words, ranks):
    program = algorithms.get(name).build(ranks)
    return program, verify_plan(lower(verify(program), Schedule.parse(words))).value


def spec_of(function, dtype, row, forms):
    inputs = {
        name: Named(name, dtype, form)
        if isinstance(form, ValueForm)
        else Named(name, "", S)
        for name, form in forms.items()
    }
    return resolve(function.graph, inputs, dtype=dtype, row=row)


def drawn(rng, spec, forms, count):
    """Return arrays for the inputs of one rank, and room for its outputs."""
    row = spec.row or count
    sizes = {E: count, R: row, C: count // row, S: 1}
    given = []
    for named in spec.inputs:
        if named.dtype:
            values = rng.uniform(-2, 2, sizes[named.form]).astype(np.float32)
            raw = narrow(values, named.dtype)
            made = _emulate.aligned(raw.nbytes)
            made[:] = raw.view(np.uint8)
            given.append(made.view(storage(named.dtype)))
        else:
            given.append(forms[named.name])
    rooms = [
        _emulate.aligned(sizes[n.form] * storage(n.dtype).itemsize, 0x77)
        for n in spec.outputs
    ]
    return given, rooms


def words_of(spec, given, rooms):
    named = [
        g.ctypes.data if n.dtype else int(np.float32(g).view(np.uint32))
        for n, g in zip(spec.inputs, given, strict=True)
    ]
    return [*named, *(room.ctypes.data for room in rooms)]


@needs_compiler
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in QUICK else pytest.mark.slow)
        for case in CASES
    ],
)
def test_kernels_give_the_bits_of_numpy(tmp_path, case):
    """On every rank, launch after launch, whatever the threads."""
    function, name, words, ranks, dtype, row, rows, forms, *share = CASES[case]
    program, plan = planned(name, words, ranks)
    plan = verify_plan(plan).closed().value
    spec = spec_of(function, dtype, row, forms)
    run = _emulate.Emulated(
        program,
        plan,
        tmp_path,
        dtype=dtype,
        op=Operator.SUM,
        counts=rows * max(row, 1),
        epilogue=spec,
        share=share[0] if share else 0,
    )
    rng = np.random.default_rng(0)
    for _ in range(2):
        source, want = run.draw(rng)
        arrays = [drawn(rng, spec, forms, w.size) for w in want]

        got = run.launch(source, extra=[words_of(spec, *a) for a in arrays])

        for rank in range(ranks):
            given, rooms = arrays[rank]
            assert want[rank].tobytes() == got[rank].tobytes()
            for named, expected, room in zip(
                spec.outputs, evaluate(spec, want[rank], given), rooms, strict=True
            ):
                assert expected.tobytes() == room.tobytes(), (rank, named.name)


FORMS = {"residual": E, "weight": R, "eps": 1e-6}


@needs_compiler
def test_blocks_that_share_rows_give_up_together(tmp_path):
    """None ends while its neighbours may still write to it, and the record is true."""
    program, plan = planned(
        "all_reduce/one_shot", "packets threads=64 blocks=2 tile_bytes=512", 2
    )
    spec = spec_of(add_rms_norm, "bfloat16", 1024, FORMS)
    run = _emulate.Emulated(
        *(program, verify_plan(plan).closed().value, tmp_path),
        dtype="bfloat16",
        op=Operator.SUM,
        counts=3 * 1024,
        epilogue=spec,
        share=2,
        deadline_s=0.3,
    )
    rng = np.random.default_rng(0)
    source, want = run.draw(rng)
    arrays = [drawn(rng, spec, FORMS, w.size) for w in want]
    words = [words_of(spec, *a) for a in arrays]
    began = time.monotonic()

    run.launch(source, extra=words, absent=1)

    assert time.monotonic() - began < 10
    record = run.record(1)
    assert (2, 1, 0) == (record["state"], record["rank"], record["peer"])
    for _ in range(3):  # told by rank 0 before they began: whoever looks first leaves
        run.control[1].view(np.uint64)[:2] = 1 << 63 | 1 << 48, 0

        run.launch(source, extra=words, absent=1)

        assert 0 == run.record(1)["peer"]


@pytest.mark.parametrize(
    ("function", "forms", "row"),
    [
        (
            eval("lambda y, h\u00f6he: {'ma\u00df': y * h\u00f6he}"),
            {"h\u00f6he": R},
            1024,
        ),
        (lambda y: y / 0.0, {}, 1024),
        (lambda y: y * epilogues.rsqrt(epilogues.row_mean(y * y)), {}, 0),
    ],
    ids=["letters of all alphabets", "division by zero", "rows of nothing"],
)
def test_whatever_can_be_said_compiles(function, forms, row):
    """Names and numbers of a user's function are never an error of the compiler."""
    _, plan = planned("all_reduce/one_shot", "packets threads=64", 2)
    spec = spec_of(epilogues.epilogue(function), "bfloat16", row, forms)

    build(generated(plan, rank=0, dtype="bfloat16", epilogue=spec), arch=(9, 0))


@pytest.mark.parametrize(
    ("rows", "spilled"),
    [
        (64, 32),
        *(pytest.param(rows, 0, marks=pytest.mark.slow) for rows in (1, 16, 32)),
    ],
)
def test_what_the_runtime_chooses_compiles(rows, spilled):
    """With the blocks to a row that a launch would give it; hardly anything spilled.

    Two rows of a thread take more than its 96 registers, and are faster all the same.
    """
    spec = spec_of(add_rms_norm, "bfloat16", 8192, FORMS)
    any_choice = Choice(algorithms.get("all_reduce/ring"), Schedule())
    rule = Profile.shipped("cuda").rows_of(4)
    choice = fused_choice(
        any_choice,
        rule,
        Question(
            executor="cuda",
            collective="all_reduce",
            num_ranks=4,
            nbytes=rows * 8192 * 2,
        ),
        spec,
        pitched=False,
    )
    program = verify(choice.algorithm.build(4))
    plan = verify_plan(lower(program, choice.schedule)).value
    part = rows if choice.algorithm.name.endswith("one_shot") else -(-rows // 4)
    share = shared_by(spec, choice.schedule.blocks, part)
    kernel = generated(plan, rank=1, dtype="bfloat16", epilogue=spec, share=share)
    _, log = build(kernel, arch=(9, 0))

    assert usage(log).spill_stores <= spilled
    assert share == min(32, choice.schedule.blocks // part)


@pytest.mark.parametrize(
    ("name", "words", "dtype", "row"),
    nightly(
        [
            ("all_reduce/one_shot", "packets blocks=64 threads=512", "bfloat16", 8192),
            ("all_gather/one_shot", "packets threads=256", "bfloat16", 4096),
            ("all_reduce/two_shot", "packets blocks=16 threads=1024", "bfloat16", 8192),
            ("all_reduce/ring", "bulk threads=512", "float32", 2885),
        ],
        4,
    ),
)
def test_kernels_with_epilogues_compile(name, words, dtype, row):
    """Without a warning, and with nothing of note spilled."""
    _, plan = planned(name, words, 4)
    spec = spec_of(add_rms_norm, dtype, row, FORMS)
    kernel = generated(plan, rank=1, dtype=dtype, epilogue=spec)
    _, log = build(kernel, arch=(9, 0))

    assert usage(log).spill_stores <= 256


def test_a_gpu_without_clusters_is_told_of():
    """The compiler would say less."""
    _, plan = planned("all_reduce/one_shot", "packets blocks=2 threads=512", 4)
    spec = spec_of(add_rms_norm, "bfloat16", 8192, FORMS)
    kernel = generated(plan, rank=1, dtype="bfloat16", epilogue=spec, share=2)

    with pytest.raises(PlanError, match="clusters, which sm_80 has not; want sm_90"):
        build(kernel, arch=(8, 0))


def test_the_text_shows_what_is_computed():
    """A reader finds the function's operations, each on a line."""
    _, plan = planned("all_reduce/one_shot", "packets", 2)
    text = generated(
        plan,
        rank=0,
        dtype="bfloat16",
        epilogue=spec_of(add_rms_norm, "bfloat16", 4096, FORMS),
    ).text

    assert "// bfloat16 row=4096 (residual:bfloat16:element" in text
    assert "v.v8 = v.v7 / 4096.0f;" in text
    assert "conclude<Epilogue>(me, t, given," in text


def test_a_row_too_long_for_a_block_is_refused():
    """With the length that a block takes."""
    _, plan = planned("all_reduce/one_shot", "packets", 2)
    spec = spec_of(add_rms_norm, "bfloat16", 1 << 20, FORMS)

    with pytest.raises(CallError, match="a block takes rows of up to 131072"):
        generated(plan, rank=0, dtype="bfloat16", epilogue=spec)


def test_what_a_thread_has_is_not_read_again():
    """The move that completes a row leaves it in registers; then nothing is loaded."""
    _, plan = planned("all_reduce/one_shot", "packets blocks=8 threads=128", 2)
    spec = spec_of(add_rms_norm, "bfloat16", 8192, FORMS)
    text = generated(plan, rank=0, dtype="bfloat16", epilogue=spec, share=8).text

    assert "to(me.output(at.r0_output_0), rows.hold<0>())" in text
    assert "rows.conclude(Nothing{}, t);" in text
    assert "static constexpr u32 share = 8;" in text
    assert "conclude<Epilogue>" not in text


def test_several_rows_of_a_thread_are_stored_behind_their_sums():
    """What need not be in front of them, the result and zeros, is stored meanwhile."""
    _, plan = planned("all_reduce/two_shot", "packets blocks=8 threads=128", 2)
    spec = spec_of(add_rms_norm, "bfloat16", 8192, FORMS)
    text = generated(plan, rank=0, dtype="bfloat16", epilogue=spec, share=8).text

    assert "static constexpr u32 held = 2;" in text
    assert "from(me.packet_from<1, 0, 1, true>" in text
    assert (
        "rows.store_results();\n    clear(me, s1, from(me.packet_from<1, 0, 1>" in text
    )
