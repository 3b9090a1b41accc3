"""Open the hub of a job: its world, the socket it is found at, and a door on TCP."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from stretto.fabric.address import end, listen, socket_path
from stretto.fabric.meeting.environment import Place
from stretto.fabric.meeting.hosting.door import Door
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.meeting.reaching import loopback_hint
from stretto.fabric.process import uptime_ns
from stretto.fabric.world import World


def open_hub(
    place: Place,
    secret: bytes,
    *,
    deadline_s: float,
    door: socket.socket | None = None,
    explain: Callable[[int], str | None] = lambda rank: None,
    **world: Any,
) -> Hub:
    """Return the hub of a place's job, which others find; its loop is to be turned.

    `door` is bound to the place's address already; the rest is for its `World`.
    """
    made = World(
        place.num_ranks,
        deadline=time.monotonic() + deadline_s,
        timeout_s=deadline_s,
        generation=uptime_ns(),
        joins_hosts=place.address is not None,
        hint=loopback_hint(place.address) if place.address else "",
        **world,
    )
    hub = Hub(Rendezvous(made), explain=explain)
    try:
        path = socket_path(place.job)
        listener = listen(path)
        inode = path.lstat().st_ino
        hub.serve(listener, partial(end, path, inode, made.generation))
        if place.address is not None:
            Door(hub, place.address, os.fspath(path), secret, door)
    except BaseException:
        hub.close()
        raise
    return hub
