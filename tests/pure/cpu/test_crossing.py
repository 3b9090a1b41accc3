"""Which plans leave an output's own part alone, so that the input may lie there."""

from dataclasses import replace

import pytest

from stretto.compiler.lower import lower
from stretto.compiler.plan import Move, Schedule, Space
from stretto.compiler.verify import verify
from stretto.executors.cpu.running.crossing import keeps_own
from stretto.program import algorithms


def plan_of(name, num_ranks, words="pull bulk across", **params):
    """Return a plan that peers copy across in."""
    program = algorithms.get(name).build(num_ranks, **params)
    return lower(verify(program), Schedule.parse(words))


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_one_copy_each_keeps_it(num_ranks):
    """On every rank that has an output; of a broadcast, on the root."""
    for rank in range(num_ranks):
        assert keeps_own(plan_of("all_gather/one_shot", num_ranks), rank)
        assert keeps_own(plan_of("broadcast/flat", num_ranks, root=rank), rank)
        assert keeps_own(plan_of("gather/flat", num_ranks, root=rank), rank)


def test_what_passes_through_it_does_not():
    """A plan with one more move, of another's data, over any part of it."""
    plan = plan_of("all_gather/one_shot", 3)
    moves = [s for q, _, _, s in plan.steps() if q == 1 and isinstance(s, Move)]
    own = next(m for m in moves if m.srcs[0] == (1, Space.INPUT, 0, False))
    other = next(m for m in moves if m.srcs[0].rank == 2)
    for wrong in (
        other._replace(dsts=own.dsts),
        own._replace(dsts=(own.dsts[0]._replace(pos=own.dsts[0].pos + 1),)),
    ):
        lanes = [list(lane) for lane in plan.ranks[1]]
        lanes[0].append(wrong)
        ranks = list(plan.ranks)
        ranks[1] = tuple(map(tuple, lanes))
        assert not keeps_own(replace(plan, ranks=tuple(ranks)), 1)
    assert keeps_own(plan, 1)
