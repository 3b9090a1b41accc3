"""Tensors as they lie: with gaps, over one another, read-only, in another order."""

import numpy as np
import pytest

from stretto.errors import CallError

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]


def fixed():
    made = np.zeros((4, 4), np.float32)
    made.flags.writeable = False
    return made


FIXED = {
    "read-only": fixed,
    "of one row": lambda: np.lib.stride_tricks.as_strided(
        np.zeros(4, np.float32), (4, 4), (0, 4)
    ),
    "of rows that overlap": lambda: np.lib.stride_tricks.as_strided(
        np.zeros(16, np.float32), (4, 4), (8, 4)
    ),
    "in another order of bytes": lambda: np.zeros((4, 4), ">f4"),
    "expanded": lambda: pytest.importorskip("torch").zeros(4).expand(4, 4),
}


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("what", FIXED)
def test_tensors_that_no_version_can_be_written_to_are_refused(engines, what, copies):
    """At once, also where the first version comes into a second copy."""
    with pytest.raises(CallError, match="'w': "):
        engines.replica({"w": FIXED[what]()}, copies=copies)


def test_tensors_with_gaps_are_written(engines):
    """Every element in its own place, whatever lies between."""
    into = {"w": np.zeros((8, 8), np.float32)[::2, ::2], "v": np.zeros((4, 1)).T}
    theirs = {"w": np.arange(16, dtype=np.float32).reshape(4, 4), "v": np.ones((1, 4))}
    policy = engines.replica(into, copies=1)
    source = engines.source(theirs, policy.engine)
    source.push()
    policy.wait(timeout=30)
    with policy.step():
        assert all(np.array_equal(into[name], theirs[name]) for name in theirs)


def test_a_source_in_another_order_of_bytes_is_refused(engines):
    """Its elements would be read as others."""
    with pytest.raises(CallError, match="another order"):
        engines.source({"w": np.ones(4, ">f4")})


def test_an_engine_refuses_bytes_in_another_order(engines):
    """What peers get, and what they put, would be other elements."""
    there = engines.engine("there")
    there.share(np.zeros(4, np.float32), "x")
    here = engines.engine("here", there)
    swapped = np.ones(4, ">f4")
    view = here.connect(there.name).wait(30)["x"]
    for call in (lambda: there.share(swapped, "y"), lambda: view.put(swapped),
                 lambda: view.get(swapped)):  # fmt: skip
        with pytest.raises(CallError, match="another order"):
            call()
