"""Every shipped algorithm, under every kind of schedule, against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.nightly import nightly

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import PlanError, StrettoError
from stretto.executors import Call
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape, storage
from stretto.testing import (
    draw,
    input_counts,
    interpret,
    largest_error,
    output_counts,
    pairings,
    tolerance,
)

SCHEDULES = [
    "push packets staged tile_bytes=96",
    "push bulk staged tile_bytes=256 blocks=3",
    "pull bulk staged",
    "push bulk zero_copy tile_bytes=1024",
    "pull bulk zero_copy",
]
PARAMS = {"permute": {"pairs": ((0, 1), (1, 0))}}
COUNTS = (0, 1, 3, 61, 997)


def every_case(num_ranks):
    """Yield program, plan, call: whatever can be lowered."""
    types = itertools.cycle(pairings())
    for name in algorithms.names():
        one = algorithms.get(name)
        if one.refuses(num_ranks):
            continue
        params = PARAMS.get(one.collective, {})
        program = verify(one.build(num_ranks, **params))
        for words in SCHEDULES:
            try:
                plan = verify_plan(lower(program, Schedule.parse(words)))
            except StrettoError:
                continue
            for base in COUNTS:
                dtype, op = next(types)
                yield program.value, plan, dtype, op, base


def parts(program, base):
    """Return counts: equal parts, or uneven ones where the collective takes many."""
    shape = Shape(num_ranks=program.num_ranks, params=program.params)
    many = collectives.get(program.collective).num_parts(shape)
    return (
        tuple(max(0, base - 5 * i) for i in range(many)) if many > 1 else (base,) * many
    )


def inputs_of(program, dtype, op, counts):
    """Return every rank's input, drawn alike on every rank."""
    rng = np.random.default_rng(7)
    return [draw(rng, n, dtype, op) for n in input_counts(program, counts)]


def place(session, count, dtype, shared):
    """Return memory for one side of a call: registered where peers touch it."""
    if shared:
        return session.empty((max(count, 1),), dtype)[:count]
    nbytes = count * storage(dtype).itemsize
    return np.zeros(nbytes + 3, np.uint8)[3:].view(storage(dtype))  # misaligned


def run_cases(group, cases):
    """Run all cases on this rank; return what went wrong."""
    session = executors.get("cpu").open_session(group)
    wrong = []
    for program, plan, dtype, op, base in cases:
        counts = parts(program, base)
        inputs = inputs_of(program, dtype, op, counts)
        want = interpret(program, inputs, dtype=dtype, op=op, counts=counts)
        shared = plan.value.schedule.memory == "zero_copy"
        most = max((*output_counts(program, counts), *input_counts(program, counts)))
        x = place(session, most, dtype, shared)[: inputs[group.rank].size]
        out = place(session, most, dtype, shared)
        out = out[: want[group.rank].size]
        try:
            launch = session.prepare(plan, Call(dtype=dtype, op=op, counts=counts))
        except PlanError as e:
            # On every rank alike: who has no buffer cannot tell where others' lie.
            if "reaches into the" not in str(e):
                wrong.append(f"{plan.value.name} {plan.value.schedule}: {e}")
            continue
        for again in range(3):
            x[:] = inputs[group.rank]
            out[:] = 0
            group.exchange({})
            launch(x, out)
            if not same(out, want[group.rank], dtype, op):
                case = f"{plan.value.name} {plan.value.schedule} {dtype} {op} {counts}"
                wrong.append(f"{case}: {out[:5]} {want[group.rank][:5]} {again}")
    return wrong


def same(got, want, dtype, op):
    """Return whether arrays are equal, bit for bit where NumPy rounds every step."""
    if got.dtype.kind == "c" and op is Operator.PROD:  # NumPy may fuse
        return largest_error(got, want, dtype) < 8 * tolerance(dtype, 4)
    return got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("num_ranks", "every"),
    nightly([(2, 13), (2, 3), (3, 19), (3, 5), (4, 37), (4, 11)], 2),
)
def test_every_algorithm_gives_the_interpreters_bits(ranks, num_ranks, every):
    """Lowering, tables, kernels and memory together change nothing."""
    cases = list(every_case(num_ranks))[::every]

    wrong = ranks(num_ranks, run_cases, cases, timeout_s=200)

    assert [[]] * num_ranks == wrong
