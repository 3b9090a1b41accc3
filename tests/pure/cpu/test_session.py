"""What a session refuses, names and recognises, without other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

from stretto import algorithms, executors, jit
from stretto.collectives import Operator
from stretto.errors import CallError, PlanError, UnknownNameError
from stretto.executors import Call, Group, describe
from stretto.executors.cpu import session as sessions
from stretto.executors.cpu.running import beside, interpreter_numpy, interpreters
from stretto.executors.cpu.running.encode import fingerprint
from stretto.ir import Verified
from stretto.lower import lower
from stretto.plan import Plan, Schedule, parse_plan
from stretto.verify import verify, verify_plan

ALONE = """plan all_reduce/alone collective=all_reduce ranks=1 split=1
schedule push packets staged
atoms 0:1
rank 0 input 0:1@0 output 0:1@0 stage 0
  lane 0
    copy output[0] <- input[0] @0 finish
"""
CALL = Call(dtype="float64", op=Operator.AVG, counts=(77,))


class OneRank(Group):
    """A group of one."""

    rank, num_ranks, deadline_s = 0, 1, 1.0
    broken = np.zeros(1, np.int64)

    def exchange(self, payload, fds=()):
        return [(payload, tuple(fds))]

    def fail(self, waiting_for, where, *, mismatch="", refused=""):
        raise AssertionError(f"nobody to wait for: {waiting_for} {where} {mismatch}")


@pytest.fixture(params=interpreters.INTERPRETERS)
def session(request):
    """Return a session of one rank with either interpreter."""
    return executors.get("cpu").open_session(OneRank(), interpreter=request.param)


def test_a_group_of_one_copies(session):
    """One rank is a group, too; any alignment will do."""
    launch = session.prepare(Verified(parse_plan(ALONE)), CALL)
    x = np.arange(77.0)
    out = np.zeros(77 * 8 + 1, np.uint8)[1:].view(np.float64)

    for _ in range(3):
        launch(x, out)

    assert (x == out).all()


def test_registered_memory_is_recognised(session):
    """Views of registered memory have an offset; other arrays have none."""
    first, second = session.empty((10,), "float32"), session.empty((10,), "bfloat16")

    assert 0 == session.offset(first)
    assert 4 == session.offset(first[1:])
    assert session.offset(second) > 0
    assert session.offset(np.zeros(4)) is None


def test_a_plan_for_other_ranks_is_refused(session):
    """The message says how many there are."""
    program = verify(algorithms.get("all_reduce/ring").build(2))
    plan = verify_plan(lower(program, Schedule()))

    with pytest.raises(CallError, match="is for 2 ranks; want 1"):
        session.prepare(plan, Call(dtype="float32", counts=(4,)))


def test_an_operator_that_makes_no_sense_is_refused(session):
    """Avg of integers would have to round."""
    call = Call(dtype="int32", op=Operator.AVG, counts=(4,))

    with pytest.raises(CallError, match="op='avg' makes no sense for int32"):
        session.prepare(Verified(parse_plan(ALONE)), call)


def test_too_many_lanes_are_refused(session):
    """There are flags for eight lanes a rank."""
    lanes = "".join(f"  lane {i}\n" for i in range(1, 10))

    with pytest.raises(PlanError, match="10 lanes a rank, want at most 8"):
        session.prepare(
            Verified(parse_plan(ALONE + lanes)), Call(dtype="int8", counts=(4,))
        )


def test_too_many_units_are_refused(session):
    """Packets have a region; a plan that cannot fit even byte by byte says so."""
    text = ALONE.replace("stage 0", "stage 20000").replace(
        "copy output[0] <- input[0] @0 finish",
        "put_packets stage[0]! <- input[0] @0\n    "
        "read_packets output[0] <- stage[0]! @0 finish",
    )

    with pytest.raises(PlanError, match="20000 units of staging a rank do not fit"):
        session.prepare(Verified(parse_plan(text)), Call(dtype="int8", counts=(4,)))


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


def test_an_unknown_interpreter_is_answered_with_the_known():
    """A wrong name is answered with the right ones."""
    with pytest.raises(UnknownNameError, match="known: numba, numpy"):
        executors.get("cpu").open_session(OneRank(), interpreter="fortran")


def test_without_numba_the_slow_interpreter_says_so(monkeypatch):
    """It serves, with a warning that tells what to install."""
    why = "No module named 'numba': pip install 'stretto[cpu]'"
    monkeypatch.setattr(interpreters, "missing", lambda: why)

    with pytest.warns(RuntimeWarning, match=r"pip install 'stretto\[cpu\]'"):
        session = executors.get("cpu").open_session(OneRank())

    assert "numpy" == session.interpreter


def test_with_numba_there_is_nothing_to_say():
    """No warning, and the compiled interpreter."""
    if jit.missing():
        pytest.skip(jit.missing())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = executors.get("cpu").open_session(OneRank())

    assert "numba" == session.interpreter


def test_doctor_says_what_there_is():
    """Interpreter, memory, cores and vectors."""
    found = executors.get("cpu").doctor()

    assert {"interpreter", "shared memory", "cores"} <= set(found)
    assert all(isinstance(v, str) and v for v in found.values())


def test_numpy_kernels_are_numbered_once():
    """The same kernel has the same number, and no number is 0."""
    one = interpreter_numpy.kernel_of("int8", Operator.SUM, 2, (1,), False)
    two = interpreter_numpy.kernel_of("int8", Operator.MAX, 2, (1,), False)

    assert one == interpreter_numpy.kernel_of("int8", Operator.SUM, 2, (1,), True)
    assert 0 < one != two


def test_a_plan_is_a_plan():
    """The text these tests are written in is what they think it is."""
    assert isinstance(parse_plan(ALONE), Plan)


def test_a_session_that_opens_late_begins_with_numpy_and_is_renewed(monkeypatch):
    """The compiled interpreter comes when it is ready; results do not change by it."""
    waiting, told = [], []
    monkeypatch.setattr(sessions, "is_loaded", lambda: False)
    monkeypatch.setattr(beside, "when_ready", waiting.append)
    group = OneRank()
    group.opens_late = True
    late = executors.get("cpu").open_session(group)
    late.tell_renewed(lambda: told.append(late.interpreter))
    first = late.prepare(Verified(parse_plan(ALONE)), CALL)
    before = late.interpreter
    waiting[0](interpreters.interpreter_named("numba"))
    late.renew()
    second = late.prepare(Verified(parse_plan(ALONE)), CALL)

    assert ("numpy", ["numpy"], "numba") == (before, told, late.interpreter)
    for launch in (first, second, first):  # what was prepared before goes on working
        x, out = np.arange(77.0), np.zeros(77)
        launch(x, out)
        assert (x == out).all()


@pytest.mark.parametrize("late", [False, True])
def test_a_session_waits_for_compilers_unless_it_opens_late(late, monkeypatch):
    """Nor does one that opens late begin anew with NumPy what is compiled already."""
    monkeypatch.setattr(beside, "when_ready", lambda take: pytest.fail("nothing to do"))
    group = OneRank()
    group.opens_late = late
    interpreters.interpreter_named("numba")
    session = executors.get("cpu").open_session(group)
    session.tell_renewed(lambda: None)

    assert session.interpreter == "numba"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_interpreter_is_compiled_by_another_process(tmp_path):
    """This one compiles nothing: it finds what it loads, the second time at once."""
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, text=True, check=False,
        env={**os.environ, "STRETTO_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip

    assert (0, "True numba [] 0\n") == (done.returncode, done.stdout), done.stderr


BESIDE = """
import threading
from stretto.executors.cpu.running import beside
from stretto.jit import kept
children, compiled_here = [], []
kept.Kept.save_overload = lambda self, *rest: compiled_here.append(rest)
popen = beside.subprocess.Popen
def start(*args, **how):
    children.append(popen(*args, **how))
    return children[-1]
beside.subprocess.Popen = start
came = threading.Event()
found = []
beside.when_ready(lambda engine: (found.append(engine), came.set()))
came.wait(240)
before = len(children)
came.clear()
beside.when_ready(lambda engine: came.set())
came.wait(60)
said = before == 1 and children[0].returncode == 0
print(said, found[0].name, compiled_here, len(children) - before)
"""


@pytest.mark.parametrize("pause_s", [0.0, 0.5])
def test_a_process_may_end_while_another_compiles_for_it(tmp_path, pause_s):
    """It waits for nothing, and leaves no process behind."""
    text = f"{ENDING}\ntime.sleep({pause_s})\n"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False,
        env={**os.environ, "STRETTO_CACHE_DIR": str(tmp_path)}, timeout=60,
    )  # fmt: skip

    assert (0, "True\n", "") == (done.returncode, done.stdout, done.stderr)


ENDING = """
import atexit, time

@atexit.register
def last():  # it is run after what is registered later
    child = beside._child
    print(time.monotonic() - ended < 8 and (child is None or child.poll() is not None))

@atexit.register
def first():
    global ended
    ended = time.monotonic()

from stretto.executors.cpu.running import beside
atexit.unregister(first)
atexit.register(first)
beside.when_ready(lambda engine: None)
"""
