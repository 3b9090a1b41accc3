"""Kernels registered under a catalogue name: who takes a call, and what is launched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_fakes import on_ranks
from tests.nightly import at_night

import stretto
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError
from stretto.executors import Call
from stretto.executors.cuda.codegen.byhand import hand_kernel
from stretto.executors.cuda.codegen.compile import build, usage
from stretto.executors.cuda.launching.byhand import taken_by_hand
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.program.lang import registered
from stretto.runtime.choice.question import Question
from stretto.runtime.choice.select import candidates, parse_pin
from stretto.search.schedules import leaders

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "write_a_kernel.py"
NAME = "all_reduce/one_hop"


pytestmark = pytest.mark.usefixtures("one_hop")


def plan_of(words="packets threads=256 blocks=4", ranks=4):
    return verify_plan(
        lower(verify(algorithms.get(NAME).build(ranks)), Schedule.parse(words))
    )


def call(dtype="float32", count=1000, op=Operator.SUM):
    return Call(dtype=dtype, op=op, counts=(count,))


def test_a_registered_kernel_joins_the_catalogue():
    """By name, among those of its collective, with its program and its schedule."""
    found = algorithms.get(NAME)

    assert NAME in algorithms.names()
    assert found in algorithms.of("all_reduce", 3)
    assert (found, Schedule.parse("packets blocks=4 threads=256")) == parse_pin(NAME)
    assert (found, Schedule.parse("packets")) == parse_pin(f"{NAME} packets")


def test_the_simulator_is_not_asked_and_the_tuner_tries_it():
    """Nobody can simulate what it does, so it is chosen where it was measured."""
    asked = Question(
        executor="cuda", collective="all_reduce", num_ranks=4, nbytes=1 << 14
    )

    assert NAME not in {c.algorithm.name for c in candidates(asked)}
    assert NAME in {c.algorithm.name for c in leaders(asked, keep=99)}


@pytest.mark.parametrize(
    ("words", "asked", "taken"),
    [
        ("packets", call(), True),
        ("packets", call("bfloat16", op=Operator.AVG), True),
        ("packets", call(op=Operator.PROD), False),
        ("packets", call(count=1 << 20), False),
        ("zero_copy", call(), False),
        ("packets", Call(dtype="float32", counts=()), False),
    ],
)
def test_a_kernel_takes_what_it_says(words, asked, taken):
    """Type, operator, size and memory; every rank answers alike."""
    assert taken == (taken_by_hand(plan_of(words).value, asked) is not None)


def test_what_the_kernel_does_not_take_its_program_runs(fake):
    """The same name, the same result: one is by hand, the other is generated."""

    def work(group):
        session = CudaSession(group)
        texts = []

        def load_kernel(kernel):
            texts.append(kernel.text)
            raise CallError("enough")

        session.load_kernel = load_kernel
        for op in (Operator.SUM, Operator.PROD):
            with pytest.raises(CallError, match="enough"):
                session.prepare(plan_of(ranks=2), call(op=op))
        session.close()
        return ["run_task<" in t for t in texts]

    assert [[True, False]] * 2 == on_ranks(fake, 2, work)


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        at_night("float32", (8, 0)),
        ("bfloat16", (9, 0)),
        at_night("uint8", (9, 0)),
        at_night("complex64", (9, 0)),
        at_night("float32", (10, 0)),
    ],
)
def test_the_registered_example_compiles_without_spills(dtype, arch):
    """On every architecture, for one type of each kind, with warnings as errors."""
    plan = plan_of().value
    found = taken_by_hand(plan, call(dtype))
    assert found is not None
    kernel = hand_kernel(found, plan, rank=1, dtype=dtype, op=Operator.SUM)
    _, log = build(kernel, arch=arch)

    assert (0, 0) == (usage(log).spill_stores, usage(log).spill_loads)


def test_a_name_is_given_once():
    """Another kernel under a taken name is an error; the same one again is not."""

    def program(ranks):
        """Nothing."""

    known = registered()[NAME].kernel
    with pytest.raises(CallError, match="another kernel has that name"):
        stretto.kernel(NAME, source="other")(program)
    assert known is registered()[NAME].kernel


LIST = """
import stretto, sys
@stretto.kernel("all_reduce/ring", source="")
def ring(ranks):
    "Takes a name that is shipped."
from stretto.program import algorithms
try:
    algorithms.names()
except stretto.CallError as e:
    sys.exit(str(e))
"""


def test_a_shipped_name_is_not_taken_over():
    """Whoever registers a name of the catalogue is told so when it is asked."""
    done = subprocess.run(
        [sys.executable, "-c", LIST],
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert "the catalogue has that name" in done.stderr


def test_the_command_line_finds_kernels_in_named_files():
    """STRETTO_KERNELS reaches every process: `stretto list` shows them."""
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "list"],
        env=dict(os.environ)
        | {"PYTHONPATH": str(ROOT / "src"), "STRETTO_KERNELS": str(EXAMPLE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert NAME in done.stdout
    assert "by hand on GPUs" in done.stdout
