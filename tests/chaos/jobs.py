"""A job of one scenario: ranks that talk, and what each must have heard at the end."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.talk import talk
from tests.chaos.team import Me, Member, Team, Told, gives_back, held, tell_of

import stretto
from stretto.errors import StrettoError

FOREVER = 1 << 40
Hook = Callable[[Any, int], None]


@dataclass(slots=True)
class Naming:
    """What one survivor heard of a rank that was lost."""

    seconds: float
    """From the loss to the exception."""
    is_right: bool
    words: str = ""


@dataclass(slots=True)
class Found:
    """What came of one scenario."""

    namings: list[Naming] = field(default_factory=list)
    """Of ranks that were lost after all had met."""
    early: list[Naming] = field(default_factory=list)
    """Of ranks that were lost before."""
    faults: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)


class Job:
    """Ranks of one name, each a process."""

    def __init__(self, rng: random.Random, folder: Path, ranks: int) -> None:
        self.rng, self.ranks, self.folder = rng, ranks, folder
        self.seed = f"{rng.getrandbits(40):x}"
        self.address = f"chaos-{self.seed}"
        self.team = Team(folder)
        self.found = Found()
        self.may_leave: set[str] = set()
        """Endings of files in the run folder that may stay (a killed hub's socket)."""

    def start(self, rank: int, **how: Any) -> Member:
        """Start one rank; options are those of `be_rank`."""
        how = {"address": self.address, "seed": self.seed, "ranks": self.ranks, **how}
        function = partial(be_rank, rank=rank, **how)
        return self.team.start(function, f"rank{rank}-{len(self.team.members)}")

    def start_all(self, **how: Any) -> list[Member]:
        """Start all ranks alike, in any order."""
        order = list(range(self.ranks))
        self.rng.shuffle(order)
        started = {rank: self.start(rank, **how) for rank in order}
        return [started[rank] for rank in range(self.ranks)]

    def until_in(self, members: list[Member]) -> None:
        """Wait until all have met."""
        for member in members:
            self.team.until_said(member)

    def check_right(self, members: list[Member], what: str = "") -> None:
        """All must have gone through their program."""
        for member in members:
            said = outcome(member)
            if said.value != "done":
                self.fault(f"{what}: {member.name} {spell(member)}; want it to go on")

    def check_named(
        self,
        survivors: list[Member],
        bad: set[int],
        since_s: float,
        *,
        met: bool = True,
    ) -> None:
        """All must have heard who was lost."""
        for member in survivors:
            said = outcome(member)
            is_right = bool(said.blamed) and set(said.blamed) <= bad
            words = "" if is_right else f"{member.name} {spell(member)}; want {bad}"
            naming = Naming(said.at_s - since_s, is_right, words)
            (self.found.namings if met else self.found.early).append(naming)
            if not is_right:
                self.fault(f"misnamed: {words}")

    def fault(self, text: str) -> None:
        """Note that something was not survived."""
        self.found.faults.append(text)

    def end(self) -> Found:
        """Give all back; look for what was left."""
        for member in self.team.members:
            self._look_at(member)
        self.found.faults += self.team.end()
        run = Path(os.environ["XDG_RUNTIME_DIR"], "stretto")
        if run.is_dir():
            left = [p.name for p in run.iterdir() if p.suffix not in self.may_leave]
            if left:
                self.fault(f"left in the run folder: {left}")
        return self.found

    def _look_at(self, member: Member) -> None:
        told = member.told
        if told is None or told.error in ("", "SystemExit") or told.is_ours:
            return
        self.fault(f"{member.name} raised {told.error}: {told.text}\n{told.trace}")


def outcome(member: Member) -> Told:
    """Return how a rank's work ended, as it told."""
    told = member.told
    if told is None:
        return Told(error="nothing", text=f"it ended with {member.status}")
    return told.value if isinstance(told.value, Told) else told


def spell(member: Member) -> str:
    """Return what became of a rank."""
    said = outcome(member)
    if said.error:
        return f"heard {said.error}{said.blamed}: {said.text[:400]}"
    return f"returned {said.value!r}"


def be_rank(
    me: Me,
    *,
    rank: int,
    ranks: int,
    address: str,
    seed: str,
    turns: int = FOREVER,
    verbs: tuple[str, ...] = (),
    hook: Hook | None = None,
    before: Callable[[], None] | None = None,
    late_s: float = 0.0,
    deadline_s: float = 20.0,
    counts: bool = True,
    lives: bool = False,
) -> Told:
    """Connect, talk for some turns, close; return what was heard, or that all is done.

    Whoever lives goes on until the process ends; others must have all given back.
    """
    held_before = held()
    time.sleep(late_s)
    comm, told = None, Told(value="done")
    try:
        if before is not None:
            before()
        comm = stretto.connect(rank, ranks, address, deadline_s=deadline_s)
        me.say("in")
        for turn in range(turns):
            if hook is not None:
                hook(comm, turn)
            talk(comm, seed, turn, verbs)
    except StrettoError as e:
        told = tell_of(e)
        if comm is not None:
            told.text += _must_stay_broken(comm)
    finally:
        if comm is not None and not lives:
            comm.close()
    told.at_s = told.at_s or time.monotonic()
    del comm
    if counts and not lives:
        gives_back(held_before)
    return told


def _must_stay_broken(comm: Any) -> str:
    try:
        comm.barrier()
    except StrettoError:
        return ""
    raise AssertionError("a call after a fault went well")


def new_folder(base: Path) -> Path:
    """Return a new folder with a run folder in it, which is used from now on."""
    folder = Path(tempfile.mkdtemp(prefix="", dir=base))
    run = folder / "r"
    run.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = os.fspath(run)
    return folder


def forget_folder(folder: Path) -> None:
    """Delete it, with what is in it."""
    import shutil

    with suppress(OSError):
        shutil.rmtree(folder)
