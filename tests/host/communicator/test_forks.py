"""What a forked child has left: all that is the program's, and nothing of ranks."""

import gc
import os
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.errors import CommunicatorBroken
from stretto.runtime.calls import precompile
from stretto.runtime.calls.work import CallThread
from stretto.transfer import Engine


def files_after_a_fork(comm):
    """Close what there was, open files where its descriptors were, and fork."""
    closed = [comm, comm.split(0), Engine(f"forks-{os.getpid()}")]
    closed[1].all_reduce(np.ones(4, np.float32))
    for one in reversed(closed):
        one.close()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(n)).open("w+b") for n in range(64)]  # noqa: SIM115
        before = [os.fstat(file.fileno()).st_ino for file in files]
        gc.collect()
        child = os.fork()
        if not child:
            try:
                after = [os.fstat(file.fileno()).st_ino for file in files]
                os._exit(0 if before == after else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        for file in files:
            file.close()
    return os.waitstatus_to_exitcode(status), len(closed)


def test_a_child_keeps_the_programs_files():
    """Numbers of descriptors that ranks have given back are not closed once more."""
    assert [(0, 3)] * 2 == stretto.spawn(files_after_a_fork, num_ranks=2)


def calls_of_children(comm):
    """Make and close communicators again and again; in each a child calls."""
    codes = []
    for _ in range(20):
        part = comm.split(0)
        x = np.ones(4, np.float32)
        part.all_reduce(x)
        child = os.fork()
        if not child:
            try:
                part.all_reduce(x)
            except stretto.StrettoError as e:
                os._exit(0 if "forked" in str(e) else 1)
            finally:
                os._exit(2)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        part.all_reduce(x)
        assert [4.0] * 4 == x.tolist()
        part.close()
    return codes


def test_a_child_of_any_of_many_communicators_is_told():
    """Those that were closed before do not keep it from that, and say nothing."""
    assert [[0] * 20] * 2 == stretto.spawn(calls_of_children, num_ranks=2)


def told_in_a_child(do):
    """Return whether something is refused in a forked child, in words, at once."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            do()
        except stretto.StrettoError as e:
            os._exit(0 if "forked" in str(e) else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def started_calls_of_children(comm):
    """Start calls, and have children wait for them, and start others."""
    x = np.ones(4, np.float32)
    work = comm.all_reduce_async(x)
    work.wait()
    codes = [
        told_in_a_child(lambda: comm.all_reduce_async(x)),
        told_in_a_child(lambda: comm.all_reduce_async(x).wait()),
        told_in_a_child(lambda: comm.send_async(x, 1 - comm.rank)),
    ]
    comm.all_reduce_async(x).wait()
    assert [4.0] * 4 == x.tolist()
    return codes


def test_a_child_is_told_that_started_calls_are_its_parents():
    """It waits for no thread that it does not have."""
    assert [[0] * 3] * 2 == stretto.spawn(started_calls_of_children, num_ranks=2)


@pytest.mark.parametrize(
    "do",
    [
        lambda work: work.wait(),
        lambda work: work.wait(5),
        lambda work: work.is_done,
    ],
    ids=["wait", "wait for a while", "look"],
)
def test_a_child_is_told_of_a_call_that_is_under_way(do):
    """Whether it waits or looks; its parent waits on."""
    gate, worker = threading.Event(), CallThread("test", busy=bool)
    work = worker.start("all_reduce", gate.wait)
    assert 0 == told_in_a_child(lambda: do(work))
    with pytest.raises(CommunicatorBroken, match="forked"):
        raise_in_a_child_of(worker)
    gate.set()
    assert work.wait(10)
    worker.stop()


def raise_in_a_child_of(worker):
    """Raise what a child would be told."""
    before = worker._refusal
    worker.forget()
    try:
        worker.start("another", int)
    finally:
        worker._refusal = before


def test_a_child_ends_no_process_of_its_parents():
    """What compiles ahead goes on when a child comes to its exit hooks."""

    class Compiling:
        """Stands for a process."""

        def kill(self):
            raise AssertionError("it is its parent's")

        wait = kill

    precompile._running[99] = Compiling()
    try:
        child = os.fork()
        if not child:
            try:
                precompile._end()
                os._exit(0)
            finally:
                os._exit(1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        del precompile._running[99]
