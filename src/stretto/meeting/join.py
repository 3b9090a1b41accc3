"""Join the ranks of a job that a launcher started: rank 0 hosts, the others come.

A job may meet again and again, under one name: each time is a *generation*. Rank 0
opens it, its hub numbers it, and its place is free again once all have come. So it
makes no difference how often somebody has tried before, or in which process.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

from stretto.errors import (
    CollectiveTimeout,
    RendezvousError,
    StrettoError,
    is_interruption,
)
from stretto.meeting.address import (
    end,
    failed,
    is_deserted,
    is_tombstone,
    listen,
    reach,
    socket_path,
)
from stretto.meeting.environment import Place
from stretto.meeting.faults import Fault, lost_fault
from stretto.meeting.forks import forget_in_children
from stretto.meeting.greet import HungUp, greet
from stretto.meeting.hosting.door import Door, knock, nobody_answers
from stretto.meeting.hosting.hub import Hub
from stretto.meeting.hosting.relay import Relay
from stretto.meeting.hosting.rendezvous import Rendezvous
from stretto.meeting.hosting.serving import HubThread
from stretto.meeting.limits import check_deadline, check_num_ranks
from stretto.meeting.meeting import Meeting
from stretto.meeting.peers import DEPARTED_S
from stretto.meeting.process import (
    host_id,
    is_detached,
    is_same_host,
    most_descriptors,
    open_pidfd,
    peer_uid,
    uid_refusal,
    uptime_ns,
)
from stretto.meeting.reaching import loopback_hint
from stretto.meeting.secret import load_secret
from stretto.meeting.wire import Connection

LINGER_S = DEPARTED_S + 2.0
"""How long a rank 0 that has ended in order keeps the meeting open for the others: for
longer than they wait for it, so that all hear one verdict."""
TELL_S = 2.0
"""How long a rank 0 whose meeting failed stays, for the others to hear why."""
_DEAD_S = 0.2
_SHORT_PAUSE_S, _LONG_PAUSE_S = 0.001, 0.02
_heard: dict[str, tuple[int, float]] = {}
"""When this process last heard that a job did not meet: uptime, and time of day."""


def join(
    place: Place, *, deadline_s: float = 30.0, listener: socket.socket | None = None
) -> Meeting:
    """Return this rank's meeting with all others of its job (collective).

    A second call in the same job is a second meeting. `listener` is bound to the
    place's address already, where rank 0 has one.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise RendezvousError("ranks meet at a Unix socket, which this system lacks")
    check_deadline(deadline_s, "connect")
    check_num_ranks(place.num_ranks, "connect")
    try:
        return _join(place, deadline_s, listener)
    except StrettoError:
        _heard[place.job] = uptime_ns(), time.clock_gettime(time.CLOCK_REALTIME)
        raise
    except OSError as e:
        if is_interruption(e):
            raise
        raise RendezvousError(
            f"rank {place.rank}: cannot meet: {e}; {most_descriptors()}"
        ) from e


def _join(place: Place, deadline_s: float, listener: socket.socket | None) -> Meeting:
    host_id()  # read while there are descriptors to read it with, and remembered
    watched = place.launcher != "explicit" or not is_detached()
    meet = partial(
        greet,
        rank=place.rank,
        num_ranks=place.num_ranks,
        deadline_s=deadline_s,
        launcher=open_pidfd(place.launcher_pid) if watched else None,
    )
    if place.rank:
        stay = _Stay(*_come(place, deadline_s, meet))
    else:
        hosting, sock = _host(place, deadline_s, listener)
        try:
            stay = _Stay(meet(Connection(sock), start_s=deadline_s), hosting)
        except BaseException:
            hosting.wait_finished(TELL_S)  # the others shall hear it before we go
            raise
    if place.address is not None:
        stay.meeting.secret, stay.meeting.towards = _secret(place), place.address[0]
    return stay.meeting


def _secret(place: Place) -> bytes:
    """Return what all ranks know, where they meet over TCP."""
    if place.address is None:
        return b""
    return place.secret or load_secret()


def _host(
    place: Place, deadline_s: float, door: socket.socket | None
) -> tuple[HubThread, socket.socket]:
    secret = _secret(place)
    machine = Rendezvous(
        place.num_ranks,
        deadline=time.monotonic() + deadline_s,
        timeout_s=deadline_s,
        host_rank=0,
        generation=uptime_ns(),
        joins_hosts=place.address is not None,
        hint=loopback_hint(place.address) if place.address else "",
    )
    hub = Hub(machine)
    try:
        path = socket_path(place.job)
        listener = listen(path)
        inode = path.lstat().st_ino
        hub.serve(listener, partial(end, path, inode, machine.generation))
        if place.address is not None:
            Door(hub, place.address, os.fspath(path), secret, door)
        ours, theirs = socket.socketpair()
        hub.adopt(theirs, rank=0)
        return HubThread(hub), ours
    except BaseException:
        hub.close()
        raise


def _come(
    place: Place, deadline_s: float, meet: partial[Meeting]
) -> tuple[Meeting, HubThread | None]:
    """Come to rank 0 as often as it takes: it may not be there yet, or be flooded.

    Also return the relay that this rank hosts, where it came first from its host.
    """
    until = time.monotonic() + deadline_s
    search = _Search(place, deadline_s)
    while True:
        sock = search.reach(until)
        left_s = max(0.0, until - time.monotonic())
        try:
            return meet(Connection(sock), start_s=left_s), search.hosting
        except HungUp:
            search.hosting = None
            if time.monotonic() >= until:
                raise search.timeout() from None
            time.sleep(_SHORT_PAUSE_S)


class _Search:
    """Looks for the socket that rank 0 serves."""

    def __init__(self, place: Place, deadline_s: float) -> None:
        self._place, self._deadline_s = place, deadline_s
        self._path = socket_path(place.job)
        self._secret = _secret(place)
        self._launcher = None if place.launcher == "explicit" else place.launcher_pid
        self._heard, self._heard_s = _heard.get(place.job, (0, 0.0))
        self._dead_since: float | None = None
        self.hosting: HubThread | None = None
        """The relay that serves this host's ranks, where it is ours."""

    def reach(self, until: float) -> socket.socket:
        """Return a connection to the hub; raise when that is in vain, or too late."""
        pause_s = _SHORT_PAUSE_S
        while time.monotonic() < until:
            path: Path | None = self._path
            sock = None
            if self._place.address is not None:
                shown = knock(self._place.address, self._secret, until)
                path = None if shown is None else Path(shown.path)
                if shown is not None and not is_same_host(shown.host, host_id()):
                    path = None
                    sock = self._reach_relay(self._place.address, until)
            if path is not None:
                sock = reach(path)
            if sock is not None:
                refusal = uid_refusal(peer_uid(sock), os.getuid())
                if refusal is None:
                    return sock
                sock.close()
                raise RendezvousError(f"{path}: {refusal}")
            self._look_for_its_end(self._path)
            time.sleep(pause_s)
            pause_s = min(_LONG_PAUSE_S, pause_s * 1.5)
        raise self.timeout()

    def _reach_relay(
        self, address: tuple[str, int], until: float
    ) -> socket.socket | None:
        """Return a connection to this host's relay, beginning it if nobody has."""
        tail = host_id().rpartition("/")[2]
        path = socket_path(f"{self._place.job}@{tail}")
        sock = reach(path)
        if sock is not None:
            return sock
        with path.with_suffix(".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another rank is just beginning it
                return None
            sock = reach(path)
            if sock is not None:
                return sock
            answer = knock(address, self._secret, until, stays=True)
            if answer is None or answer.connection is None:
                return None
            listener = listen(path)
            inode = path.lstat().st_ino
            ended = partial(end, path, inode, uptime_ns())
            relay = Relay(answer.connection, answer.host, listener, ended)
            ours, theirs = socket.socketpair()
            relay.adopt(theirs)
            self.hosting = HubThread(relay)
            return ours

    def _look_for_its_end(self, path: Path) -> None:
        """Raise when this job's rank 0 has given up, or has died."""
        fault = failed(path, self._launcher, self._heard)
        if fault is not None:
            who = f"rank {self._place.rank} (pid {os.getpid()})"
            text = f"{who} comes too late: {fault.text}"
            late = Fault(error=fault.error, text=text, blamed=fault.blamed)
            raise late.to_error()
        now = time.monotonic()
        was_here = is_tombstone(path, self._launcher, self._heard_s)
        if not (was_here and is_deserted(path)):  # or we alone do not get through
            self._dead_since = None
        elif self._dead_since is None:  # or just being set up
            self._dead_since = now
        elif now - self._dead_since > _DEAD_S:
            raise lost_fault(0, "was here and has ended").to_error()

    def timeout(self) -> CollectiveTimeout:
        """Return the error of a rank to which rank 0 did not come in time."""
        place = self._place
        if place.address is not None:
            return nobody_answers(place.address, self._deadline_s)
        error = CollectiveTimeout(
            f"rank 0 of {place.num_ranks} did not come within {self._deadline_s:g} s: "
            f"nobody serves {self._path} (rank {place.rank} did come); read the log of "
            "rank 0, or allow more time with deadline_s"
        )
        error.blamed = (0,)
        return error


class _Stay:
    """What this process has of a meeting: its part, and the hub where it hosts."""

    def __init__(self, meeting: Meeting, hosting: HubThread | None) -> None:
        self.meeting, self._hosting = meeting, hosting
        _stays.add(self)
        forget_in_children(self)
        meeting.on_end = self._release
        if hosting is not None:
            hosting.on_end = partial(self._release, hub_ended=True)
            if hosting.is_over:
                self._release(hub_ended=True)

    def end(self) -> None:
        """Leave when the process ends: in order, unless an exception ends it."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.meeting.close(f"ended with {type(error).__name__}: {error}"[:1000])
        else:
            self.meeting.close()
        if self._hosting is not None:
            self._hosting.wait_finished(LINGER_S)

    def _release(self, *, hub_ended: bool = False) -> None:
        """Need no care at exit any more, once neither part nor hub is left."""
        if hub_ended:
            self._hosting = None
        if self.meeting.is_over and self._hosting is None:
            _stays.discard(self)

    def forget(self) -> None:
        """Say nothing for a forked child when it ends."""
        _stays.discard(self)


_stays: set[_Stay] = set()


@atexit.register
def _end_all() -> None:
    for stay in list(_stays):
        stay.end()
