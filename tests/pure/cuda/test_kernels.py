"""Kernels are generated and compiled on any machine; these are the ones we ship."""

import dataclasses
import re

import numpy as np
import pytest
from cuda_fakes import generated
from tests.nightly import nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, Schedule, layout, parse_plan
from stretto.compiler.verify import verify
from stretto.errors import PlanError, StrettoError
from stretto.executors.cuda import words as declared
from stretto.executors.cuda.codegen import abi, cache
from stretto.executors.cuda.codegen import compile as compiler
from stretto.executors.cuda.codegen.compile import build, compile_kernel, headers, usage
from stretto.executors.cuda.codegen.elements import ELEMENTS, OPERATORS
from stretto.executors.cuda.words import (
    CONTROL,
    MAX_BLOCKS,
    MAX_LANES,
    MAX_RANKS,
    PARAMS,
)
from stretto.program import algorithms

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

SM90 = (9, 0)


def plan_of(name: str, words: str, ranks: int = 4) -> Plan:
    program = verify(algorithms.get(name).build(ranks))
    return lower(program, Schedule.parse(words))


def c_side(*lines: str) -> abi.Kernel:
    text = '#include "stretto.cuh"\nusing namespace stretto;\n'
    entry = 'extern "C" __global__ void stretto_kernel() {}\n'
    return abi.Kernel(
        text=text + "\n".join(lines) + "\n" + entry, ranks=(0,), grid=1, threads=32
    )


def test_every_form_of_a_far_signal_compiles():
    """Without puts, with one, with several; beside waits for near and far flags."""
    lines = [
        '#include "far.cuh"',
        "struct C {",
        "  using Element = Float32;",
        "  using Operator = Sum;",
        "  static constexpr int rank = 0, lane = 0;",
        "  static constexpr u32 ranks = 3, lanes = 1, blocks = 1, threads = 64;",
        "  static constexpr u32 depth = 1, far = 4;",
        "  static constexpr bool shared = false;",
        "  __device__ static constexpr u32 units(int) { return 4; }",
        "};",
        "__device__ void forms(Lane<C>& me, const Slice& s) {",
        "  signal_far<0>(me, far_signal<2, 0, 1>());",
        "  signal_far<1>(me, far_signal<2, 0, 2>(there<2>(me, 0, s)));",
        "  const FarPut a = there<2>(me, 0, s), b = there<2>(me, 1, s);",
        "  signal_far<2>(me, far_signal<2, 0, 3>(a, b), far_signal<1, 0, 1>());",
        "  signal_far<3>(me, far_signal<2, 0, 4>(a, b, a));",
        "  wait<4>(me, Flag<1, 0, 1>{}, FarFlag<2, 0, 1>{});",
        "  wait<5>(me, FarFlag<2, 0, 2>{});",
        "  keep_books<C>(me.p, 0);",
        "}",
    ]

    build(c_side(*lines), arch=SM90)


def test_both_sides_lay_out_the_same_memory():
    """C's text is made of the host's declarations: python scripts/words.py."""
    assert declared.header() == headers()["words.cuh"]


def test_flags_of_all_channels_lie_apart_and_inside():
    """No two channels share a word, and none reaches the board."""
    found = {
        abi.flag_offset(block, lane, peer, peer_lane)
        for block in (0, 1, MAX_BLOCKS - 1)
        for lane in range(MAX_LANES)
        for peer in range(MAX_RANKS)
        for peer_lane in range(MAX_LANES)
    }

    assert len(found) == 3 * MAX_LANES**2 * MAX_RANKS
    assert CONTROL["flags"] <= min(found)
    assert max(found) + 8 == CONTROL["sums"]


def test_a_kernel_reads_like_its_plan(golden):
    """One call for every step, each under the step's own text."""
    plan = plan_of("all_reduce/two_shot", "push packets staged threads=256", 2)

    golden(generated(plan, rank=0, dtype="bfloat16").text)


def test_signals_in_a_row_are_one_call():
    """Signals (and waits) that follow each other share one barrier."""
    plan = plan_of("all_reduce/two_shot", "push bulk zero_copy")
    text = generated(plan, rank=0, dtype="float32").text

    assert re.search(r"signal<0>\(me, Flag<1, 0, 1, false>\{\}, Flag<2, 0, 1", text)
    assert text.count(" wait<") == 2


def test_all_entries_are_awaited_at_once():
    """Then what is put into several peers' arrays is under way side by side."""
    plan = plan_of("all_to_all/one_shot", "push bulk zero_copy")
    text = generated(plan, rank=0, dtype="float32").text
    entries = "wait<3>(me, Flag<1, 0, 1>{}, Flag<2, 0, 1>{}, Flag<3, 0, 1>{});"

    assert entries in text
    assert text.index(entries) < text.index("together<4>(me,")


def test_what_is_only_moved_is_compiled_once_for_all_types_of_a_size():
    """A gather's kernel knows bytes, not types."""
    plan = plan_of("all_gather/one_shot", "push packets staged")
    texts = {
        generated(plan, rank=1, dtype=d).text for d in ("int16", "float16", "bfloat16")
    }

    assert len(texts) == 1


def test_the_parameters_hold_what_the_text_names():
    """The table's words come in the order of the text's structure."""
    plan = plan_of("all_reduce/two_shot", "push packets staged")
    kernel = generated(plan, rank=2, dtype="float32")
    where = layout(plan, np.array([8, 8, 8, 4]), 4)
    packed = abi.pack(kernel, where, {"input": [0, 0, 7, 0], "fingerprint": 5})
    head = packed[: PARAMS.itemsize].view(PARAMS)[0]
    table = packed[PARAMS.itemsize :].view(np.int64)
    names = re.findall(r"i64 (\w+);", kernel.text)

    assert len(names) == len(kernel.table) == table.size
    assert 7 == head["input"][2]
    assert 5 == head["fingerprint"]
    assert 4 == table[names.index("size_3")]
    assert 24 == table[names.index("r2_input_3")]


@pytest.mark.parametrize(
    ("arch", "protocol"),
    nightly(
        [
            ((8, 0), "packets"),
            ((10, 0), "packets"),
            ((8, 0), "bulk"),
            ((10, 0), "bulk"),
        ],
        4,
    ),
)
def test_two_shot_compiles_everywhere(protocol, arch):
    """Nothing in the headers needs more than sm_80 (test_catalogue.py: sm_90)."""
    plan = plan_of("all_reduce/two_shot", f"push {protocol} staged threads=128")
    _, log = build(generated(plan, rank=3, dtype="bfloat16"), arch=arch)

    assert 0 == usage(log).stack == usage(log).spill_loads == usage(log).spill_stores


@pytest.mark.parametrize(
    "words",
    [
        "push packets staged",
        "push bulk staged",
        "pull bulk staged",
    ],
)
@pytest.mark.parametrize("name", sorted(algorithms.names()))
def test_nothing_of_an_epoch_is_named_before_it_is_known(name, words):
    """A lane enters before its first move when that names staging or flags."""
    plan = plan_of(name, words)
    for rank in range(4):
        body = generated(plan, rank=rank, dtype="float32").text.split("steps_", 1)[1]
        body = body.split("{", 1)[1]
        bare = re.sub(r"const Slice \S+ = [^;]*;", "", body)
        begins = next(part for part in bare.split(";\n") if "me" in part)
        needs = re.search(r"stage<|line_|packet_from|signal<|wait<", begins)
        assert needs is None or "me.enter()" in begins


def test_all_ranks_fit_in_one_launch():
    """For tests on one GPU: rank r is the r-th group of blocks."""
    plan = plan_of("all_reduce/one_shot", "push packets staged blocks=2 depth=1", 2)
    kernel = generated(plan, rank=None, dtype="float32")
    build(kernel, arch=SM90)

    assert (0, 1) == kernel.ranks
    assert 4 == kernel.grid


@pytest.mark.slow
def test_registers_are_figures_to_watch(golden):
    """Registers, stack and spills of the kernels that small calls run."""
    lines = []
    for name, words in (
        ("all_reduce/one_shot", "push packets staged depth=1 threads=128"),
        ("all_reduce/two_shot", "push packets staged depth=1 threads=256"),
        ("all_gather/one_shot", "push packets staged depth=1 threads=256"),
    ):
        kernel = generated(plan_of(name, words), rank=0, dtype="bfloat16")
        _, log = build(kernel, arch=SM90)
        lines.append(f"{name} [{words}] {usage(log)}")

    if _nvrtc_version() != (13, 5):
        pytest.skip(f"figures are of NVRTC 13.5; this is {_nvrtc_version()}")
    golden("\n".join(lines) + "\n")


def _nvrtc_version():
    from cuda.bindings import nvrtc

    return tuple(int(v) for v in nvrtc.nvrtcVersion()[1:])


def test_a_warning_is_an_error_that_shows_the_line():
    """The compiler's log and the generated line come with the error."""
    kernel = c_side("__device__ int odd() { int unused; return 1; }")

    with pytest.raises(PlanError, match=r"(?s)does not compile for sm_90.*int unused"):
        build(kernel, arch=SM90)


def test_a_log_of_one_byte_is_not_written_into_the_interpreters_own(monkeypatch):
    """Single bytes are shared by all of Python, and NVRTC writes into what it gets."""
    given = []

    def ask(name, program, *raw):
        given.extend(raw)
        return 1

    monkeypatch.setattr(compiler, "_ask", ask)

    assert "" == compiler._text(None, "ProgramLog").strip()
    assert [2] == [len(raw) for raw in given]


def test_a_kernel_is_compiled_once(monkeypatch, tmp_path):
    """The second time it is read from the disk, bit for bit."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    kernel = c_side()
    first = compile_kernel(kernel, arch=SM90)
    monkeypatch.setattr("stretto.executors.cuda.codegen.compile.build", None)

    assert first == compile_kernel(kernel, arch=SM90)
    assert 1 == len(list(cache.folder().iterdir()))


def test_the_cache_knows_options_and_architecture(monkeypatch, tmp_path):
    """What changes the machine code changes the key."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    kernel = c_side()
    compile_kernel(kernel, arch=SM90)
    compile_kernel(kernel, arch=(8, 0))
    compile_kernel(dataclasses.replace(kernel, options=("--fmad=false",)), arch=SM90)

    assert 3 == len(list(cache.folder().iterdir()))


def test_a_cache_that_cannot_be_written_costs_only_time(monkeypatch, tmp_path):
    """A read-only home is no error."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(blocked))

    assert compile_kernel(c_side(), arch=SM90)


def test_what_is_not_proved_has_no_kernel():
    """The generator refuses what the encoder of the CPU does: unproved plans."""
    plan = parse_plan(
        "plan t/t collective=broadcast ranks=2 split=1 root=0\n"
        "schedule push packets staged\n"
        "atoms 0:2\n"
        "rank 0 input 0:1@0 output 0:1@0 stage 0\n"
        "  lane 0\n"
        "    put_packets r1.stage[0]! <- input[0] @0\n"
        "rank 1 input output 0:1@0 stage 1\n"
        "  lane 0\n"
    )

    with pytest.raises(StrettoError):
        generated(plan, rank=0, dtype="int8")


def test_plans_beyond_the_limits_are_refused():
    """A kernel has so many blocks, and none for copy engines."""
    many = plan_of("all_reduce/one_shot", "push packets staged blocks=257")
    engine = plan_of("all_gather/one_shot", "push engine zero_copy")

    with pytest.raises(PlanError, match="257 blocks; a kernel has 256"):
        generated(many, rank=0, dtype="float32")
    with pytest.raises(PlanError, match="copy engines"):
        generated(engine, rank=0, dtype="float32")


def test_every_type_and_operator_has_its_structure():
    """What the tables name exists in the headers."""
    text = "".join(headers().values())

    for name in ELEMENTS.values():
        assert f"struct {name} " in text
    for name in OPERATORS.values():
        assert f"struct {name} " in text


def test_no_multicast_is_ever_generated():
    """NVLink multicast is off on the machines we have, whatever they say."""
    for name, text in headers().items():
        assert "multimem" not in text, name


def test_headers_are_small_and_say_their_protocol():
    """One concept a header, under 250 lines, named in its first line."""
    for name, text in headers().items():
        assert text.startswith(f"// {name} -- "), name
        assert len(text.splitlines()) < 250, name
        assert text.isascii(), name


def test_a_warp_meets_at_one_copy_of_a_barrier():
    """Barriers of all data threads are of the aligned form.

    A warp that has diverged would go to another copy of the other form, which
    synccheck takes for threads that meet at different barriers.
    """
    text = headers()["lane.cuh"]

    assert "barrier.cta" not in text
    assert 2 == text.count('"bar.sync 1') + text.count('" bar.red.or.pred q, 1')
