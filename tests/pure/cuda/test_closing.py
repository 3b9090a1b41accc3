"""Epochs in which nothing is moved are closed by signals."""

from __future__ import annotations

import pytest
from cuda_fakes import on_ranks

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule, Signal, Wait
from stretto.compiler.verify import verify, verify_plan
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.program import algorithms
from stretto.program.collectives import Operator


def proved(name, ranks, words):
    """Return a proved plan."""
    program = algorithms.get(name).build(ranks)
    return verify_plan(lower(verify(program), Schedule.parse(words)))


NAMES = [
    name
    for name in algorithms.names()
    if not name.startswith(("permute", "barrier"))
    and algorithms.get(name).refuses(3) is None
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", ["push packets staged", "packets copy:bulk"])
def test_closed_plans_keep_every_promise(name, words):
    """They are proved as all plans are; signals and waits still match."""
    plan = proved(name, 3, words).closed()

    verify_plan(plan.value)


def test_without_packets_each_rank_hears_from_all_by_signals():
    """Take away what packets say: every rank waits for an entry of every other."""
    plan = proved("all_gather/ring", 4, "push packets staged").closed().value
    for rank, (steps,) in enumerate(plan.ranks):
        others = set(range(4)) - {rank}
        assert others == {s.rank for s in steps if isinstance(s, Signal)}
        assert others == {s.rank for s in steps if isinstance(s, Wait)}
        assert all(isinstance(s, Signal) for s in steps[:3])
        assert all(isinstance(s, Wait) for s in steps[-3:])


def test_plans_of_signals_alone_stay_as_they_are():
    """They were proved closed by signals that are sent whatever there is to move."""
    plan = proved("all_gather/ring", 4, "push bulk staged")

    assert plan.closed() is plan


@pytest.mark.parametrize(("count", "tiles", "steps"), [(64, 1, 2), (1 << 20, 8, 4)])
def test_sessions_close_calls_of_several_tiles(fake, count, tiles, steps):
    """A call of one tile needs only the roll call, and pays for no signal."""
    words = "push packets staged blocks=1 tile_bytes=524288"

    def work(group):
        session = CudaSession(group)
        seen = []

        def load(plan, call, **_):
            seen.append(plan)
            return Loaded(None, 5, Kernel(text="any", ranks=(0,), grid=1, threads=64))

        session.load_call = load
        call = Call(dtype="float32", op=Operator.SUM, counts=(count,))
        launch = session.prepare(proved("all_reduce/one_shot", 2, words), call)
        session.close()
        (plan,) = seen
        return launch.parts[0].where.tiles, len(plan.plan.ranks[group.rank][0])

    assert [(tiles, steps)] * 2 == on_ranks(fake, 2, work)
