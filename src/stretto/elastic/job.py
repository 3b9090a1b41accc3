"""A job: the hub of its ranks, and the processes that are ranks or stand by.

One loop turns both. A process that dies is replaced by one that stands by, as long as
the job goes on: at once the first time, later each time, and not at all for a while on
a host where it happens again and again. Who takes whose place, the ranks decide.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stretto.elastic.flapping import Flapping
from stretto.elastic.starting import LOCAL, Starter, environment_of
from stretto.errors import MembershipError
from stretto.fabric.address import clear
from stretto.fabric.hosts import host_name
from stretto.fabric.meeting.environment import find_place
from stretto.fabric.meeting.hosting.opening import open_hub
from stretto.fabric.messages import Errand, Hello
from stretto.fabric.process import exit_words, open_pidfd
from stretto.fabric.wire import Descriptor
from stretto.runtime.calls import Elastic

START_S = 300.0
"""How long all ranks may take to come: programs import for long."""
_PATIENCE_S = 5.0
_TRIES = 3
_STORE = "stretto.torch.elastic.store"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What is to run, and where."""

    hosts: Sequence[str]
    """The host of each rank; nothing is this one."""
    standbys: Sequence[str]
    """The host of each that stands by."""
    elastic: Elastic
    starter: Starter
    address: str
    """Where the hub is found: a name for the job, or `tcp://HOST:PORT`."""
    flapping: Flapping = field(default_factory=Flapping)
    """How a host is treated whose processes die again and again."""

    @classmethod
    def here(
        cls, num_ranks: int, *, starter: Starter, name: str = "", **elastic: Any
    ) -> JobOptions:
        """Return a job on this host, of so many ranks; the rest is of `Elastic`."""
        said = Elastic(**elastic)
        return cls(
            hosts=[LOCAL] * num_ranks,
            standbys=[LOCAL] * said.standby,
            elastic=said,
            starter=starter,
            address=name or f"launched-{secrets.token_hex(6)}",
        )

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on without a rank that was lost."""
        return bool(self.elastic.standby or self.elastic.min_ranks)


@dataclass(slots=True, kw_only=True)
class _Child:
    popen: subprocess.Popen[bytes]
    host: str
    rank: int
    """Which it started as; -1: it stands by."""
    local: int
    """Its number on its host, so its device: one that nobody alive has."""
    pidfd: Descriptor | None


class LaunchedJob:
    """Runs a job to its end."""

    def __init__(self, wanted: JobOptions) -> None:
        """Open its hub; nothing runs yet."""
        self._wanted, self._children = wanted, list[_Child]()
        self._first = len(wanted.hosts)
        self._flapping = wanted.flapping
        self._status = self._first_loss = 0
        self._ended_at: float | None = None
        self._due: list[tuple[float, str]] = []
        """When who stands by is to start again, and where."""
        self._known = -1
        self._store: subprocess.Popen[bytes] | None = None
        self._listener = socket.create_server((self._own_host, 0), backlog=128)
        secret = wanted.starter.secret.encode()
        self._place = find_place(0, self._first, wanted.address)
        self.hub = open_hub(
            replace(self._place, rank=-1),
            secret,
            deadline_s=START_S,
            stays_open=True,
            explain=self._explain,
            admit=self._admit,
            says={"environment": self._environment(self._first - 1)},
            on_ask=self._hear,
        )
        self.world = self.hub.machine.world
        self.hub.loop.watch(self._listener, self._start_store)

    @property
    def _own_host(self) -> str:
        address = self._wanted.address
        if not address.startswith("tcp://"):
            return "127.0.0.1"
        return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    def _environment(self, rank: int) -> dict[str, str]:
        wanted = self._wanted
        found = environment_of(wanted.hosts, rank, wanted.address, wanted.elastic)
        host, port = self._listener.getsockname()[:2]
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": str(host)}
        agent |= {"MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": "0"}
        return {**found, **agent}

    def run(self) -> int:
        """Start all, and see them to their end; return the job's status."""
        try:
            for rank, host in enumerate(self._wanted.hosts):
                self._start(host, rank)
            for host in self._wanted.standbys:
                self._start(host, -1)
            while self._children:
                self.hub.step(self._wait_s())
                self._look()
            return self._verdict()
        finally:
            self._end()

    @property
    def never_began(self) -> bool:
        """Whether a process was killed before all had come, and before any state was.

        Of ranks that have states in PyTorch; of others one does not know.
        """
        world = self.world
        said = [fact.get("whole") for fact in world.facts.values()]
        begun = world.is_complete and (True in said or False not in said)
        return self._wanted.goes_on and self._first_loss < 0 and not begun

    # Processes.

    def _start(self, host: str, rank: int) -> None:
        said = self._environment(self._first - 1 if rank < 0 else rank)
        if rank < 0:
            taken = {child.local for child in self._children if child.host == host}
            free = min(set(range(len(taken) + 1)) - taken)
            said |= {"STRETTO_STANDBY": "1", "LOCAL_RANK": str(free)}
        popen = self._wanted.starter.start(host, said)
        child = _Child(
            popen=popen,
            host=host,
            rank=rank,
            local=int(said["LOCAL_RANK"]),
            pidfd=open_pidfd(popen.pid),
        )
        self._children.append(child)
        if child.pidfd is not None:
            reap = partial(self._reap, child)
            self.hub.loop.watch(child.pidfd.number, reap, fault=_raise)

    def _reap(self, child: _Child) -> None:
        status = child.popen.wait()
        if child.pidfd is not None:
            self.hub.loop.unwatch(child.pidfd.number)
        if child.popen.stdin is not None:
            with suppress(OSError):
                child.popen.stdin.close()
        if child in self._children:
            self._children.remove(child)
        if not status or self._ended_at is not None:
            return
        self._first_loss = self._first_loss or status
        if self._is_rank(child):
            self._status = self._status or (status if status > 0 else 128 - status)
        who = "one that stood by" if child.rank < 0 else f"rank {child.rank}"
        where = f" on {child.host}" if child.host else ""
        how = exit_words(status)
        sys.stderr.write(f"stretto launch: {who}{where} {how}\n")
        if child.rank >= 0 and not self.world.is_complete:
            self.hub.died(child.rank, how)
        now = time.monotonic()
        self._flapping.lose(child.host or socket.gethostname(), now)
        if self._wanted.elastic.standby and self.world.over is None:
            at = self._flapping.from_when(child.host or socket.gethostname(), now)
            self._due.append((at, child.host))

    def _is_rank(self, child: _Child) -> bool:
        """Return whether a process is a rank, or came to be one."""
        world = self.world
        if child.rank >= 0 or not world.is_complete:
            return child.rank >= 0
        return child.popen.pid in world.pids

    def _look(self) -> None:
        """Start who is due, and end a job that cannot go on."""
        now, world = time.monotonic(), self.world
        if world.is_complete and world.generation != self._known:
            self._known = world.generation
            self._tell_generation()
        for child in [c for c in self._children if c.pidfd is None]:
            if child.popen.poll() is not None:
                self._reap(child)
        due = [one for one in self._due if one[0] <= now]
        self._due = [one for one in self._due if one[0] > now]
        for _, host in due:
            if world.over is None and not self._is_ending:
                self._start(host, -1)
        failed = bool(self._status) and not self._wanted.goes_on
        if self._ended_at is None and (failed or world.over or self._is_ending):
            self._ended_at = now
        if self._ended_at is not None and now > self._ended_at + _PATIENCE_S:
            self._stop()

    @property
    def _is_ending(self) -> bool:
        """Whether all ranks that there are have left in order."""
        world = self.world
        if not world.is_complete:
            return False
        return all(world.gone.get(i) == "" for i in world.generations.newest)

    def _wait_s(self) -> float:
        now = time.monotonic()
        due = [at - now for at, _ in self._due]
        if self._ended_at is not None:
            due.append(self._ended_at + _PATIENCE_S - now)
        if any(child.pidfd is None for child in self._children):
            due.append(0.1)
        return min(1.0, max(0.0, min(due, default=1.0)))

    def _verdict(self) -> int:
        """Return 0 for a job whose last ranks have all ended well."""
        return self._status or (0 if self._is_ending or self.world.over is None else 1)

    def _stop(self) -> None:
        for child in self._children:
            if child.popen.stdin is not None:
                with suppress(OSError):
                    child.popen.stdin.close()
            child.popen.terminate()
        until = time.monotonic() + _PATIENCE_S
        for child in self._children:
            try:
                child.popen.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.popen.kill()
                child.popen.wait()
        self._children.clear()

    def _end(self) -> None:
        """Leave nothing behind."""
        self._ended_at = self._ended_at or time.monotonic()
        self._stop()
        if self._store is not None:
            self._store.kill()
            self._store.wait()
        self._listener.close()
        self.hub.close()
        clear(self._place.job)  # sockets that killed processes left

    # What the hub asks, and what members ask of the launcher.

    def _explain(self, rank: int) -> str | None:
        for child in self._children:
            if child.rank == rank and child.popen.poll() is not None:
                return exit_words(child.popen.returncode)
        return None

    def _admit(self, hello: Hello) -> str:
        return self._flapping.refusal(host_name(hello.host), time.monotonic())

    def _hear(self, order: Errand) -> None:
        """Start more that stand by, when somebody wants more ranks, and may have them.

        If not, the ranks say so.
        """
        many = order.said.get("n")
        if order.verb != "grow" or type(many) is not int or not 0 < many <= self._first:
            return
        with suppress(MembershipError):
            now = len(self.world.generations.newest)
            self._wanted.elastic.check_most(now + many, "grow")
            for _ in range(many):
                self._start((*self._wanted.standbys, LOCAL)[0], -1)

    def _tell_generation(self) -> None:
        count = self.world.generation - min(self.world.generations.rosters)
        ranks = len(self.world.generations.newest)
        if count:
            self._status = 0  # what was lost before, others have made good
            text = f"stretto launch: generation {count} has begun, of {ranks} ranks\n"
            sys.stderr.write(text)

    def _start_store(self) -> None:
        """Have a process serve torch's store, once somebody knocks: few need it."""
        self.hub.loop.unwatch(self._listener)
        number = self._listener.fileno()
        host, port = self._listener.getsockname()[:2]
        self._store = subprocess.Popen(
            [sys.executable, "-m", _STORE, str(number), str(host), str(port)],
            pass_fds=(number,),
            stdin=subprocess.DEVNULL,
        )


def run_job(wanted: JobOptions) -> int:
    """Run a job; begin it anew where a rank was killed before there was a state.

    Who was to go on with it had nothing to go on from.
    """
    for left in reversed(range(_TRIES)):
        job = LaunchedJob(wanted)
        status = job.run()
        if not (status and left and job.never_began):
            break
        sys.stderr.write("stretto launch: it had not begun yet, and begins anew\n")
    return status


def _raise(error: Exception) -> None:
    raise error
