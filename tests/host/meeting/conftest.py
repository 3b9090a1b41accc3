"""Ranks as real processes: started, watched, and never left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.held import held, left_since
from tests.host import warm
from tests.shared_names import shared_names

SRC = str(Path(__file__).parents[3] / "src")
LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_", "PMI", "SLURM_", "MASTER_", "TORCHELASTIC")
JOIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # also under nohup
import os, signal, sys, time
from stretto.fabric.meeting.environment import find_place
from stretto.fabric.meeting.join import join
from stretto.errors import StrettoError
def say(*words):
    print(*words, flush=True)
def meet(rank=None, size=None, address=None, deadline_s=5.0):
    return join(find_place(rank, size, address), deadline_s=deadline_s)
def until_broken(m):
    begin = time.monotonic()
    while not m.world.broken[0] and time.monotonic() - begin < 60:
        time.sleep(0.001)
    say("broken", time.monotonic(), type(m.world.fault.to_error()).__name__,
        m.world.fault.blamed, m.world.fault.text)
"""


class Rank:
    """One process that runs some lines after `JOIN`."""

    def __init__(self, code: str, environment: dict[str, str]) -> None:
        self.process = warm.Popen(
            ["-u", "-c", JOIN + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def hear(self) -> str:
        """Return its next line; when it ended without one, fail with its errors."""
        line = self.process.stdout.readline()
        assert line, f"a rank ended, and said: {self.process.communicate()[1]}"
        return line.strip()

    def kill(self, signal_number: int = 9) -> None:
        """Send it a signal."""
        os.kill(self.pid, signal_number)

    def end(self, timeout_s: float = 10.0) -> tuple[str, str]:
        """Wait for its end; return what else it wrote."""
        return self.process.communicate(timeout=timeout_s)


@pytest.fixture
def environment(tmp_path):
    """The environment of a rank without any launcher, with a folder of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**env, "PYTHONPATH": SRC, "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def start(environment):
    """Start ranks: `start(code, VARIABLE=value)`; all are killed in the end."""
    ranks = []

    def begin(code, **variables):
        rank = Rank(code, {**environment, **variables})
        ranks.append(rank)
        return rank

    yield begin
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


def told(pid):
    """Return what a process is doing, and its command."""
    folder = Path("/proc", str(pid))
    try:
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ("gone",)
    return state, b" ".join(words).decode(errors="replace")


@pytest.fixture(autouse=True)
def nothing_left():
    """No test may leave a child, a shared memory file or a descriptor behind."""
    gc.collect()  # what other tests left open
    before, names, others = held(), shared_names(), warm.children()
    yield
    until = time.monotonic() + 20.0
    while left := sorted(set(warm.children()) - set(others)):
        if time.monotonic() > until:
            break
        time.sleep(0.02)

    assert [] == [(pid, *told(pid)) for pid in left]
    assert not shared_names() - names
    assert [] == left_since(before)
