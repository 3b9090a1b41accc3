"""What a forked child has left: all that is the program's, and nothing of ranks."""

import gc
import os
import tempfile
from pathlib import Path

import numpy as np

import stretto
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
