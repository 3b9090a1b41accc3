"""A call names an algorithm of its own collective in short, as `Options` does."""

import numpy as np
import pytest

import stretto
from stretto.program import algorithms

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
ROOTED = {"broadcast", "reduce", "scatter", "gather"}


def calls(comm, collective, pin):
    """Return what a verb gives by an algorithm, and what explains it."""
    n, x = comm.num_ranks, np.arange(8, dtype=np.float32)
    counts = {"all_to_all": (8 // n,) * n**2, "all_gather": (8,) * n}
    more = {"root": 0} if collective in ROOTED else {}
    if collective in ("reduce_scatter", "scatter"):
        more["out"] = np.zeros(8 // n, np.float32)
    found = [getattr(comm, collective)(x.copy(), algorithm=pin, **more)]
    if unequal := getattr(comm, f"{collective}_v", None):
        given = (counts.get(collective, (8 // n,) * n),)
        if collective == "all_to_all":
            more["out"] = np.zeros(8, np.float32)
        if collective == "gather":
            given = ((8,) * n,)
        found.append(unequal(x.copy(), *given, algorithm=pin, **more))
    root = {"root": 0} if collective in ROOTED else {}
    found.append(comm.explain(collective, 8, "float32", algorithm=pin, **root))
    return found


def spelt(comm):
    """Return what differs between a name in full and in short."""
    different = []
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                       *sorted(ROOTED)):  # fmt: skip
        for one in algorithms.of(collective, comm.num_ranks):
            short = one.name.partition("/")[2]
            if one.members or one.knows_hosts or one.kernel is not None:
                continue
            for pin in (lambda name: name, lambda name: (name, "push packets")):
                pair = [calls(comm, collective, pin(n)) for n in (one.name, short)]
                if not all(map(np.array_equal, *pair)):
                    different.append(pin(short))
    try:
        comm.all_reduce(np.zeros(4), algorithm="rng")
    except stretto.UnknownNameError as e:
        return different, str(e)
    return different, ""


def test_a_name_in_short_is_that_of_the_calls_collective():
    """Of every verb, with words of a schedule, too; an unknown one hears of its own."""
    for different, said in stretto.spawn(spelt, num_ranks=2):
        assert [] == different
        assert "all_reduce/ring" in said
