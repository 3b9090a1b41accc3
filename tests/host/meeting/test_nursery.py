"""Ranks that a process of ours forks, where they exceed cores: as fresh as others."""

from __future__ import annotations

import atexit
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.waiting import until

import stretto
from stretto.errors import RankFailed
from stretto.fabric.meeting.launching import launch, nursery

pytestmark = [pytest.mark.host, pytest.mark.fresh, pytest.mark.timeout(90)]
RANKS = 3


@pytest.fixture(autouse=True)
def few_cores(monkeypatch):
    """Have ranks exceed cores, however many there are."""
    monkeypatch.setattr(launch, "exceed_cores", lambda num_ranks: True)


def who(comm):
    """Return what tells a rank from the others, and from this process."""
    drawn = random.random(), float(np.random.rand())  # noqa: NPY002  users do
    x = comm.all_reduce(np.array([comm.rank + 1.0]))[0]
    loaded = "of_the_callers" in sys.modules
    return os.getpid(), os.getppid(), os.environ["LOCAL_RANK"], drawn, x, loaded


def test_ranks_are_processes_of_their_own(monkeypatch):
    """Each draws its own numbers, and has nothing of the caller's."""
    monkeypatch.setitem(sys.modules, "of_the_callers", stretto)
    said = stretto.spawn(who, num_ranks=RANKS)

    pids, parents, local, drawn, sums, loaded = map(list, zip(*said, strict=True))
    assert len({*pids, os.getpid()}) == RANKS + 1
    assert len({*parents}) == 1
    assert parents[0] != os.getpid()
    assert local == [str(r) for r in range(RANKS)]
    assert len({one for one, _ in drawn}) == len({two for _, two in drawn}) == RANKS
    assert sums == [6.0] * RANKS
    assert not any(loaded)


def ends_oddly(comm, how):
    """End otherwise than by a return."""
    if comm.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises":
            raise ValueError("of the user's")
    comm.barrier()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("killed", "was killed by SIGKILL before it returned"),
        ("raises", "raised ValueError: of the user's"),
    ],
)
def test_how_a_rank_ended_is_told(how, words):
    """As of one that was started by itself."""
    texts = []
    for forked in (True, False) if how == "killed" else (True,):
        launch.exceed_cores = lambda num_ranks, forked=forked: forked
        with pytest.raises(RankFailed) as error:
            stretto.spawn(ends_oddly, how, num_ranks=RANKS)
        assert error.value.rank == 1
        texts.append(str(error.value).splitlines()[0].partition(")")[2])
    assert len({*texts}) == 1
    assert words in texts[0]


def leaves(comm, path):
    """Leave something to do at the end, and say a line."""
    atexit.register(Path(path).with_name(f"end{comm.rank}").touch)
    sys.stdout.write(f"rank {comm.rank} speaks\n")


def test_they_end_as_processes_do(tmp_path, capfd):
    """What was registered for the end is done, and lines are written once."""
    stretto.spawn(leaves, str(tmp_path / "x"), num_ranks=RANKS)

    assert sorted(p.name for p in tmp_path.iterdir()) == ["end0", "end1", "end2"]
    lines = sorted(capfd.readouterr().out.split("\n"))
    assert [line for line in lines if line] == [
        f"rank {r} speaks" for r in range(RANKS)
    ]


def kills_the_nursery(comm):
    """Kill who forked us."""
    if comm.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(30)


def test_a_nursery_that_is_killed_takes_its_ranks_along():
    """All are known to have ended, at once."""
    began = time.monotonic()
    with pytest.raises(RankFailed):
        stretto.spawn(kills_the_nursery, num_ranks=RANKS)
    assert time.monotonic() - began < 20


def test_where_it_cannot_load_ranks_start_by_themselves(monkeypatch, capfd):
    """It says why; the job goes on."""
    from stretto.runtime.calls.joining import spawn

    monkeypatch.setattr(spawn, "_PRELOAD", ("stretto.nowhere:load",))
    parents = {one[1] for one in stretto.spawn(who, num_ranks=2)}

    assert parents == {os.getpid()}
    assert "No module named 'stretto.nowhere'" in capfd.readouterr().err


PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have come ignored
from stretto.fabric.meeting.launching import launch
launch.exceed_cores = lambda num_ranks: True
import stretto
def work(comm, folder):
    open(os.path.join(folder, f"{comm.rank}.{os.getpid()}.{os.getppid()}"), "w").close()
    time.sleep(60)
if __name__ == "__main__":
    stretto.spawn(work, sys.argv[1], num_ranks=3)
"""


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_nobody_outlives_its_launcher(tmp_path, how):
    """Neither ranks nor who forked them; that says nothing of ctrl-C, which all get."""
    script, folder = tmp_path / "program.py", tmp_path / "said"
    script.write_text(PROGRAM)
    folder.mkdir()
    launcher = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: len(list(folder.iterdir())) == RANKS, 60)
        if how == "interrupted":
            os.killpg(launcher.pid, signal.SIGINT)
            said = launcher.communicate(timeout=30)[1]
            assert "KeyboardInterrupt" in said
            assert "in _serve" not in said
    finally:
        launcher.kill()
        launcher.communicate()
    pids = {int(p) for one in folder.iterdir() for p in one.name.split(".")[1:]}
    assert len(pids) == RANKS + 1
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)


def test_a_rank_that_ended_is_not_mistaken_for_another(monkeypatch):
    """It is killed by its descriptor, not by a number that another may have."""
    made = nursery.Nursery(("os:getpid",), dict(os.environ))
    read, write = os.pipe()
    try:
        rank = made.fork(0, (write, write, write))  # its words are no rank's: it ends
        assert rank is not None
        with pytest.raises(subprocess.TimeoutExpired):
            nursery.Forked(made, 1 << 22, rank.pidfd).wait(0.01)
        assert rank.wait(20) == 1
        sent = []
        monkeypatch.setattr(signal, "pidfd_send_signal", lambda *a: sent.append(a))
        rank.kill()
        assert sent == []
    finally:
        os.close(read)
        os.close(write)
        made.close()
