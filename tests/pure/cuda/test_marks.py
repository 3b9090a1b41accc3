"""Marks in streams: what a started call leaves behind."""

from __future__ import annotations

import pytest
from cuda_fakes import on_ranks

from stretto.executors.cuda.device import mark as mark_module
from stretto.executors.cuda.session import CudaSession


@pytest.fixture
def current(monkeypatch):
    """Return the current stream, as a list of one."""
    handle = [3]
    monkeypatch.setattr(mark_module, "current_stream", lambda ordinal: handle[0])
    return handle


def test_a_stream_that_follows_waits_for_what_was_enqueued(fake, current):
    """The marked stream is held up by a wait; the follower is, too, and its copies."""

    def work(group):
        session = CudaSession(group)
        held = [False]
        fake._enqueue(7, lambda: held[0])
        mark = session.mark(7)
        mark.follow()
        done = []
        fake._enqueue(3, lambda: done.append(1) or True)
        before = mark.is_reached, list(done)
        held[0] = True
        session.synchronize(3)
        after = mark.is_reached, list(done)
        session.close()
        return before, after

    assert [((False, []), (True, [1]))] == on_ranks(fake, 1, work)


def test_a_stream_does_not_wait_for_itself(fake, current):
    """What follows on the marked stream follows anyway."""
    waited = []
    fake.cuStreamWaitEvent = lambda *args: waited.append(args) or (0,)

    def work(group):
        session = CudaSession(group)
        session.mark(3).follow()
        session.close()

    on_ranks(fake, 1, work)
    assert not waited
