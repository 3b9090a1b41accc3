"""Ways for a rank or a job to end: each by name, and what is left after it.

    python -m tests.chaos --ways all --out FILE

A rank ends in one of four ways at one of ten stages; then there are ends of whole jobs.
Descriptors, threads, processes, shared memory and files of the run folder are counted
before and after, in whoever lives on and here.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.chaos.jobs import Found, Job, outcome, spell
from tests.chaos.launched import act, fork_interpreters, wait_for_good
from tests.chaos.team import Me, Told, gives_back, held, tell_of

import stretto
from stretto.errors import StrettoError

RANKS, BAD = 3, 1
_SOON_S, _LATE_S = 0.15, 0.45
Ending = Callable[[], None]


def _raise() -> None:
    raise ValueError("of the user")


ENDS: dict[str, Ending] = {
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "vanishes": lambda: os._exit(3),
    "raises": _raise,
    "exits": lambda: sys.exit(3),
}


def _wait(comm: Any) -> None:
    comm.barrier()


def _reduce(comm: Any) -> None:
    comm.all_reduce(np.ones(100, np.float32))


def _started(comm: Any) -> None:
    comm.all_reduce_async(np.ones(100, np.float32)).wait()


def _transfer(comm: Any) -> None:
    x = np.ones(100, np.float32)
    if comm.rank == 0:
        comm.send(x, BAD)
    elif comm.rank == BAD:
        comm.recv(x, 0)
    comm.barrier()


INSIDE: dict[str, Callable[[Any], Any]] = {
    "in barrier": _wait,
    "in all_reduce": _reduce,
    "in a started call": _started,
    "in recv": _transfer,
    "in split": lambda comm: comm.split(0),
    "in empty": lambda comm: comm.empty(1000),
}
STAGES = (
    "before it connects",
    "while it connects",
    "between calls",
    *INSIDE,
    "before it closes",
    "after it closed",
)


def live(me: Me, *, rank: int, address: str, stage: str, end: Ending) -> Told:
    """Be a rank; the bad one ends at a stage, the others hear of it and close."""
    before = held()
    is_bad = rank == BAD
    told, comm, inner = Told(value="done"), None, None

    def alarm(number: int, frame: Any) -> None:
        end()

    if is_bad:
        signal.signal(signal.SIGALRM, alarm)
    try:
        if stage == "before it connects" and is_bad:
            end()
        if stage == "while it connects":
            if is_bad:
                signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            elif rank == 2:
                time.sleep(_LATE_S)
        comm = stretto.connect(rank, RANKS, address, deadline_s=1.5)
        _reduce(comm)
        inner = comm.split(0)
        _reduce(inner)
        if stage == "between calls" and is_bad:
            end()
        if stage in INSIDE:
            if is_bad:
                signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            else:
                time.sleep(_LATE_S)
            INSIDE[stage](comm)
        _reduce(inner)
        if stage == "before it closes" and is_bad:
            end()
    except StrettoError as e:
        told = tell_of(e)
    finally:
        for each in (inner, comm):
            if each is not None:
                each.close()
    if stage == "after it closed" and is_bad:
        end()
    del each, inner, comm
    gives_back(before)
    return told


def end_a_rank(stage: str, how: str, rng: random.Random, folder: Path) -> Found:
    """End one rank of three in a way at a stage."""
    job = Job(rng, folder, RANKS)
    members = [
        job.team.start(
            partial(live, rank=r, address=job.address, stage=stage, end=ENDS[how]),
            f"rank{r}",
        )
        for r in range(RANKS)
    ]
    job.team.until_over()
    for rank, member in enumerate(members):
        said = outcome(member)
        if rank == BAD:
            told = member.told
            if told is not None and told.error == "ValueError":
                member.told = None  # what it is to raise
        elif said.error and BAD not in said.blamed:
            job.fault(f"misnamed: {member.name} {spell(member)}; want {BAD}")
        elif not said.error and stage not in ("before it closes", "after it closed"):
            job.fault(f"{member.name} {spell(member)}; want it to hear of rank {BAD}")
    job.may_leave |= {".fault"} if stage == "while it connects" else set()
    job.may_leave |= {".fault"} if stage == "before it connects" else set()
    return job.end()


def _job_of(rng: random.Random, folder: Path, **how: Any) -> tuple[Job, list]:
    job = Job(rng, folder, RANKS)
    return job, job.start_all(**how)


def all_killed(rng: random.Random, folder: Path) -> Found:
    """All ranks are killed at once."""
    job, members = _job_of(rng, folder)
    job.until_in(members)
    for member in members:
        member.kill()
    job.team.until_over()
    return job.end()


def host_killed(rng: random.Random, folder: Path) -> Found:
    """Rank 0, with the hub, is killed."""
    job, members = _job_of(rng, folder)
    job.until_in(members)
    since_s = members[0].kill()
    job.team.until_over()
    job.check_named(members[1:], {0}, since_s)
    return job.end()


def all_interrupted(rng: random.Random, folder: Path) -> Found:
    """Everybody gets what Ctrl-C sends."""
    job, members = _job_of(rng, folder)
    job.until_in(members)
    for member in members:
        member.kill(signal.SIGINT)
    job.team.until_over()
    for member in members:
        if member.told is not None and member.told.error == "KeyboardInterrupt":
            member.told = None
    return job.end()


def nobody_comes(rng: random.Random, folder: Path) -> Found:
    """A rank never comes, and the deadline passes."""
    job = Job(rng, folder, RANKS)
    members = [job.start(r, deadline_s=0.6) for r in (0, 2)]
    job.team.until_over()
    for member in members:
        if outcome(member).blamed != (1,):
            job.fault(f"misnamed: {spell(member)}")
    job.may_leave |= {".fault"}
    return job.end()


def stopped(rng: random.Random, folder: Path) -> Found:
    """A rank is stopped, the deadline passes, and it is killed."""
    job, members = _job_of(rng, folder, deadline_s=0.8, verbs=("barrier",))
    job.until_in(members)
    members[BAD].kill(signal.SIGSTOP)
    job.team.watch(2.5)  # the others have given up; rank 0 still hosts the one
    members[BAD].kill()
    job.team.until_over()
    return job.end()


def different(rng: random.Random, folder: Path) -> Found:
    """Ranks call different things."""

    def hook(comm: Any, turn: int) -> None:
        if turn == 2:
            comm.all_reduce(np.ones(5 + comm.rank, np.float32))

    job, members = _job_of(rng, folder, hook=hook, deadline_s=4.0)
    job.team.until_over()
    for member in members:
        if outcome(member).error != "CollectiveMismatch":
            job.fault(f"{member.name} {spell(member)}; want a mismatch")
    return job.end()


def leaves(rng: random.Random, folder: Path) -> Found:
    """A rank closes early, in order."""

    def hook(comm: Any, turn: int) -> None:
        if turn == 3 and comm.rank == BAD:
            comm.close()

    job, members = _job_of(rng, folder, hook=hook, verbs=("barrier",))
    job.team.until_over()
    for rank, member in enumerate(members):
        if rank != BAD and outcome(member).blamed != (BAD,):
            job.fault(f"misnamed: {spell(member)}")
    return job.end()


def _parent(bad: int, how: str, me: Me) -> Told:
    before = held()
    fork_interpreters()
    told = Told(value="done")
    try:
        stretto.spawn(act, "ways", 2, bad, how, 0, num_ranks=RANKS)
    except stretto.RankFailed as e:
        told = tell_of(e)
        told.blamed = (e.rank,)
    gives_back(before)
    return told


def spawned(how: str, rng: random.Random, folder: Path) -> Found:
    """A rank of `spawn` ends in some way; its parent lives on."""
    job = Job(rng, folder, RANKS)
    member = job.team.start(partial(_parent, BAD, how), "parent")
    job.team.until_over()
    if outcome(member).blamed != (BAD,):
        job.fault(f"misnamed: {spell(member)}; want {BAD}")
    return job.end()


def parent_ends(number: int, rng: random.Random, folder: Path) -> Found:
    """The parent of `spawn` gets a signal; its ranks must go with it."""

    def parent(me: Me) -> None:
        fork_interpreters()
        with suppress(KeyboardInterrupt):
            stretto.spawn(wait_for_good, str(folder), num_ranks=RANKS)

    job = Job(rng, folder, RANKS)
    member = job.team.start(parent, "parent")
    while len(list(folder.glob("is-in-*"))) < RANKS and member.status is None:
        job.team.watch(0.02)
    member.kill(number)
    job.team.until_over()
    return job.end()


WAYS: dict[str, Callable[[random.Random, Path], Found]] = {
    **{
        f"a rank {how} {stage}": partial(end_a_rank, stage, how)
        for stage in STAGES
        for how in ENDS
    },
    "all ranks are killed at once": all_killed,
    "rank 0 is killed": host_killed,
    "all ranks are interrupted": all_interrupted,
    "a rank never comes": nobody_comes,
    "a rank is stopped, and then killed": stopped,
    "ranks call different things": different,
    "a rank closes early": leaves,
    **{
        f"a spawned rank ends by: {how}": partial(spawned, how)
        for how in ("kill", "vanish", "exit 3", "raise", "interrupt")
    },
    "the parent of spawn is killed": partial(parent_ends, signal.SIGKILL),
    "the parent of spawn is ended": partial(parent_ends, signal.SIGTERM),
    "the parent of spawn is interrupted": partial(parent_ends, signal.SIGINT),
}
