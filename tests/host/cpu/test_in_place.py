"""Calls whose output lies in their input, or whose input lies in their output."""

from __future__ import annotations

import numpy as np
import pytest
from tests.nightly import at_night

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import StrettoError
from stretto.executors import Call
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape
from stretto.testing import input_counts, interpret, output_counts

SCHEDULES = (
    "push packets staged tile_bytes=64",
    "push bulk staged tile_bytes=128",
    "pull bulk staged",
    "push bulk zero_copy",
    "pull bulk zero_copy copy:push",
)
WHOLE = ("all_reduce", "broadcast", "reduce", "all_to_all")
PARTS = ("all_gather", "reduce_scatter")
COUNTS = (1, 13, 500)


def cases(num_ranks):
    """Yield program and plan of what is safe in place."""
    for kind in (*WHOLE, *PARTS):
        for one in algorithms.of(kind, num_ranks):
            program = verify(one.build(num_ranks))
            for words in SCHEDULES:
                try:
                    plan = lower(program, Schedule.parse(words), in_place=True)
                    yield program.value, verify_plan(plan)
                except StrettoError:
                    continue


def memory(session, program, counts, rank, shared):
    """Return input and output of a call in place."""
    whole = max(
        input_counts(program, counts)[rank], output_counts(program, counts)[rank]
    )
    room = session.empty((max(whole, 1),), "int32") if shared else np.empty(whole, "i4")
    room = room[:whole]
    before = sum(counts[:rank])
    if program.collective == "all_gather":
        return room[before : before + counts[rank]], room
    if program.collective == "reduce_scatter":
        return room, room[before : before + counts[rank]]
    return room, room


def call_in_place(group, every):
    """Run all of them on this rank; return what went wrong."""
    session = executors.get("cpu").open_session(group)
    wrong = []
    for program, plan in every:
        for base in COUNTS:
            shape = Shape(num_ranks=group.num_ranks, params=program.params)
            many = collectives.get(program.collective).num_parts(shape)
            counts = (base,) * many
            rng = np.random.default_rng(base)
            inputs = [
                rng.integers(-99, 99, n).astype(np.int32)
                for n in input_counts(program, counts)
            ]
            want = interpret(program, inputs, dtype="int32", counts=counts)
            shared = plan.value.schedule.memory == "zero_copy"
            x, out = memory(session, program, counts, group.rank, shared)
            call = Call(dtype="int32", op=Operator.SUM, counts=counts)
            try:
                launch = session.prepare(plan, call)
            except StrettoError as e:
                if "reaches into the" not in str(e):
                    wrong.append(str(e))
                continue
            for _ in range(2):
                if inputs[group.rank].size:
                    x[:] = inputs[group.rank]
                group.exchange({})
                launch(x, out)
                due = want[group.rank]
                if due.size and out.tobytes() != due.tobytes():
                    wrong.append(f"{plan.value.name} {plan.value.schedule} {counts}")
    return wrong


@pytest.mark.parametrize("num_ranks", [at_night(2), 3])
def test_calls_in_place_give_the_same_bits(ranks, num_ranks):
    """Lowering keeps what must survive; peers agree where memory lies."""
    every = list(cases(num_ranks))

    wrong = ranks(num_ranks, call_in_place, every, timeout_s=200)

    assert every
    assert [[]] * num_ranks == wrong
