"""Plans that copy engines run, over a driver made of host memory."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from cuda_fakes import on_ranks, view

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import (
    CallError,
    DeviceError,
    PlanError,
)
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.launching import launch as launch_module
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms, collectives
from stretto.program.collectives import Operator, Shape
from stretto.testing import draw, input_counts, interpret


@pytest.fixture
def meeting(fake, monkeypatch):
    """Return the fake driver; sessions load the kernel of a barrier, whatever asked."""
    kernel = Kernel(text="meet", ranks=(0,), grid=1, threads=64)
    loaded = Loaded(None, 8, kernel)
    monkeypatch.setattr(CudaSession, "load_call", lambda *_, **__: loaded)
    return fake


ENGINE = "push engine zero_copy blocks=3"


class Engine:
    """A copy-engine plan of one rank, with registered arrays."""

    def __init__(self, session, name, count, schedule=ENGINE, dtype="int32"):
        group = session.group
        self.session, self.rank = session, group.rank
        self.program = algorithms.get(name).build(group.num_ranks)
        kind = collectives.get(self.program.collective)
        shape = Shape(num_ranks=group.num_ranks, split=self.program.split)
        self.counts = (count,) * kind.num_parts(shape)
        plan = verify_plan(lower(verify(self.program), Schedule.parse(schedule)))
        call = Call(dtype=dtype, op=Operator.SUM, counts=self.counts)
        self.launch = session.prepare(plan, call)
        self.n_in = input_counts(self.program, self.counts)
        most = count * group.num_ranks
        self.x = session.empty((most,), dtype)
        self.out = session.empty((most,), dtype)

    def fill(self, seed):
        """Write this rank's part of fresh data; return all of it."""
        rng = np.random.default_rng(seed)
        given = [draw(rng, c, "int32", Operator.SUM) for c in self.n_in]
        mine = given[self.rank].view(np.uint8)
        view(self.x)[: mine.size] = mine
        view(self.out)[:] = 0xA5
        return given

    def right(self, given):
        """Return whether the output is as the interpreter says."""
        want = interpret(self.program, given, dtype="int32", counts=self.counts)
        due = want[self.rank].view(np.uint8)
        return bool((view(self.out)[: due.size] == due).all())


@pytest.mark.parametrize(
    "name",
    [
        "all_gather/one_shot",
        "all_to_all/one_shot",
        "broadcast/flat",
        "gather/flat",
        "scatter/flat",
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_copy_engines_keep_the_promise_call_after_call(meeting, name, ranks):
    """Five calls, each on fresh data, ranks at their own pace."""

    def work(group):
        session = CudaSession(group)
        engine = Engine(session, name, 37)
        right = []
        for seed in range(5):
            given = engine.fill(seed)
            group.exchange({})
            time.sleep(0.002 * ((seed + group.rank) % 3))
            engine.launch(engine.x, engine.out, stream=1)
            session.synchronize(1)
            group.exchange({})  # what the barrier's kernel does on a GPU
            right.append(engine.right(given))
            group.exchange({})
        session.close()
        return right

    assert [[True] * 5] * ranks == on_ranks(meeting, ranks, work)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_leaf_without_an_output_meets_the_root(meeting, ranks):
    """Marks speak of arrays that peers touch; the root's output is its own affair."""

    def work(group):
        session = CudaSession(group)
        engine = Engine(session, "gather/flat", 37, "pull engine zero_copy")
        root = group.rank == 0
        given = engine.fill(5)
        group.exchange({})
        engine.launch(engine.x, engine.out if root else None, stream=1)
        session.synchronize(1)
        group.exchange({})
        right = not root or engine.right(given)
        session.close()
        return right

    assert [True] * ranks == on_ranks(meeting, ranks, work, deadline_s=2.0)


def without_contexts(fake, monkeypatch):
    """Let threads begin without a context, and refuse what needs one."""
    mine = threading.local()

    def enter(context):
        mine.context = context
        return (fake.CUresult.CUDA_SUCCESS,)

    def needs(name):
        plain = getattr(fake, name)

        def checked(*args):
            if not getattr(mine, "context", 0):
                return (fake.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
            return plain(*args)

        monkeypatch.setattr(fake, name, checked, raising=False)

    monkeypatch.setattr(fake, "cuCtxSetCurrent", enter, raising=False)
    monkeypatch.setattr(
        fake,
        "cuCtxGetCurrent",
        lambda: (fake.CUresult.CUDA_SUCCESS, getattr(mine, "context", 0)),
        raising=False,
    )
    needs("cuMemcpyDtoDAsync")
    needs("cuEventRecord")


def test_any_thread_may_call(meeting, monkeypatch):
    """A new one has no current context; the call enters the session's."""

    def work(group):
        session = CudaSession(group)
        engine = Engine(session, "all_gather/one_shot", 16)
        given = engine.fill(1)
        group.exchange({})
        if group.rank == 0:
            without_contexts(meeting, monkeypatch)
        group.exchange({})
        raised = []

        def call():
            meeting.who.rank = group.rank
            try:
                engine.launch(engine.x, engine.out, stream=1)
                session.synchronize(1)
            except DeviceError as e:
                raised.append(str(e))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        group.exchange({})
        answer = raised, engine.right(given)
        session.close()
        return answer

    assert [([], True)] * 2 == on_ranks(meeting, 2, work)


def test_a_launch_remembers_some_pairs_of_arrays(meeting, monkeypatch):
    """Not every one it has met: it may meet new ones for ever."""
    monkeypatch.setattr(launch_module, "KEPT", 3)

    def work(group):
        session = CudaSession(group)
        engine = Engine(session, "all_gather/one_shot", 16)
        rooms = [session.empty((64,), "int32") for _ in range(7)]
        for room in rooms:
            engine.launch(engine.x, room, stream=1)
        session.synchronize(1)
        group.exchange({})
        (opened,) = engine.launch._opened.values()
        session.close()
        return max(len(one.kept) for one in opened)

    assert [3, 3] == on_ranks(meeting, 2, work)


def test_engines_refuse_what_they_cannot_do(meeting):
    """Reductions and staging need a kernel; unregistered arrays need staging."""

    def work(group):
        session = CudaSession(group)
        with pytest.raises(PlanError, match="reduces"):
            Engine(session, "all_reduce/two_shot", 16)
        with pytest.raises(PlanError, match="passes on what has come"):
            Engine(session, "all_gather/ring", 16)
        with pytest.raises(PlanError, match="stages"):
            Engine(session, "all_gather/one_shot", 16, "push engine staged")
        engine = Engine(session, "all_gather/one_shot", 16)
        with pytest.raises(CallError, match=r"comm.empty\(\)"):
            engine.launch(engine.x, Elsewhere(), stream=1)
        session.close()

    on_ranks(meeting, 3, work)


class Elsewhere:
    """An array that is not registered."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (64,),
        "typestr": "<i4",
        "data": (4096, False),
        "version": 3,
    }


def test_plans_that_copy_once_meet_by_two_barriers(meeting):
    """A kernel before the copies and a kernel after; no stream operation."""

    def work(group):
        session = CudaSession(group)
        engine = Engine(session, "all_gather/one_shot", 16)
        given = engine.fill(1)
        group.exchange({})
        engine.launch(engine.x, engine.out, stream=1)
        session.synchronize(1)
        group.exchange({})
        answer = engine.right(given)
        session.close()
        return answer

    assert [True] * 3 == on_ranks(meeting, 3, work)
    assert 6 == len(meeting.launches)


@pytest.mark.parametrize("name", ["all_gather/ring", "broadcast/binomial"])
def test_what_is_passed_on_is_no_work_for_copy_engines(name):
    """Every rank says so alike, before anything is enqueued."""
    program = algorithms.get(name).build(4)
    plan = verify_plan(lower(verify(program), Schedule.parse(ENGINE)))

    assert "passes on what has come" in plan.why_not_on_engines()


HALVES = "pull bulk zero_copy copy:engine+push"


def test_halves_are_a_kernel_copies_and_a_barrier(fake):
    """In the order of the stream; peers get this rank's own output."""

    def work(group):
        session = CudaSession(group)
        kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
        session.load_call = lambda plan, call, **_: Loaded(None, 7, kernel)
        engine = Engine(session, "all_reduce/two_shot", 16, HALVES)
        view(engine.out)[:64] = 10 + group.rank  # as if the kernel had summed
        group.exchange({})
        engine.launch(engine.x, engine.out, stream=1)
        session.synchronize(1)
        group.exchange({})
        seen = [int(v) for v in view(engine.out)[:64:16]]
        session.close()
        return seen

    assert [[10, 11, 12, 13]] * 4 == on_ranks(fake, 4, work)
    assert 8 == len(fake.launches)
