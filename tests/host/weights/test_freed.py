"""Memory of what was closed is free at once, while engines go on."""

import gc
import weakref

import numpy as np
import pytest

from stretto import weights

pytestmark = [pytest.mark.host, pytest.mark.timeout(60)]
WAIT = 20


class Array(np.ndarray):
    """An array that can be referred to weakly, as tensors can."""


def array(value):
    return np.full((64, 8), value, np.float32).view(Array)


def once(source_engine, replica_engine, copies):
    """Switch once, close both, and return references to all that was given or made."""
    given, into = {"w": array(1)}, {"w": array(0)}
    with (
        weights.publish(source_engine, "policy", given, epoch="run") as source,
        weights.subscribe(
            replica_engine, "policy", into=into, copies=copies, patience=600
        ) as policy,
    ):
        push = source.push(1)
        policy.wait(timeout=WAIT)
        with policy.step(timeout=WAIT):
            assert (policy.tensors["w"] == 1).all()
        push.wait(WAIT)
        push.end()
        every = [source, policy, given["w"], into["w"]]
        return [weakref.ref(one) for one in every]


@pytest.mark.parametrize("copies", [1, 2])
def test_nothing_is_kept_of_what_was_closed(engines, copies):
    """No timer does, however long it has patience."""
    trainer = engines.engine("trainer")
    replica = engines.engine("replica", trainer)
    references = once(trainer, replica, copies)
    gc.collect()

    assert [None] * 4 == [reference() for reference in references]
