"""Ranks that are lost: killed from outside, by themselves, stopped, or leaving."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.jobs import Found, Job, outcome, spell
from tests.chaos.talk import ALL

from stretto.errors import CallError, StrettoError

ENDS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGBUS)


def kill(rng: random.Random, folder: Path) -> Found:
    """Kill ranks at any time while all talk: everybody hears who it was."""
    job = Job(rng, folder, rng.randint(2, 5))
    members = job.start_all()
    job.until_in(members)
    job.team.watch(rng.random() ** 2 * 0.1)
    many = 2 if rng.random() < 0.15 and job.ranks > 2 else 1
    bad = set(rng.sample(range(job.ranks), many))
    number = rng.choice(ENDS) if rng.random() < 0.3 else signal.SIGKILL
    since_s = min([members[r].kill(number) for r in bad])
    job.team.until_over()
    job.check_named(_others(members, bad), bad, since_s)
    job.may_leave |= _of_a_dead_hub(bad)
    return job.end()


def _others(members: list, bad: set[int]) -> list:
    return [m for r, m in enumerate(members) if r not in bad]


def _of_a_dead_hub(bad: set[int]) -> set[str]:
    return {".sock", ".fault"} if 0 in bad else set()


def kill_while_meeting(rng: random.Random, folder: Path) -> Found:
    """Kill one before or while all meet: the others hear who is missing."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad = rng.randrange(job.ranks)
    members = job.start_all(deadline_s=2.5)
    job.team.watch(rng.random() * 0.08)
    met = all(m.said for m in members)
    since_s = members[bad].kill()
    job.team.until_over()
    met = met or bool(members[bad].said)
    job.check_named(_others(members, {bad}), {bad}, since_s, met=met)
    job.may_leave |= {".sock", ".fault"}
    return job.end()


def kill_near_the_end(rng: random.Random, folder: Path) -> Found:
    """Kill one that may have finished: the others are done, or hear who it was."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad = rng.randrange(job.ranks)
    members = job.start_all(turns=rng.randint(1, 12))
    job.until_in(members)
    job.team.watch(rng.random() * 0.08)
    since_s = members[bad].kill()
    job.team.until_over()
    others = _others(members, {bad})
    job.check_named([m for m in others if outcome(m).error], {bad}, since_s)
    job.may_leave |= _of_a_dead_hub({bad})
    return job.end()


def _null() -> None:
    ctypes.string_at(0)


def _sys_exit(comm: Any) -> None:
    sys.exit(3)


DEEDS = {
    "kill": lambda comm: os.kill(os.getpid(), 9),
    "fault": lambda comm: _null(),
    "abort": lambda comm: os.abort(),
    "vanish": lambda comm: os._exit(0),
    "exit": _sys_exit,
    "raise": None,
    "close": lambda comm: comm.close(),
    "forget": None,
    "leave the block": None,
}


def end_by_itself(rng: random.Random, folder: Path) -> Found:
    """One ends in a turn, in one of many ways: the others hear who."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad, deed = rng.randrange(job.ranks), rng.choice(tuple(DEEDS))
    when = rng.randint(0, 12)
    job.team.expects_traces = deed in ("fault", "abort")

    def hook(comm: Any, turn: int) -> None:
        if turn != when:
            return
        if deed == "raise":
            raise_with(comm)
        if deed == "forget":  # the process ends with an open communicator
            raise SystemExit(0)
        if deed == "leave the block":
            with comm:
                pass
        else:
            DEEDS[deed](comm)
        if deed in ("close", "leave the block"):
            raise SystemExit(0)

    members = [
        job.start(r, hook=hook if r == bad else None, lives=r == bad, verbs=ALL)
        for r in range(job.ranks)
    ]
    job.until_in(members)
    job.team.until_over()
    others = _others(members, {bad})
    for member in others:
        said = outcome(member)
        if not said.error or bad not in said.blamed:
            job.fault(f"misnamed after {deed}: {spell(member)}; want rank {bad}")
    if deed in ("kill", "fault", "abort", "vanish"):
        since_s = members[bad].ended_s  # later than it was
        job.check_named(others, {bad}, since_s - 0.001)
    job.may_leave |= _of_a_dead_hub({bad})
    return job.end()


def raise_with(comm: Any) -> None:
    """Raise inside a block that closes the communicator."""
    try:
        with comm:
            raise KeyError("of the user")
    except KeyError:
        raise SystemExit(1) from None


def stop_and_go(rng: random.Random, folder: Path) -> Found:
    """Stop ranks for a while: all goes on."""
    job = Job(rng, folder, rng.randint(2, 4))
    members = job.start_all(turns=rng.randint(5, 40))
    for _ in range(rng.randint(1, 3)):
        one = rng.choice(members)
        job.team.watch(rng.random() * 0.05)
        one.kill(signal.SIGSTOP)
        job.team.watch(rng.random() * 0.3)
        one.kill(signal.SIGCONT)
    job.team.until_over()
    job.check_right(members, "stopped for a while")
    return job.end()


def stop_for_long(rng: random.Random, folder: Path) -> Found:
    """Stop one beyond the deadline: the others hear of whom; so does it, later."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad, deadline_s = rng.randrange(job.ranks), rng.uniform(0.8, 1.5)
    members = job.start_all(deadline_s=deadline_s, verbs=ALL, counts=False)
    job.until_in(members)
    job.team.watch(rng.random() * 0.03)
    members[bad].kill(signal.SIGSTOP)
    until = time.monotonic() + deadline_s + 8
    others = _others(members, {bad})
    while any(m.told is None for m in others) and time.monotonic() < until:
        job.team.watch(0.05)
    members[bad].kill(signal.SIGCONT)
    job.team.until_over()
    for member in others:
        said = outcome(member)
        if said.error != "CollectiveTimeout" or said.blamed != (bad,):
            job.fault(f"misnamed: {member.name} {spell(member)}; want {bad}, stopped")
    if not outcome(members[bad]).error:
        job.fault(f"who was stopped {spell(members[bad])}")
    job.may_leave |= {".sock", ".fault"}
    return job.end()


def fork_children(rng: random.Random, folder: Path) -> Found:
    """A rank forks children that use, close, outlive or break what they inherit."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad, when = rng.randrange(job.ranks), rng.randint(0, 6)
    how = rng.choice(("call", "close", "exit", "kill", "outlive", "connect", "thread"))

    def child(comm: Any) -> None:
        import numpy as np

        import stretto

        status = 0
        if how in ("call", "outlive"):
            try:
                comm.all_reduce(np.ones(3, np.float32))
                status = 9
            except StrettoError:
                pass
        elif how == "close":
            comm.close()
        elif how == "kill":
            os.kill(os.getpid(), 9)
        elif how == "connect":
            with stretto.connect(0, 1, f"{job.address}-child") as mine:
                mine.barrier()
        if how == "outlive":
            time.sleep(rng.random())
        if how == "exit":
            import atexit

            atexit._run_exitfuncs()
        os._exit(status)

    def hook(comm: Any, turn: int) -> None:
        if turn != when:
            return
        beside = threading.Thread(target=time.sleep, args=(0.05,))
        if how == "thread":
            beside.start()
        pid = os.fork()
        if pid == 0:
            child(comm)
        if how == "thread":
            beside.join()
        if how != "outlive":
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status in (0, -9), f"the child ended with {status}"

    turns = when + rng.randint(1, 8)
    members = [
        job.start(r, turns=turns, hook=hook if r == bad else None)
        for r in range(job.ranks)
    ]
    job.team.until_over()
    job.check_right(members, f"a child that does {how}")
    return job.end()


def two_threads(rng: random.Random, folder: Path) -> Found:
    """A second thread is told who is inside; nothing else changes."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad, when = rng.randrange(job.ranks), rng.randint(0, 6)

    def intrude(comm: Any, heard: list) -> None:
        time.sleep(0.08)
        try:
            comm.barrier()
            heard.append("nothing")
        except CallError as e:
            heard.append(str(e))

    def hook(comm: Any, turn: int) -> None:
        if turn == when and comm.rank == bad:
            heard: list[str] = []
            beside = threading.Thread(target=intrude, args=(comm, heard))
            beside.start()
            comm.barrier()
            beside.join()
            assert len(heard) == 1, heard
            assert "MainThread" in heard[0], heard
        elif turn == when:
            time.sleep(0.4)
            comm.barrier()

    members = job.start_all(turns=when + 5, hook=hook)
    job.team.until_over()
    job.check_right(members, "a second thread")
    return job.end()


def threads_of_their_own(rng: random.Random, folder: Path) -> Found:
    """Two threads on two communicators do not disturb one another."""
    from tests.chaos.talk import talk

    job = Job(rng, folder, rng.randint(2, 3))
    seed, many = job.seed, rng.randint(3, 12)

    def hook(comm: Any, turn: int) -> None:
        if turn != 1:
            return
        faults: list[BaseException] = []

        def work(mine: Any, name: str) -> None:
            try:
                for i in range(many):
                    talk(mine, name, i)
            except BaseException as e:
                faults.append(e)

        with comm.split(0) as one, comm.split(0) as two:
            threads = [
                threading.Thread(target=work, args=(c, f"{seed}{i}"))
                for i, c in enumerate((one, two))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if faults:
            raise faults[0]

    members = job.start_all(turns=4, hook=hook)
    job.team.until_over()
    job.check_right(members, "two threads, two communicators")
    return job.end()


class Alarm(Exception):
    """Of a signal's handler."""


def raise_in_a_handler(rng: random.Random, folder: Path) -> Found:
    """A handler raises at any time: its rank hears that, the others who it was."""
    job = Job(rng, folder, rng.randint(2, 4))
    bad = rng.randrange(job.ranks)

    def alarm(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Alarm

    after_s = rng.random() ** 2 * 0.1 + 1e-4

    def hook(comm: Any, turn: int) -> None:
        if turn == 3:
            signal.signal(signal.SIGALRM, alarm)
            signal.setitimer(signal.ITIMER_REAL, after_s)

    members = [
        job.start(r, hook=hook if r == bad else None, counts=r != bad)
        for r in range(job.ranks)
    ]
    job.team.until_over()
    told = members[bad].told
    if told is None or told.error not in ("Alarm", ""):
        job.fault(f"the rank with a handler {spell(members[bad])}")
    for member in _others(members, {bad}):
        if bad not in outcome(member).blamed:
            job.fault(f"misnamed: {member.name} {spell(member)}; want {bad}, a handler")
    members[bad].told = None
    return job.end()


def signals_in_calls(rng: random.Random, folder: Path) -> Found:
    """Handlers that only count, a thousand times a second: all goes on."""
    job = Job(rng, folder, rng.randint(2, 4))
    every_s = rng.uniform(2e-4, 3e-3)

    def before() -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)

    members = job.start_all(turns=rng.randint(3, 25), before=before, deadline_s=25.0)
    job.team.until_over()
    job.check_right(members, "signals in calls")
    return job.end()


SCENARIOS = {
    "kill while all talk": (kill, 10),
    "kill while all meet": (kill_while_meeting, 2),
    "kill near the end": (kill_near_the_end, 3),
    "end by itself": (end_by_itself, 5),
    "stop and go": (stop_and_go, 2),
    "stop beyond the deadline": (stop_for_long, 1),
    "fork children": (fork_children, 2),
    "a second thread": (two_threads, 1),
    "two threads, two communicators": (threads_of_their_own, 1),
    "a handler raises": (raise_in_a_handler, 3),
    "signals in calls": (signals_in_calls, 1),
}
