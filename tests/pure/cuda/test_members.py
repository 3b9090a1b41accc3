"""Kernels of programs among some ranks: the others run along, and only relay."""

import shutil

import cuda_emulate as _emulate
import numpy as np
import pytest
from cuda_fakes import generated
from tests.checking.groups import among, relayed
from tests.nightly import nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import PlanError
from stretto.executors.cuda.codegen.compile import compile_kernel
from stretto.program import algorithms
from stretto.program.collectives import Operator

MEMBERS, RANKS = (0, 2), 4


def group_of(name, *, by_relays=True):
    group = among(algorithms.get(name).build(len(MEMBERS)), MEMBERS, RANKS)
    return relayed(group) if by_relays else group


def planned(program, words):
    return verify_plan(lower(verify(program), Schedule.parse(words))).value


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    ("name", "words", "dtype", "op", "by_relays"),
    nightly(
        [
            (
                "all_reduce/two_shot",
                "packets threads=32 blocks=2",
                "float32",
                "avg",
                True,
            ),
            ("all_reduce/one_shot", "bulk threads=32", "float16", "avg", False),
            ("reduce_scatter/ring", "pull bulk threads=32", "complex64", "avg", True),
            ("broadcast/flat", "bulk threads=32", "int8", "sum", True),
        ],
        4,
    ),
)
def test_relays_run_along_with_the_bits_of_the_reference(
    tmp_path, name, words, dtype, op, by_relays
):
    """Launch after launch: an average is of the members, and relays have no arrays."""
    program = group_of(name, by_relays=by_relays)
    plan, op = planned(program, words), Operator.named(op)
    run = _emulate.Emulated(program, plan, tmp_path, dtype=dtype, op=op, counts=301)
    rng = np.random.default_rng(0)
    for _ in range(2):
        given, want = run.draw(rng)
        got = run.launch(given)

        assert [w.tobytes() for w in want] == [g.tobytes() for g in got]
        assert [0, 0] == [got[r].size for r in (1, 3)]


def test_the_divisor_is_a_part_of_the_kernel():
    """Only of an average, and only among some."""
    plan = planned(group_of("all_reduce/one_shot"), "bulk")
    alone = planned(algorithms.get("all_reduce/one_shot").build(2), "bulk")

    def operator(plan, op):
        text = generated(plan, rank=0, dtype="float32", op=op).text
        return text.partition("using Operator = ")[2].partition(";")[0]

    assert "AvgOf<2>" == operator(plan, Operator.AVG)
    assert "Sum" == operator(plan, Operator.SUM)
    assert "Avg" == operator(alone, Operator.AVG)


@pytest.mark.slow
def test_an_average_of_some_compiles():
    """For the GPUs that we have, in a half type."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    plan = planned(group_of("all_reduce/two_shot"), "packets threads=64")
    kernel = generated(plan, rank=1, dtype="bfloat16", op=Operator.AVG)

    assert compile_kernel(kernel, arch=(9, 0))


def test_counts_on_the_gpu_are_of_all_ranks():
    """The kernel that gathers them knows no members, so it is refused in words."""
    plan = planned(group_of("all_gather/one_shot"), "bulk")

    with pytest.raises(PlanError, match="2 members of 4 ranks, and counts on the GPU"):
        generated(plan, rank=0, dtype="int32", counted=True)
