"""Sessions whose ranks are on two hosts, over a driver made of host memory."""

from __future__ import annotations

import time

import pytest
from cuda_fakes import on_ranks

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CallError, PlanError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.hosts.way import _listed
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import PARAMS
from stretto.program import algorithms

pytest.importorskip("numba")
HOSTS = (0, 0, 1)


def proved(name, words, hosts=HOSTS, **params):
    """Return a proved plan for ranks on these hosts."""
    program = verify(algorithms.get(name).build(len(HOSTS), **params))
    plan = lower(program, Schedule.parse(words), in_place=False, hosts=hosts)
    return verify_plan(plan, program)


def opened(group):
    """Return a session of a rank on its host."""
    group.hosts, group.secret, group.towards = HOSTS, b"s" * 32, "127.0.0.1"
    session = CudaSession(group)
    kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
    session.load_call = lambda *_, **__: Loaded(None, 7, kernel)
    return session


def test_only_ranks_of_this_host_are_mapped(fake):
    """What is empty() here is plain memory: far ranks reach nothing of it."""

    def work(group):
        session = opened(group)
        mine = session.empty((100,), "uint8")
        found = [bool(base) for base in session.slab.peers]
        offset = session.offset(mine), session.offset_at(mine.pointer, 1)
        registered = session.register(mine)
        with pytest.raises(CallError, match=r"channels reach ranks of one host"):
            session.channels(1024)
        group.exchange({})
        session.close()
        return found, offset, registered

    near, far = [True, True, False], [False, False, True]
    wanted = [(one, (None, None), False) for one in (near, near, far)]
    assert wanted == on_ranks(fake, 3, work)


def test_parameters_name_mirrors_of_far_ranks_and_nothing_else_of_them(fake):
    """Every set of flags has mirrors, an inbox and a ring of its own."""

    def work(group):
        session = opened(group)
        call = Call(dtype="float32", counts=(100,))
        plan = proved("all_reduce/one_shot", "push packets staged")
        (part,) = session.prepare(plan, call).parts
        heads = [
            part.packed(r)[: PARAMS.itemsize].view(PARAMS)[0] for r in session.regions
        ]
        far = session.far.far_ranks
        for head, region in zip(heads, session.regions, strict=True):
            for q in range(3):
                mapped = session.slab.peers[q]
                assert bool(head["control"][q]) is bool(mapped)
                assert bool(head["packets"][q]) is bool(mapped)
                stage = mapped + region.stage
                if q in far:
                    stage = session.far.mirrors(region)[q]
                assert stage == int(head["stage"][q])
        apart = {int(h[k]) for h in heads for k in ("far", "inbox", "ring")}
        group.exchange({})
        session.close()
        return len(apart) == 3 * len(heads)

    assert [True] * 3 == on_ranks(fake, 3, work)


def test_a_plan_for_other_hosts_is_refused_and_so_are_copy_engines(fake):
    """Before anything is compiled, with what to do."""

    def work(group):
        session = opened(group)
        call = Call(dtype="float32", counts=(100,))
        plan = proved("all_reduce/one_shot", "push packets staged", hosts=())
        with pytest.raises(CallError, match=r"in one; .*\(0, 0, 1\): lower it with"):
            session.prepare(plan, call)
        group.exchange({})
        session.close()

    on_ranks(fake, 3, work)


def test_what_is_asked_for_before_a_session_closes_is_sent(fake):
    """The thread ends when its rings are empty; the other end has the word."""

    def work(group):
        session = opened(group)
        far = session.far
        slot = far.layout.ring(0) // 8 + 8
        if group.rank == 2:
            far._pinned.words[slot + 1 : slot + 6] = 0, 0, 0, 128, 5
            far._pinned.words[slot] = 1
            far.close()
        group.exchange({})
        if group.rank == 0:
            for _ in range(1000):
                if far._pinned.words[128 // 8] == 5:
                    break
                time.sleep(0.005)
        group.exchange({})
        seen = int(far._pinned.words[128 // 8]) if group.rank == 0 else 5
        session.close()
        return seen

    assert [5, 5, 5] == on_ranks(fake, 3, work)


def test_lists_of_cores_are_read():
    """As the system writes them."""
    assert {0, 1, 2, 8, 10, 11} == _listed("0-2,8,10-11\n")


def test_a_unit_that_hosts_share_is_refused_by_the_generator():
    """A pulled unit of another rank that a third host fills is in no memory of ours."""
    from stretto.compiler.plan import Loc, Move, Space
    from stretto.executors.cuda.codegen.far import FarPuts
    from stretto.executors.cuda.codegen.operands import Operands

    plan = proved("all_reduce/one_shot", "push packets staged").value
    puts = FarPuts(plan, 0, Operands(plan))
    move = Move((Loc(2, Space.OUTPUT, 0),), (Loc(0, Space.INPUT, 0),), 0, 1)
    with pytest.raises(PlanError, match="want plain data in its staging"):
        puts.note(move, 0)
