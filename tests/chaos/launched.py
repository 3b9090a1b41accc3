"""`spawn` and its parent: ranks that fail, spawn themselves, or lose their parent.

The interpreter of a rank is a fork of this one in most of them: the rest of `spawn` is
what users run. One kind in a hundred starts fresh interpreters.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from tests.chaos.jobs import Found, Job, outcome, spell
from tests.chaos.talk import ALL, talk
from tests.chaos.team import Me, Told, gives_back, held, names_in, tell_of

import stretto
from stretto.errors import RankFailed, StrettoError
from stretto.fabric.meeting.launching import child, launch


class Forked:
    """Stands for `subprocess.Popen`: the interpreter is a fork of this process."""

    def __init__(
        self, command: list[str], *, stdin: int, pass_fds: tuple[int, ...], env: dict
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._be(command[command.index("-c") + 3 :], pass_fds, env)

    def _be(self, argv: list[str], keep: tuple[int, ...], env: dict) -> None:
        import atexit
        import threading

        status = 70
        try:
            for name in names_in("/proc/self/fd"):
                if int(name) > 2 and int(name) not in keep:
                    with contextlib.suppress(OSError):
                        os.close(int(name))
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            os.environ.clear()
            os.environ.update(env)
            try:
                child.main(argv)
            except SystemExit as e:
                status = int(e.code or 0)
            threading._shutdown()
            atexit._run_exitfuncs()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        """Return how it ended, if it has."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        until = time.monotonic() + (timeout or 1e9)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(0.001)
        return self.returncode

    def kill(self) -> None:
        """Kill it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_interpreters() -> None:
    """Have `spawn` in this process fork, instead of starting interpreters."""
    launch.subprocess = types.SimpleNamespace(
        Popen=Forked,
        TimeoutExpired=subprocess.TimeoutExpired,
        DEVNULL=subprocess.DEVNULL,
        _args_from_interpreter_flags=subprocess._args_from_interpreter_flags,
    )


def act(comm: Any, seed: str, turns: int, bad: int, how: str, depth: int) -> Any:
    """Be a rank of `spawn`: talk, and in the end do what is asked."""
    for turn in range(turns):
        talk(comm, seed, turn)
    if depth:
        inner = stretto.spawn(act, seed, 2, -1, "return", depth - 1, num_ranks=2)
        assert inner == [("done", 0), ("done", 1)], inner
    if comm.rank == bad:
        end(how)
    if bad >= 0 and how != "exit 0":
        talk(comm, seed, turns, ALL)
    return "done", comm.rank


def end(how: str) -> None:
    """End, in one of many ways."""
    if how == "kill":
        os.kill(os.getpid(), 9)
    elif how == "vanish":
        os._exit(0)
    elif how == "exit 3":
        sys.exit(3)
    elif how == "exit 0":
        sys.exit(0)
    elif how == "raise":
        raise ValueError("chaos")
    elif how == "interrupt":
        raise KeyboardInterrupt


HOWS = ("return", "kill", "vanish", "exit 3", "exit 0", "raise", "interrupt")


def spawned(rng: random.Random, folder: Path, *, fresh: bool = False) -> Found:
    """Spawn ranks, of which one may fail: the parent hears which."""
    job = Job(rng, folder, rng.randint(1, 4))
    bad, how = rng.randrange(job.ranks), rng.choice(HOWS)
    depth, turns = int(rng.random() < 0.2), rng.randint(0, 5)
    bad = -1 if how == "return" else bad

    def parent(me: Me) -> Told:
        before = held()
        if not fresh:
            fork_interpreters()
        told = Told()
        try:
            told.value = stretto.spawn(
                act, job.seed, turns, bad, how, depth, num_ranks=job.ranks
            )
        except RankFailed as e:
            told = tell_of(e)
            told.blamed = (e.rank,)
            for rank, value in e.results.items():
                assert value == ("done", rank), value
        gives_back(before)
        return told

    member = job.team.start(parent, "parent")
    job.team.until_over()
    said = outcome(member)
    if how in ("return", "exit 0"):
        want = [("done", r) for r in range(job.ranks)]
        want = [None if r == bad else v for r, v in enumerate(want)]
        if said.value != want:
            job.fault(f"{how}: the parent {spell(member)}; want {want}")
    elif said.error != "RankFailed" or said.blamed != (bad,):
        job.fault(f"misnamed: {how}: the parent {spell(member)}; want rank {bad}")
    return job.end()


def spawned_fresh(rng: random.Random, folder: Path) -> Found:
    """The same, with fresh interpreters."""
    return spawned(rng, folder, fresh=True)


def wait_for_good(comm: Any, folder: str) -> None:
    """Talk for ever, after a note that one does."""
    Path(folder, f"is-in-{os.getpid()}").touch()
    turn = 0
    while True:
        talk(comm, "good", turn)
        turn += 1


def lose_the_parent(rng: random.Random, folder: Path) -> Found:
    """The parent of spawned ranks is killed: no rank is left."""
    job = Job(rng, folder, rng.randint(1, 3))

    def parent(me: Me) -> None:
        fork_interpreters()
        stretto.spawn(wait_for_good, str(folder), num_ranks=job.ranks)

    member = job.team.start(parent, "parent")
    until = time.monotonic() + 30
    while len(list(folder.glob("is-in-*"))) < job.ranks and rng.random() < 0.99:
        assert time.monotonic() < until, "ranks do not come"
        job.team.watch(0.02)
    job.team.watch(rng.random() * 0.05)
    member.kill(rng.choice((signal.SIGKILL, signal.SIGTERM)))
    job.team.until_over()
    return job.end()


def exchange_of_errors(rng: random.Random, folder: Path) -> Found:
    """Every rank gets odd arguments, all the same: errors of ours, and no break."""
    import numpy as np

    job = Job(rng, folder, 2)
    seed = job.seed

    def hook(comm: Any, turn: int) -> None:
        its = random.Random(f"{seed}:{turn}")
        odd = its.choice((-1, 99, "x", None, 2.5, [1], {}, float("nan"), "\ud800"))
        verb = its.choice(("reduce", "broadcast", "gather"))
        try:
            getattr(comm, verb)(np.ones(3, np.float32), root=odd)
        except StrettoError:
            return
        raise AssertionError(f"{verb}(root={odd!r}) was taken")

    members = job.start_all(turns=8, hook=hook)
    job.team.until_over()
    job.check_right(members, "odd arguments")
    return job.end()


SCENARIOS = {
    "spawn, and one may fail": (spawned, 4),
    "spawn fresh interpreters": (spawned_fresh, 0.3),
    "spawn, and the parent is killed": (lose_the_parent, 1),
    "odd arguments on all ranks": (exchange_of_errors, 0.5),
}
