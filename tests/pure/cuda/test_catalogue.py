"""Every shipped algorithm is compiled under every protocol, types and ranks in turn.

The product of all four would take minutes (scripts/compile-kernels); here each class of
type meets each protocol, and each algorithm is compiled once under each: under one of
them in every run, under the other one at night.
"""

import itertools

import pytest
from tests.nightly import nightly

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

PROTOCOLS = ("packets", "bulk")
RANKS = 4
SUMMED = {
    "bool": ("bor", "bxor"),
    "int8": ("min", "sum", "band"),
    "uint64": ("prod", "max"),
    "float16": ("avg", "prod"),
    "float32": ("sum", "min"),
    "float64": ("max", "avg"),
    "complex64": ("prod", "sum"),
    "float8_e4m3fn": ("sum", "avg", "max"),
}
"""A type of each class, that is of each way to widen and to round, and operators."""
MOVED = ("bool", "float16", "float32", "float64")
"""What is only moved is told apart by its size alone."""


def cases():
    """Yield name, protocol, type, operator and rank, all of them in turn."""
    names = sorted(algorithms.names())
    reduces = {
        name: collectives.get(algorithms.get(name).collective).reduces for name in names
    }
    for turn, protocol in enumerate(PROTOCOLS):
        place = {True: itertools.count(turn), False: itertools.count(turn)}
        for name in names:
            nth = next(place[reduces[name]])
            types = list(SUMMED) if reduces[name] else list(MOVED)
            dtype = types[(nth + turn) % len(types)]
            ops = SUMMED[dtype] if reduces[name] else ("sum",)
            op = ops[(nth // len(types) + turn) % len(ops)]
            yield name, protocol, dtype, op, (nth + turn) % 2 * (RANKS - 1)


def in_turn(found):
    """Return cases, eleven of twelve (others of each protocol) for the night."""
    half = len(found) // 2
    return [
        *nightly(found[:half], 12),
        *nightly(found[half:][6:] + found[half:][:6], 12),
    ]


@pytest.mark.parametrize(
    ("name", "protocol", "dtype", "op", "rank"), in_turn(list(cases()))
)
def test_shipped_algorithms_compile(name, protocol, dtype, op, rank):
    """For sm_90, without a warning and with nothing left in local memory."""
    pairs = {"pairs": ((0, 1), (1, 2), (3, 0))} if name.startswith("permute/") else {}
    program = verify(algorithms.get(name).build(RANKS, **pairs))
    words = f"push {protocol} staged threads=64 depth=1"
    plan = verify_plan(lower(program, Schedule.parse(words)), program)
    kernel = kernel_of(plan, rank=rank, dtype=dtype, op=Operator(op))
    _, log = build(kernel, arch=(9, 0))
    used = usage(log)

    assert 0 == used.stack == used.spill_loads == used.spill_stores


def test_every_class_of_type_meets_every_protocol():
    """And every operator, the first rank and the last, several times."""
    found = list(cases())
    summed = {
        (protocol, dtype)
        for name, protocol, dtype, _, _ in found
        if collectives.get(algorithms.get(name).collective).reduces
    }

    assert set(itertools.product(PROTOCOLS, SUMMED)) == summed
    assert {op.value for op in Operator} == {op for *_, op, _ in found}
    assert {0, RANKS - 1} == {rank for *_, rank in found}
