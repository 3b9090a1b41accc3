"""The thread that looks after a session: it does not end of what it meets."""

from __future__ import annotations

import threading
import time

import pytest
from cuda_fakes import on_ranks

from stretto.errors import CollectiveTimeout, DeviceError
from stretto.executors.cuda import watch as watch_module
from stretto.executors.cuda.session import CudaSession


def faulty(session):
    """Return the session's fault, once its thread has found one."""
    stop_at = time.monotonic() + 5
    while session.watch.fault is None and time.monotonic() < stop_at:
        time.sleep(0.005)
    return session.watch.fault


def test_what_the_thread_meets_is_raised_by_the_next_call(fake):
    """It would have ended in silence, and nobody would have read the record."""

    def work(group):
        session = CudaSession(group)
        group.exchange({})
        if group.rank == 0:

            def refuse():
                raise DeviceError("cuMemcpyDtoHAsync: the fake refuses")

            session.watch._notice = refuse
        assert faulty(session) is not None
        with pytest.raises(CollectiveTimeout) as caught:
            session.check()
        alive = session.watch._thread.is_alive()
        group.exchange({})
        session.close()
        return alive, str(caught.value)

    for alive, said in on_ranks(fake, 2, work):
        assert alive
        assert "rank 0, looking after its GPU: cuMemcpyDtoHAsync" in said


def test_the_thread_keeps_out_of_captures(fake, monkeypatch):
    """What it asks would spoil a graph that another thread captures."""
    relaxed, plain = [], fake.cuThreadExchangeStreamCaptureMode

    def note(mode):
        relaxed.append((threading.current_thread().name, int(mode)))
        return plain(mode)

    monkeypatch.setattr(fake, "cuThreadExchangeStreamCaptureMode", note, raising=False)

    def work(group):
        session = CudaSession(group)
        stop_at = time.monotonic() + 5
        while not relaxed and time.monotonic() < stop_at:
            time.sleep(0.005)
        session.close()

    on_ranks(fake, 1, work)
    mode = fake.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert ("stretto-watch-0", int(mode)) in relaxed


def test_plans_are_remembered_up_to_a_number(fake, monkeypatch):
    """Those known for longest are forgotten: a record then tells numbers."""
    monkeypatch.setattr(watch_module, "MOST_PLANS", 3)

    def work(group):
        watch = CudaSession(group).watch
        for mark in (1, 2, 3, 1, 4, 5):
            watch.know(mark, f"plan {mark}")
        known = list(watch._plans)
        watch.close()
        return known

    assert [[3, 4, 5]] == on_ranks(fake, 1, work)
