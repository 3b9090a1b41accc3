"""A call's walk through the modules is short: docs/architecture.md draws it."""

import numpy as np
from tests.walks import returns, walk_of

import stretto

TRIES = 6
"""First calls, each of a count of its own."""


def walks(comm):
    """Return walks of first calls, of one on another layout, and of a known one."""
    first = np.ones(1000, np.float32)
    comm.all_reduce(first)  # chooses for its size
    firsts = [np.ones(1010 + 10 * i, np.float32) for i in range(TRIES)]
    found = []
    for x in (*firsts, first.reshape(10, 100), first):
        comm.barrier()
        found.append(walk_of(lambda x=x: comm.all_reduce(x)))
    return found[:TRIES], found[TRIES], found[-1]


def test_a_call_returns_to_few_modules_that_it_has_left():
    """When the rooms were one folder it was 41, 18 and 0 times.

    A rank that waits for the other looks around, in modules that are not part of the
    walk: so there are several first calls, and the shortest counts.
    """
    both = stretto.spawn(walks, num_ranks=2)
    first = min(returns(walk) for firsts, _, _ in both for walk in firsts)
    like_one, known = (min(returns(one[i]) for one in both) for i in (1, 2))

    assert 0 < first <= 6, both[0][0]
    assert like_one <= 2, both[0][1]
    assert 0 == known, both[0][2]
