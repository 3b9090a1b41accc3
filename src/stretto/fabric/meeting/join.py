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
from stretto.fabric.address import (
    failed,
    is_deserted,
    is_tombstone,
    reach,
    socket_path,
)
from stretto.fabric.faults import Fault, lost_fault
from stretto.fabric.forks import forget_in_children
from stretto.fabric.hosts import is_same_host
from stretto.fabric.loop import Loop
from stretto.fabric.meeting.environment import Place
from stretto.fabric.meeting.greet import HungUp, greet
from stretto.fabric.meeting.hosting.apart import open_relay, relay_path, start_apart
from stretto.fabric.meeting.hosting.door import knock, nobody_answers
from stretto.fabric.meeting.hosting.opening import open_hub
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.meeting.peers import DEPARTED_S
from stretto.fabric.messages import RANK
from stretto.fabric.patience import check_deadline, check_num_ranks
from stretto.fabric.process import (
    host_id,
    is_detached,
    most_descriptors,
    open_pidfd,
    peer_uid,
    uid_refusal,
    uptime_ns,
)
from stretto.fabric.secret import load_secret
from stretto.fabric.wire import Connection

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
    place: Place,
    *,
    deadline_s: float = 30.0,
    listener: socket.socket | None = None,
    wish: str = RANK,
    stays_open: bool = False,
    outlives: bool = False,
) -> Meeting:
    """Return this rank's meeting with all others of its job (collective).

    A second call in the same job is a second meeting. `listener` is bound to the
    place's address already, where rank 0 has one. Where rank 0 `stays_open`, others may
    come later that wish to stand by, or to watch, and ranks may change. Where it
    `outlives` ranks, on all alike, hub and relays are in processes of their own, unless
    a launcher hosts the hub; and it stays open.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise RendezvousError("ranks meet at a Unix socket, which this system lacks")
    check_deadline(deadline_s, "connect")
    check_num_ranks(place.num_ranks, "connect")
    try:
        return _join(place, deadline_s, listener, wish, stays_open, outlives)
    except StrettoError:
        _heard[place.job] = uptime_ns(), time.clock_gettime(time.CLOCK_REALTIME)
        raise
    except OSError as e:
        if is_interruption(e):
            raise
        raise RendezvousError(
            f"rank {place.rank}: cannot meet: {e}; {most_descriptors()}"
        ) from e


def _join(
    place: Place,
    deadline_s: float,
    listener: socket.socket | None,
    wish: str,
    stays_open: bool,
    outlives: bool,
) -> Meeting:
    host_id()  # read while there are descriptors to read it with, and remembered
    watched = place.launcher != "explicit" or not is_detached()
    meet = partial(
        greet,
        rank=place.rank,
        num_ranks=place.num_ranks,
        deadline_s=deadline_s,
        wish=wish,
        launcher=open_pidfd(place.launcher_pid) if watched else None,
    )
    if outlives and not place.rank and wish == RANK and not place.is_hosted:
        start_apart("hub", place, _secret(place), deadline_s, listener)
    if place.rank or wish != RANK or outlives or place.is_hosted:
        stay = _Stay(*_come(place, deadline_s, meet, outlives))
    else:
        hosting, sock = _host(place, deadline_s, listener, stays_open)
        try:
            stay = _Stay(meet(Connection(sock), start_s=deadline_s), hosting)
        except BaseException:
            hosting.join(TELL_S)  # the others shall hear it before we go
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
    place: Place, deadline_s: float, door: socket.socket | None, stays_open: bool
) -> tuple[Loop, socket.socket]:
    hub = open_hub(
        place,
        _secret(place),
        deadline_s=deadline_s,
        host_rank=0,
        stays_open=stays_open,
        door=door,
    )
    try:
        ours, theirs = socket.socketpair()
        hub.adopt(theirs, rank=0)
        return hub.start(), ours
    except BaseException:
        hub.close()
        raise


def _come(
    place: Place, deadline_s: float, meet: partial[Meeting], outlives: bool
) -> tuple[Meeting, Loop | None]:
    """Come to rank 0 as often as it takes: it may not be there yet, or be flooded.

    Also return the relay that this rank hosts, where it came first from its host.
    """
    until = time.monotonic() + deadline_s
    search = _Search(place, deadline_s, outlives)
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

    def __init__(self, place: Place, deadline_s: float, outlives: bool) -> None:
        self._place, self._deadline_s = place, deadline_s
        self._outlives = outlives
        self._path = socket_path(place.job)
        self._secret = _secret(place)
        self._launcher = None if place.launcher == "explicit" else place.launcher_pid
        self._heard, self._heard_s = _heard.get(place.job, (0, 0.0))
        self._dead_since: float | None = None
        self.hosting: Loop | None = None
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
                    sock = self._reach_relay(until)
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

    def _reach_relay(self, until: float) -> socket.socket | None:
        """Return a connection to this host's relay, beginning it if nobody has."""
        path = relay_path(self._place)
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
            if self._outlives:
                left_s = max(0.1, until - time.monotonic())
                start_apart("relay", self._place, self._secret, left_s)
                return reach(path)
            relay = open_relay(self._place, self._secret, until)
            if relay is None:
                return None
            ours, theirs = socket.socketpair()
            relay.adopt(theirs)
            self.hosting = relay.start()
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
            raise self._ended().to_error()

    def _ended(self) -> Fault:
        if self._outlives or self._place.is_hosted:
            text = "the hub of this job was here and has ended; start the job anew"
            return Fault(error="RendezvousError", text=text)
        return lost_fault(0, "was here and has ended")

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

    def __init__(self, meeting: Meeting, hosting: Loop | None) -> None:
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
            self._hosting.join(LINGER_S)

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
