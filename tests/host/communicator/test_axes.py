"""all_to_all along any axes is NumPy's split and concatenate."""

import itertools

import numpy as np
import pytest

import stretto
from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def work(comm):
    n, rng, wrong = comm.num_ranks, np.random.default_rng(0), []
    shape = (2 * n, 3 * n, n)
    xs = rng.integers(0, 99, (n, *shape)).astype(np.int32)
    for split, concat in itertools.product((0, 1, 2, -1), repeat=2):
        for out in (None, "out"):
            parts = [np.split(x, n, axis=split)[comm.rank] for x in xs]
            want = np.concatenate(parts, axis=concat)
            room = np.zeros(want.shape, np.int32) if out else None
            x = xs[comm.rank].copy()
            for _ in range(2):  # the second time it is known by its arrays
                got = comm.all_to_all(x, split=split, concat=concat, out=room)
                if not np.array_equal(want, got) or not (out is None or got is room):
                    wrong.append(f"{split} {concat} {out}")
    x = xs[comm.rank]
    for axes, options, said in (
        ((0, 3), {}, "concat=3; x has shape"),
        ((0, 1), {"out": x}, "overlaps x, with axes that move"),
    ):
        try:
            comm.all_to_all(x, split=axes[0], concat=axes[1], **options)
        except CallError as e:
            wrong += [] if said in str(e) else [str(e)]
        else:
            wrong.append(f"{said}: nothing raised")
    if n == 2:
        try:
            comm.all_to_all(x[:, :3], split=1)
        except CallError as e:
            wrong += [] if "its axis 1, 3, is not divisible" in str(e) else [str(e)]
        else:
            wrong.append("nothing raised")
    return wrong


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_any_two_axes(num_ranks):
    """Inner and outer, counted from the end, into new memory or given."""
    assert [[]] * num_ranks == stretto.spawn(work, num_ranks=num_ranks)
