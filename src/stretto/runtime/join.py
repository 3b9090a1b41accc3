"""Join the ranks of a job that a launcher started: rank 0 hosts, the others come."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

from stretto.errors import CollectiveTimeout, RendezvousError
from stretto.runtime.address import is_tombstone, listen, reach, socket_path
from stretto.runtime.door import Door, knock
from stretto.runtime.environment import Place
from stretto.runtime.faults import lost_fault
from stretto.runtime.greet import greet
from stretto.runtime.hub import Hub, HubThread
from stretto.runtime.meeting import Meeting
from stretto.runtime.process import is_detached, open_pidfd, peer_uid, uid_refusal
from stretto.runtime.rendezvous import Rendezvous
from stretto.runtime.secret import load_secret
from stretto.runtime.wire import Connection

LINGER_S = 2.0
"""How long a rank 0 that has ended in order keeps the meeting open for the others."""
_DEAD_S = 0.2
_joined: dict[str, int] = defaultdict(int)


def join(place: Place, *, deadline_s: float = 30.0) -> Meeting:
    """Return this rank's meeting with all others of its job (collective).

    A second call in the same job is a second meeting.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise RendezvousError("ranks meet at a Unix socket, which this system lacks")
    nth = _joined[place.job]
    _joined[place.job] += 1
    path = socket_path(f"{place.job}#{nth}")
    until = time.monotonic() + deadline_s
    hosting = None
    if place.rank == 0:
        hosting, sock = _host(place, path, deadline_s)
    else:
        sock = _come(place, path, until, deadline_s)
    watched = place.launcher != "explicit" or not is_detached()
    meeting = greet(
        Connection(sock),
        rank=place.rank,
        num_ranks=place.num_ranks,
        deadline_s=deadline_s,
        start_s=deadline_s,
        launcher=open_pidfd(place.launcher_pid) if watched else None,
    )
    atexit.register(partial(_end, meeting, hosting))
    return meeting


def _host(
    place: Place, path: Path, deadline_s: float
) -> tuple[HubThread, socket.socket]:
    deadline = time.monotonic() + deadline_s
    machine = Rendezvous(
        place.num_ranks, deadline=deadline, timeout_s=deadline_s, host_rank=0
    )
    hub = Hub(machine)
    secret = b"" if place.address is None else load_secret()
    hub.serve(listen(path))
    if place.address is not None:
        Door(hub, place.address, os.fspath(path), secret)
    ours, theirs = socket.socketpair()
    hub.adopt(theirs, rank=0)
    return HubThread(hub, path), ours


def _come(place: Place, path: Path, until: float, deadline_s: float) -> socket.socket:
    if place.address is not None:
        path = Path(knock(place.address, load_secret(), until))
    launcher = None if place.launcher == "explicit" else place.launcher_pid
    dead_since = None
    pause_s = 0.001
    while (now := time.monotonic()) < until:
        sock = reach(path)
        if sock is not None:
            refusal = uid_refusal(peer_uid(sock), os.getuid())
            if refusal is not None:
                raise RendezvousError(f"{path}: {refusal}")
            return sock
        if not is_tombstone(path, launcher):
            dead_since = None
        elif dead_since is None:  # or just being set up
            dead_since = now
        elif now - dead_since > _DEAD_S:
            raise lost_fault(0, "was here and has ended").to_error()
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s * 1.5)
    error = CollectiveTimeout(
        f"rank 0 of {place.num_ranks} did not come within {deadline_s:g} s: nobody "
        f"serves {path} (rank {place.rank} did come); read the log of rank 0, or allow "
        "more time with deadline_s"
    )
    error.blamed = (0,)
    raise error


def _end(meeting: Meeting, hosting: HubThread | None) -> None:
    """Leave when the process ends: in order, unless an exception ends it."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        meeting.close(f"ended with {type(error).__name__}: {error}")
    else:
        meeting.close()
    if hosting is not None:
        hosting.wait_finished(LINGER_S)
