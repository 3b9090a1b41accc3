"""What a session refuses, names and recognises, without other processes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.held import held, left_since
from tests.pure.cpu.test_memory import OneRank

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Plan, Schedule, parse_plan
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, PlanError, SharedMemoryError
from stretto.executors import Call, describe
from stretto.executors.cpu import session as opened
from stretto.executors.cpu import sharing
from stretto.executors.cpu.running.encode import fingerprint
from stretto.executors.cpu.shared.heap import Heap
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.program.ir import Verified

ALONE = """plan all_reduce/alone collective=all_reduce ranks=1 split=1
schedule push packets staged
atoms 0:1
rank 0 input 0:1@0 output 0:1@0 stage 0
  lane 0
    copy output[0] <- input[0] @0 finish
"""
CALL = Call(dtype="float64", op=Operator.AVG, counts=(77,))


@pytest.fixture
def session():
    """Return a session of one rank."""
    return executors.get("cpu").open_session(OneRank())


def test_a_group_of_one_copies(session):
    """One rank is a group, too; any alignment will do."""
    launch = session.prepare(Verified(parse_plan(ALONE)), CALL)
    x = np.arange(77.0)
    out = np.zeros(77 * 8 + 1, np.uint8)[1:].view(np.float64)

    for _ in range(3):
        launch(x, out)

    assert (x == out).all()


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (sharing, "_map_all"),
        (sharing, "interpreter"),
        (Heap, "renew"),
        (opened, "open_ring"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_session_that_cannot_begin_gives_all_back(monkeypatch, where, name):
    """Wherever it fails: a descriptor is a number, which no collector closes."""
    before = held()

    def fails(*given, **how):
        raise SharedMemoryError("there is none left")

    monkeypatch.setattr(where, name, fails)
    with pytest.raises(SharedMemoryError, match="none left"):
        executors.get("cpu").open_session(OneRank())

    assert [] == left_since(before)


def test_registered_memory_is_recognised(session):
    """Views of registered memory have an offset; other arrays have none."""
    first, second = session.empty((10,), "float32"), session.empty((10,), "bfloat16")

    assert 0 == session.offset(first)
    assert 4 == session.offset(first[1:])
    assert session.offset(second) > 0
    assert session.offset(np.zeros(4)) is None


PAIR = str(lower(verify(algorithms.get("all_reduce/ring").build(2)), Schedule()))
LANES = ALONE + "".join(f"  lane {i}\n" for i in range(1, 10))
UNITS = ALONE.replace("stage 0", "stage 20000").replace(
    "copy output[0] <- input[0] @0 finish",
    "put_packets stage[0]! <- input[0] @0\n    "
    "read_packets output[0] <- stage[0]! @0 finish",
)


@pytest.mark.parametrize(
    ("text", "call", "kind", "said"),
    [
        (PAIR, {}, CallError, "is for 2 ranks; want 1"),
        (
            *(ALONE, {"dtype": "int32", "op": Operator.AVG}, CallError),
            "op='avg' makes no sense for int32",
        ),
        (LANES, {}, PlanError, "10 lanes a rank, want at most 8"),
        (UNITS, {}, PlanError, "20000 units of staging a rank do not fit"),
    ],
    ids=["other ranks", "operator", "lanes", "units"],
)
def test_a_call_that_cannot_be_is_refused(session, text, call, kind, said):
    """Flags are for eight lanes a rank; packets have a region of their own."""
    with pytest.raises(kind, match=said):
        session.prepare(
            Verified(parse_plan(text)), Call(counts=(4,), **{"dtype": "int8", **call})
        )


def test_unregistered_memory_is_refused_where_peers_touch_it():
    """Nothing is done and the remedy is named."""

    class Two(OneRank):
        num_ranks = 2

        def exchange(self, payload, fds=()):
            return [(payload, tuple(fds))] * 2

    program = verify(algorithms.get("all_reduce/two_shot").build(2))
    plan = verify_plan(lower(program, Schedule(memory="zero_copy", direction="pull")))
    session = executors.get("cpu").open_session(Two())
    launch = session.prepare(plan, Call(dtype="float32", counts=(4,)))
    x = np.ones(4, np.float32)

    with pytest.raises(CallError, match=r"not from comm\.empty\(\)"):
        launch(x, x)


def test_a_call_is_described_by_all_that_must_agree():
    """Whatever changes the call changes its fingerprint."""
    plan = parse_plan(ALONE)
    call = Call(dtype="float32", counts=(5,))
    others = [
        Call(dtype="int32", counts=(5,)),
        Call(dtype="float32", counts=(6,)),
        Call(dtype="float32", op=Operator.MAX, counts=(5,)),
    ]

    texts = [describe(plan, c) for c in (call, *others)]
    texts.append(describe(parse_plan(ALONE.replace(" finish", "")), call))

    assert texts[0].startswith("all_reduce of 5 float32 op=sum by all_reduce/alone")
    assert len(texts) == len({fingerprint(t) for t in texts})


def test_doctor_says_what_there_is():
    """Interpreter, memory, cores and vectors."""
    found = executors.get("cpu").doctor()

    assert {"interpreter", "shared memory", "cores"} <= set(found)
    assert all(isinstance(v, str) and v for v in found.values())


def test_a_plan_is_a_plan():
    """The text these tests are written in is what they think it is."""
    assert isinstance(parse_plan(ALONE), Plan)
