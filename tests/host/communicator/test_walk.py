"""A call's walk through the modules is short: docs/architecture.md draws it."""

import numpy as np
from tests.walks import returns, walk_of

import stretto


def walks(comm):
    """Return the walks of a call's first, of one on another layout, of a known one."""
    first, longer = np.ones(1000, np.float32), np.ones(1010, np.float32)
    comm.all_reduce(first)  # chooses for its size
    found = []
    for x in (longer, first.reshape(10, 100), first):
        comm.barrier()
        found.append(walk_of(lambda x=x: comm.all_reduce(x)))
    return found


def test_a_call_returns_to_few_modules_that_it_has_left():
    """At most half as often as when the rooms were one folder: 41, 18 and 0 times.

    A rank that waits for the other looks around, in modules that are not counted here.
    """
    both = stretto.spawn(walks, num_ranks=2)
    least = [min(map(returns, walk)) for walk in zip(*both, strict=True)]

    waits = "stretto.executors.cpu.faults"
    if all(one[0].count(waits) == 1 for one in both):
        assert least[0] <= 14, both[0][0]
    assert least[1] <= 9, both[0][1]
    assert 0 == least[2], both[0][2]
