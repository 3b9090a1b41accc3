"""A snapshot is read while it is made: what of it comes, and what when it does not."""

import threading

import numpy as np
import pytest
from tests.waiting import until

from stretto.errors import TransferError
from stretto.weights import pulling
from stretto.weights.copies import Copy
from stretto.weights.pulling import Puller

pytestmark = [pytest.mark.host, pytest.mark.timeout(120)]
WAIT = 30
HALF = 8 * 64 * 4


def tensors(value=0.0):
    """Return two tensors, which are read in sixteen pieces."""
    return {name: np.full((8, 64), value, np.float32) for name in ("v", "w")}


class Held:
    """Keeps a source between the first of its parts and the second, until let go."""

    def __init__(self, monkeypatch):
        self.is_armed, self.is_here, self.may_go = False, False, threading.Event()
        self.error = None
        inner = Copy.add

        def add(copy, far):
            is_second = copy._added == 1 and copy.tag in ("snap", "live")
            if self.is_armed and is_second:
                self.is_here = True
                assert self.may_go.wait(WAIT)
                if self.error is not None:
                    raise self.error
            inner(copy, far)

        monkeypatch.setattr(Copy, "add", add)

    def push(self, source, **how):
        """Begin a push, which stops after its first part; return its thread."""
        self.is_armed, self.raised = True, None

        def run():
            try:
                source.push(**how)
            except TransferError as e:
                self.raised = e

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: self.is_here)
        return thread

    def go(self, thread, error=None):
        """Let it go on, or fail."""
        self.is_armed, self.error = False, error
        self.may_go.set()
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.fixture
def held(monkeypatch):
    """Return what keeps a source, whose replicas read pieces of 64 floats."""
    monkeypatch.setattr(pulling, "_LEAST_PIECE", 64 * 4)
    monkeypatch.setattr(Puller, "_most", lambda self, pairs: self._far)
    return Held(monkeypatch)


def pair(engines, **how):
    """Return a source that has pushed a version of ones, and a replica that has it."""
    ours = tensors(1.0)
    source = engines.source(ours)
    policy = engines.replica(tensors(), source.engine, **how)
    source.push(wait=True, timeout=WAIT)
    for array in ours.values():
        array[...] = 2.0
    return source, policy


def far(policy):
    """Return how far what comes to a replica has come."""
    return max((copy._far for copy in policy.copies if copy.coming), default=0)


def steps_with(policy, value):
    """Whether a step reads nothing but one value."""
    with policy.step(timeout=WAIT):
        return all((array == value).all() for array in policy.tensors.values())


def test_a_snapshot_is_read_while_it_is_made(engines, held):
    """So far as it is; the replica switches when all has come, and its sums."""
    source, policy = pair(engines)
    thread = held.push(source)
    until(lambda: far(policy) == HALF)

    assert steps_with(policy, 1.0)
    held.go(thread)
    policy.wait(1, timeout=WAIT)
    assert steps_with(policy, 2.0)


def test_tensors_in_place_are_read_before_their_sums_are_known(engines, held):
    """All of them has come then, and nobody switches."""
    source, policy = pair(engines)
    thread = held.push(source, in_place=True)
    until(lambda: policy._lead._reports)

    assert policy.version.counter == 0
    assert steps_with(policy, 1.0)
    held.go(thread)
    policy.wait(1, timeout=WAIT)
    assert steps_with(policy, 2.0)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_push_that_fails_says_so_to_who_reads(engines, held, copies):
    """At once; the next one is as good as ever."""
    source, policy = pair(engines, copies=copies)
    thread = held.push(source)
    until(lambda: far(policy) == HALF)
    held.go(thread, TransferError("no memory"))
    assert "no memory" in str(held.raised)
    until(lambda: policy.fault is not None, 10)

    assert policy.version.counter == 0
    if copies == 1:
        with pytest.raises(TransferError, match="half a version in it"):
            steps_with(policy, 1.0)
    else:
        assert steps_with(policy, 1.0)
    held.error = None
    source.push(wait=True, timeout=WAIT)
    assert steps_with(policy, 2.0)


def test_a_source_that_leaves_in_a_push_is_not_waited_for(engines, held):
    """The old version stays, and is stepped with."""
    source, policy = pair(engines)
    thread = held.push(source)
    until(lambda: far(policy) == HALF)
    source.engine.close()
    until(lambda: policy.fault is not None, 10)

    assert steps_with(policy, 1.0)
    held.go(thread, TransferError("closed"))
