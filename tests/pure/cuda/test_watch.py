"""The thread that looks after a session: it does not end of what it meets."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest
from cuda_fakes import OK, on_ranks

from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import CollectiveMismatch, CollectiveTimeout, DeviceError
from stretto.executors import Call
from stretto.executors.cuda.codegen.abi import Kernel
from stretto.executors.cuda.flags import watch as watch_module
from stretto.executors.cuda.launching.kernels import Loaded
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import CONTROL, RECORD
from stretto.program import algorithms


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


def word(address):
    """Return a word of memory that a kernel would read."""
    return ctypes.c_uint64.from_address(address).value


def leave(session):
    """Return the word in host memory that lets kernels leave."""
    return word(session.watch.record + RECORD.fields["leave"][1])


def soon(condition):
    """Return whether something comes true in a second."""
    stop_at = time.monotonic() + 1
    while not condition() and time.monotonic() < stop_at:
        time.sleep(0.005)
    return condition()


def broken(session):
    """Return the broken words of all sets of flags."""
    first = session.slab.base + CONTROL["broken"]
    return [word(first + region.control) for region in session.regions]


def test_when_the_group_breaks_every_kernel_may_leave(fake):
    """By a word of each set of flags, and by one in host memory."""

    def work(group):
        session = CudaSession(group)
        before = leave(session), broken(session)
        group.exchange({})
        if group.rank == 0:
            group.broken[0] = 1  # as the meeting does when a rank was lost
        found = soon(lambda: leave(session) == 1 and all(broken(session)))
        group.exchange({})
        session.close()
        return before, found

    assert [((0, [0, 0]), True)] * 2 == on_ranks(fake, 2, work)


def test_the_host_needs_no_driver_to_let_kernels_leave(fake, monkeypatch):
    """A driver that is full of launches takes nothing before one of them ends."""
    stuck = threading.Event()
    monkeypatch.setattr(
        fake, "cuStreamWriteValue32", lambda *_: (OK,) * stuck.wait(20), raising=False
    )

    def work(group):
        session = CudaSession(group)
        group.broken[0] = 1
        found = soon(lambda: leave(session) == 1)
        stuck.set()
        session.close()
        return found

    assert [True] == on_ranks(fake, 1, work)


def test_a_fault_that_a_call_has_found_lets_all_sets_of_flags_go(fake):
    """The kernel that gave up broke its own set; others wait in theirs."""

    def work(group):
        session = CudaSession(group)
        record = np.zeros(1, RECORD)
        record["kind"], record["absent"], record["peer"] = 1, 2, 1
        record["state"] = 2
        with session.watch._lock:  # the thread finds that a call has read it
            ctypes.memmove(session.watch.record, record.tobytes(), RECORD.itemsize)
            session.watch.fault = session.watch._read()
        found = soon(lambda: all(broken(session)))
        session.close()
        return found

    assert [True] == on_ranks(fake, 1, work)


def called(session, count, schedule="push packets staged", **more):
    """Prepare an all_reduce of so many numbers; return its fingerprint."""
    kernel = Kernel(text="any", ranks=(0,), grid=1, threads=64)
    session.load_call = lambda plan, call, **_: Loaded(None, 5, kernel)
    program = algorithms.get("all_reduce/one_shot").build(session.group.num_ranks)
    plan = lower(verify(program), Schedule.parse(schedule))
    call = Call(dtype="float32", counts=(count,), **more)
    return session.prepare(verify_plan(plan), call).parts[0].name.fingerprint


@pytest.mark.parametrize("told", [False, True])
def test_a_mismatch_names_every_call_with_its_size(fake, told):
    """Rank 2 called something else; it may only have been told that somebody did."""

    def work(group):
        session = CudaSession(group)
        record = np.zeros(1, RECORD)
        odd = group.rank == 2
        record["fingerprint"] = called(session, 1001 if odd else 1000)
        record["kind"], record["differ"] = 2, 0b011 if odd else 0b100
        record["rank"], record["state"] = group.rank, 2
        if told and odd:
            record["kind"], record["got"], record["peer"] = 3, 2 << 48, 0
        group.exchange({})
        if odd:
            time.sleep(0.1)
        ctypes.memmove(session.watch.record, record.tobytes(), RECORD.itemsize)
        with pytest.raises(CollectiveMismatch) as caught:
            session.check()
        group.exchange({})
        session.close()
        return str(caught.value)

    for text in on_ranks(fake, 3, work):
        for rank, count in ((0, 1000), (1, 1000), (2, 1001)):
            assert f"rank {rank} called all_reduce of {count} float32 op=sum" in text


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_who_started_what_others_wait_for_is_told_so(fake, told, alike):
    """Their flags lie elsewhere, so that all are late; those alike are just late."""

    def work(group):
        session = CudaSession(group)
        record = np.zeros(1, RECORD)
        how = {}
        if not alike and not group.rank:
            how = {"schedule": "push bulk staged", "beside": True}
        record["fingerprint"] = called(session, 1000, **how)
        record["kind"], record["absent"] = 1, 0b01 if group.rank else 0b10
        record["rank"], record["state"] = group.rank, 2
        if told and group.rank:
            record["kind"], record["got"], record["peer"] = 3, 1 << 48, 0
        group.exchange({})
        ctypes.memmove(session.watch.record, record.tobytes(), RECORD.itemsize)
        with pytest.raises((CollectiveMismatch, CollectiveTimeout)) as caught:
            session.check()
        group.exchange({})
        session.close()
        return type(caught.value), str(caught.value)

    for kind, text in on_ranks(fake, 2, work):
        assert (CollectiveTimeout if alike else CollectiveMismatch) is kind
        assert alike != ("ranks [0] started it and ranks [1] wait for it" in text)
        assert alike != ("of 1000 float32 op=sum, started beside compute," in text)


def test_a_mismatch_of_places_says_where_arrays_lie(fake):
    """Peers reach registered memory by its offset; equal calls may differ in it."""

    def work(group):
        watch = CudaSession(group).watch
        watch.name(7, "all_gather of 5 int8")
        watch.know(8, None, 7, (64, None))
        said = watch.called(8), watch.called(7), watch.called(9)
        watch.close()
        return said

    ((mixed, plain, unknown),) = on_ranks(fake, 1, work)

    assert mixed == "all_gather of 5 int8 in registered memory at 0x40 and nowhere"
    assert plain == "all_gather of 5 int8"
    assert unknown == "a call that left no name (fingerprint 0x9)"
