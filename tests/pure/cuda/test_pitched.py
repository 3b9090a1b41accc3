"""An all_to_all with its permutation, in the kernel's own loads and stores."""

import shutil

import cuda_emulate as _emulate
import numpy as np
import pytest
from cuda_fakes import generated
from tests.nightly import at_night, nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.executors.cuda.launching.prepare import pitches
from stretto.program import algorithms
from stretto.program.collectives import Operator, storage
from stretto.testing import draw


def planned(words, ranks, name="all_to_all/one_shot"):
    program = algorithms.get(name).build(ranks)
    return program, verify_plan(lower(verify(program), Schedule.parse(words))).value


def permuted(inputs, split, concat):
    """Return everybody's result, as NumPy says it."""
    n = len(inputs)
    parts = [np.split(x, n, axis=split) for x in inputs]
    return [np.concatenate([p[r] for p in parts], axis=concat) for r in range(n)]


def rows_of(shape, split, concat, ranks):
    """Return how many elements lie together in the input and in the output."""
    part = list(shape)
    part[split] //= ranks
    rows = [int(np.prod(part[axis:])) for axis in (split, concat)]
    return tuple(
        0 if axis == 0 else r for axis, r in zip((split, concat), rows, strict=True)
    )


CASES = {
    "heads to sequence, by vectors": (
        *("push packets threads=64 blocks=2", 4, (3, 8, 16), 1, 0, "bfloat16"),
    ),
    "sequence to heads": (
        *(
            "pull bulk zero_copy threads=32 tile_bytes=128",
            2,
            (6, 2, 8),
            0,
            1,
            "float32",
        ),
    ),
    "inner axes both, word by word": (
        *("push packets threads=32", 3, (2, 3, 5, 6), 3, 1, "int8"),
    ),
    "one axis, not the first": (
        *("push bulk staged threads=32 blocks=2", 2, (5, 6, 3), 1, 1, "int16"),
    ),
}
"""Schedule, ranks, shape, split, concat, type."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("case", nightly(CASES, 4))
def test_parts_with_a_pitch_are_exchanged_in_one_pass(tmp_path, case):
    """The bits of NumPy's split and concatenate, launch after launch."""
    words, ranks, shape, split, concat, dtype = CASES[case]
    program, plan = planned(words, ranks)
    rows = rows_of(shape, split, concat, ranks)
    count = int(np.prod(shape)) // ranks
    run = _emulate.Emulated(
        program, plan, tmp_path, dtype=dtype, op=Operator.SUM, counts=count, rows=rows
    )
    call = Call(dtype=dtype, counts=(count,) * ranks**2, rows=rows)
    extra = [pitches(plan, call, storage(dtype).itemsize)] * ranks
    rng = np.random.default_rng(0)
    for _ in range(2):
        given = [draw(rng, count * ranks, dtype, Operator.SUM) for _ in range(ranks)]
        got = run.launch(given, extra=extra)

        want = permuted([g.reshape(shape) for g in given], split, concat)
        assert [w.tobytes() for w in want] == [g.tobytes() for g in got]


@pytest.mark.parametrize(
    "words", [at_night("push packets threads=512"), "pull bulk zero_copy"]
)
def test_such_kernels_compile(words):
    """Without a warning or a spill."""
    _, plan = planned(words, 4)
    kernel = generated(plan, rank=2, dtype="bfloat16", rows=(1024, 0))
    _, log = build(kernel, arch=(9, 0))

    assert 0 == usage(log).spill_stores
    assert ", input_rows)" in kernel.text
    assert "output_rows" not in kernel.text


def test_what_cannot_have_a_pitch_is_refused():
    """With what can."""
    _, plan = planned("push bulk staged", 4, "all_reduce/one_shot")

    with pytest.raises(PlanError, match="several parts as one"):
        generated(plan, rank=0, dtype="int8", rows=(4, 0))
