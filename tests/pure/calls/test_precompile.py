"""Kernels compiled before anybody calls: which, once, and only as long as wanted."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stretto import executors
from stretto.program.collectives import Operator
from stretto.runtime.calls import precompile
from stretto.runtime.calls.precompile import compile_usual, usual_calls
from stretto.runtime.choice.question import STAGED, Question, dtype_class
from stretto.runtime.choice.selector import Selector


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Return what is compiled: nothing is, and the cache is empty."""
    found = []
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STRETTO_PROFILES", str(tmp_path))
    cuda = executors.get("cuda")
    monkeypatch.setattr(
        cuda,
        "warm",
        lambda plan, call, *, rank, arch: {
            f"{plan.value.digest} {call.dtype} {call.op} {rank}": lambda: found.append(
                (plan.value.digest, call.dtype, call.op, rank, arch)
            )
        },
    )
    monkeypatch.setattr(cuda, "toolchain", lambda: "of a test")
    return found


def test_every_rank_has_every_kernel_once(asked):
    """A second process finds that all was done; other GPUs are other kernels."""
    made = compile_usual(2, (9, 0), pool=ThreadPoolExecutor, workers=2)

    assert made.is_whole
    assert len(set(asked)) == len(asked) == made.kernels
    assert {0, 1} == {rank for *_, rank, _ in asked}
    assert 0 == compile_usual(2, (9, 0), pool=ThreadPoolExecutor).kernels
    assert made.kernels == compile_usual(2, (10, 0), pool=ThreadPoolExecutor).kernels


def test_what_is_compiled_is_what_calls_are_served_by(asked):
    """An all_reduce of any usual size finds its plan among them."""
    known = {(p.value.schedule, call.dtype, call.op) for p, call in usual_calls(4)}
    for nbytes in (8, 5000, 1 << 17, 3 << 20, 25 << 20, 200 << 20):
        for dtype in ("float32", "bfloat16"):
            wanted = Question(
                executor="cuda",
                collective="all_reduce",
                num_ranks=4,
                nbytes=nbytes,
                memory=STAGED,
                in_place=True,
                dtypes=dtype_class(dtype),
            )
            found = Selector("cuda").choose(wanted)
            assert (found.schedule, dtype, Operator.SUM) in known


def test_it_ends_when_nobody_wants_it_any_more(asked):
    """What was cut short is not taken for done."""
    looks = iter([True, True])
    made = compile_usual(
        2, (9, 0), pool=ThreadPoolExecutor, go_on=lambda: next(looks, False)
    )

    assert not made.is_whole
    assert len(asked) <= made.kernels
    whole = compile_usual(2, (9, 0), pool=ThreadPoolExecutor)
    assert whole.is_whole
    assert made.kernels < whole.kernels


def test_a_process_of_its_own_is_started_once(monkeypatch):
    """For each number of ranks that can be a group; not where it is switched off."""
    started = []

    class Popen:
        def __init__(self, command, **_):
            started.append(command[command.index("--ranks") + 1])

        def terminate(self):
            started.append("ended")

        def wait(self, within_s):
            started.append("ended")

    monkeypatch.setattr(precompile.subprocess, "Popen", Popen)
    monkeypatch.setattr(precompile, "_running", {})
    monkeypatch.delenv(precompile.SWITCH, raising=False)
    for ranks in (1, 2, 2, 4):
        precompile.start_precompiling(ranks)
    monkeypatch.setenv(precompile.SWITCH, "0")
    precompile.start_precompiling(8)
    precompile._end()

    assert ["2", "4", *["ended"] * 4] == started


def test_workers_are_processes_that_end_with_the_one_that_began():
    """Also where that is killed: nobody is left to compile for nobody."""
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as work:
        workers = [int(word) for word in work.stdout.readline().split()]
        work.kill()
    until = time.monotonic() + 20
    while any(map(runs, workers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert 2 == len(set(workers))
    assert [] == [pid for pid in workers if runs(pid)]


def runs(pid):
    """Return whether a process is there and has not ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return words[0] not in ("Z", "X")


KILLED = """
import os, time
from stretto.runtime.calls.precompile import in_processes

def who(_):
    time.sleep(0.3)
    return os.getpid()

with in_processes(2) as pool:
    print(*set(pool.map(who, range(2))), flush=True)
    list(pool.map(time.sleep, [60, 60]))
"""
