"""Ranks are recorded: as a command, from outside, when they die, when they wait."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.host import warm
from tests.waiting import Flag, until

import stretto
from stretto.errors import CollectiveTimeout
from stretto.trace import STEP_KINDS, WAITS, merge, read, snapshot_of_pid

JOBS = Path(__file__).with_name("jobs.py")


def command(*args):
    return ["-m", "stretto", "trace", *map(str, args)]


def job(name, folder):
    return [str(JOBS), name, str(folder)]


def test_a_command_is_recorded_and_reported(tmp_path):
    """Every call of every rank; what is left is one file, and what was asked for."""
    out = tmp_path / "run.trace"
    also = {k: tmp_path / k for k in ("perfetto", "inspector", "prometheus")}
    options = [f"--{k}={v}" for k, v in also.items()]
    done = warm.run(
        command("--steps", "--out", out, *options, "--", sys.executable,
                *job("steady", tmp_path)),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    seen = read(out)
    names = sorted(path.name for path in tmp_path.iterdir())

    assert ["inspector", "perfetto", "prometheus", "run.trace"] == names
    assert [0, 1] == [info.rank for info in seen.ranks]
    counts = {}
    for call in seen.calls:
        key = int(call["rank"]), seen.kinds[call["kind"]].collective
        counts[key] = counts.get(key, 0) + 1
    for rank in (0, 1):
        assert 21 == counts[rank, "all_reduce"]
        assert 1 == counts[rank, "all_gather"] == counts[rank, "permute"]
        assert 1 <= counts[rank, "barrier"]
    assert (seen.calls["state"] == 1).all()
    assert (seen.calls["end"] >= seen.calls["start"]).all()
    started = seen.calls["enqueue"] < seen.calls["start"]
    assert 2 == started.sum(), "those that were started"
    waited = [seen.comms[c].name for c in seen.calls["comm"][~started]]
    assert any(name.startswith(WAITS) for name in waited)
    steps_lie_in_their_calls(seen)
    report = warm.run(
        command("report", out, "--json"), capture_output=True, text=True, check=True
    )
    rows = json.loads(report.stdout)["rows"]
    assert {"all_reduce", "all_gather"} <= {row["collective"] for row in rows}
    text = warm.run(
        command("report", out), capture_output=True, text=True, check=True
    ).stdout
    assert "who arrives late" in text
    assert "links, slowest first" in text


def steps_lie_in_their_calls(seen):
    """Assert that each step is within its call, and lanes do one thing at a time."""
    calls = {(int(c["rank"]), int(c["comm"]), int(c["seq"])): c for c in seen.calls}
    assert len(calls) == len(seen.calls)
    assert len(seen.steps)
    last = {}
    for step in seen.steps:
        key = int(step["rank"]), int(step["comm"]), int(step["seq"])
        call = calls[key]
        assert call["start"] <= step["begin"] <= step["end"] <= call["end"]
        assert 0 <= step["wait"] <= step["end"] - step["begin"]
        lane = (*key, int(step["lane"]))
        assert last.get(lane, 0) <= step["begin"]
        last[lane] = step["end"]
        members = seen.comms[step["comm"]].members
        assert -1 <= step["peer"] < len(members)


def test_the_status_of_a_command_is_its_own(tmp_path):
    """And a command that records nothing says so."""
    done = warm.run(
        command("--out", tmp_path / "x", "--", sys.executable, "-c", "exit(7)"),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert 7 == done.returncode
    assert "no process of its called stretto" in done.stderr
    assert [] == list(tmp_path.iterdir())


def test_what_a_killed_rank_did_is_there(tmp_path):
    """Up to its last call: from its file, and from its ring what it had not written."""
    out = tmp_path / "run.trace"
    done = warm.run(
        command("--out", out, "--", sys.executable, *job("killed", tmp_path)),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode
    seen = read(out)
    for rank in (0, 1):
        mine = seen.calls[seen.calls["rank"] == rank]
        made = mine[[seen.kinds[k].collective == "all_reduce" for k in mine["kind"]]]
        assert len(made) >= 50
    last = seen.calls[seen.calls["rank"] == 0][-1]
    assert 1 != last["state"], "rank 0 was left waiting"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc here")
def test_a_job_that_waits_is_looked_at_from_outside(tmp_path):
    """By the process of any rank: who is missing, and who waits for it in what step.

    Beside another job of as many ranks, which is none of its business.
    """
    folders = [tmp_path / name for name in ("this", "other")]
    for folder in folders:
        folder.mkdir()
    with contextlib.ExitStack() as jobs:
        started = [jobs.enter_context(warm.Popen(job("stuck", f))) for f in folders]
        pids, others = ([folder / f"pid-{r}" for r in (0, 1)] for folder in folders)
        until(lambda: all(p.exists() and p.read_text() for p in (*pids, *others)))
        until(lambda: all(waits(int(p[0].read_text())) for p in (pids, others)))
        pages = [
            warm.run(
                command("attach", p.read_text()), capture_output=True, text=True,
                check=False, timeout=60,
            )
            for p in (*pids, *others)
        ]  # fmt: skip
        said = warm.run(
            command("attach", pids[0].read_text(), "--json"),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        late = [p[1].read_text() for p in (pids, pids, others, others)]
        for folder, child in zip(folders, started, strict=True):
            (folder / "go").touch()
            assert 0 == child.wait(120)
    for page, pid in zip(pages, late, strict=True):
        assert 1 == page.returncode, page.stderr
        assert f"rank 1 ({os.uname().nodename}, pid {pid})" in page.stdout
        assert "rank 1 has not entered" in page.stdout
        assert "rank 0 (" in page.stdout
    found = json.loads(said.stdout)
    assert "missing_enter" == found["findings"][0]["kind"]
    assert [1] == found["causes"]


def waits(pid):
    """Return whether the last call of a process has begun and not ended."""
    calls = snapshot_of_pid(pid).calls
    return len(calls) > 1 and calls["state"][-1] == 0


def test_who_is_no_rank_is_refused():
    """With what a process must be."""
    done = warm.run(
        command("attach", os.getppid()), capture_output=True, text=True, check=False
    )
    assert 2 == done.returncode
    assert f"pid {os.getppid()}" in done.stderr


def late(comm, folder):
    """Return the note of a timeout, or nothing."""
    x = np.ones(64, np.float32)
    comm.all_reduce(x)
    comm.deadline_s = 1.0
    heard = Flag(folder, "heard")
    if comm.rank == 1:
        heard.wait()
        return ""
    time.sleep(0.3)  # the other one is idle by then
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(x)
    heard.up()
    return "\n".join(caught.value.__notes__)


def test_a_timeout_says_who_is_late_and_what_it_does(tmp_path):
    """As a note of the error: the page that `attach` would have shown."""
    note, _ = stretto.spawn(late, tmp_path, num_ranks=2)

    assert "look first at: rank 1" in note
    assert "it is in no call; its last ended" in note


def traced(comm, interpreter):
    """Return recordings: of a block with steps, and of nothing."""
    x, how = np.ones(1 << 14, np.float32), "all_reduce/two_shot push bulk staged"
    comm.all_reduce(x, algorithm=how)
    with comm.trace(steps=True) as seen:
        for _ in range(3):
            comm.all_reduce(x, algorithm=how)
        comm.barrier()
    comm.all_reduce(x, algorithm=how)
    with comm.trace() as nothing:
        pass
    return seen.recording, nothing.recording.num_events


def test_a_block_is_recorded_with_its_steps():
    """Of this communicator alone; what each step moved is what its plan says."""
    found = stretto.spawn(traced, "", num_ranks=2)
    seen = merge([recording for recording, _ in found])

    assert [0, 0] == [events for _, events in found]
    assert 8 == len(seen.calls)
    steps_lie_in_their_calls(seen)
    kinds = {STEP_KINDS[k] for k in seen.steps["kind"]}
    assert {"signal", "wait"} <= kinds
    moved = seen.steps[np.isin(seen.steps["kind"], [STEP_KINDS.index("put")])]
    by_call = {}
    for step in moved:
        key = int(step["rank"]), int(step["seq"])
        by_call[key] = by_call.get(key, 0) + int(step["nbytes"])
    assert {1 << 15} == set(by_call.values()), "half of 64 KiB goes to the other"


def costs(comm):
    """Return the least times of a call, recorded and not, in turns."""
    from stretto.executors.cpu.words import Common

    session = comm._sessions["cpu"]
    x, least = np.ones(16, np.float32), {}
    for turn in range(60):
        on = bool(turn % 2)
        session._words[Common.RING] = session._ring.address * on
        began = time.perf_counter_ns()
        for _ in range(2000):
            comm.all_reduce(x)
        took = (time.perf_counter_ns() - began) / 2000
        least[on] = min(took, least.get(on, took))
    return least


def test_recording_a_call_costs_a_fraction_of_it():
    """The least of many turns: a shared machine says more, never less."""
    (least,) = stretto.spawn(costs, num_ranks=1)

    assert least[True] - least[False] < 0.6 * least[False]


def test_sigterm_ends_a_recorded_command_and_writes_what_it_did(tmp_path):
    """As a scheduler ends a job: no process is left, and no folder."""
    out, pid = tmp_path / "x.trace", tmp_path / "pid"
    program = (
        "import os, pathlib, time, stretto\n"
        "def work(comm):\n"
        "    comm.barrier()\n"
        f"    pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    stretto.spawn(work, num_ranks=1)\n"
    )
    script = tmp_path / "job.py"
    script.write_text(program)
    command = [sys.executable, "-m", "stretto", "trace", "--out", str(out), "--"]
    running = subprocess.Popen([*command, sys.executable, str(script)])
    until(lambda: pid.exists() and pid.read_text())
    running.terminate()

    assert running.wait(60) != 0
    assert read(out).calls.size >= 1
    assert [] == list(tmp_path.glob(".stretto-trace-*"))
