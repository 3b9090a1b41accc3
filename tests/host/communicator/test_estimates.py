"""What a call would take, asked without making it."""

from __future__ import annotations

import math

import numpy as np

import stretto
from stretto.errors import StrettoError

COUNTS = (1000, 100_000, 10_000_000)


def estimates(comm):
    """Return by collective and device what calls of three sizes would take."""
    return {
        (name, device): [comm.estimate(name, n, device=device) for n in COUNTS]
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                     "broadcast")
        for device in ("cpu", "cuda")
    }  # fmt: skip


def test_all_ranks_are_told_the_same_and_more_takes_longer():
    """Of GPUs as well, where there are none: the machine is assumed."""
    first, *others = stretto.spawn(estimates, num_ranks=3)

    assert others == [first] * 2
    for told in first.values():
        assert told == sorted(told)
        assert 0 < told[0] < told[-1] < math.inf


def by_name(comm):
    """Return what one sum would take by two algorithms."""
    return [
        comm.estimate("all_reduce", 1 << 20, algorithm=f"all_reduce/{name}")
        for name in ("one_shot", "two_shot")
    ]


def test_a_sum_takes_as_long_as_by_the_algorithm_that_is_named():
    """One shot brings every vector to every rank, two shots a part of each."""
    one_shot, two_shot = stretto.spawn(by_name, num_ranks=4)[0]

    assert one_shot > 1.3 * two_shot


ODD = (
    (("all_redcue", 4), {}, "all_reduce"),
    (("all_reduce", -1), {}, "count=-1"),
    (("all_reduce", 4, "float31"), {}, "float32"),
    (("all_reduce", np.zeros(3)), {}, "count"),
    (("all_reduce", 4), {"wire": "fp8_128"}, "estimate: wire='fp8_128'"),
)


def refused(comm):
    """Return what is said of questions that make no sense."""
    said = []
    for args, how, _ in ODD:
        try:
            said.append(f"answered: {comm.estimate(*args, **how)}")
        except StrettoError as e:
            said.append(str(e))
    return said


def test_what_makes_no_sense_is_refused():
    """In a sentence that says what is wanted."""
    said = stretto.spawn(refused, num_ranks=2)[0]

    for text, (_, _, want) in zip(said, ODD, strict=True):
        assert want in text
        assert "answered" not in text
