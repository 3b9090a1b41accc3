"""A hub, or a relay, in a process of its own: it outlives every rank.

Who starts it waits until it serves. It ends by itself once nobody is left to serve.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from stretto.errors import RendezvousError, StrettoError
from stretto.fabric.address import end, listen, socket_path
from stretto.fabric.loop import Loop
from stretto.fabric.meeting.environment import Place
from stretto.fabric.meeting.hosting.door import knock
from stretto.fabric.meeting.hosting.opening import open_hub
from stretto.fabric.meeting.hosting.relay import Relay
from stretto.fabric.process import host_id, uptime_ns

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from stretto.fabric.meeting.hosting.apart import main; main()"
)
_READY = "ready"


def start_apart(
    kind: str,
    place: Place,
    secret: bytes,
    deadline_s: float,
    door: socket.socket | None = None,
) -> None:
    """Start the process of a "hub" or "relay", and return once it serves."""
    held = () if door is None else (door.fileno(),)
    known = {k: v for k, v in asdict(place).items() if k != "secret"}
    job: dict[str, Any] = {"kind": kind, "place": known, "secret": secret.hex()}
    job |= {"deadline_s": deadline_s, "door": held[0] if held else -1}
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=held,
        start_new_session=True,  # what ends a rank's group does not end it
        text=True,
    )
    with suppress(BrokenPipeError):
        assert process.stdin is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    process.stdout.close()
    process.wait()  # what serves is a child of it, and nobody's here to wait for
    if door is not None:
        door.close()
    if said != _READY:
        raise RendezvousError(said or f"the {kind} of this job did not start")


def open_relay(place: Place, secret: bytes, until: float) -> Relay | None:
    """Return this host's relay to the hub of a job; None: the hub is not there yet."""
    assert place.address is not None, "hosts are joined by an address"
    path = relay_path(place)
    answer = knock(place.address, secret, until, stays=True)
    if answer is None or answer.connection is None:
        return None
    listener = listen(path)
    inode = path.lstat().st_ino
    ended = partial(end, path, inode, uptime_ns())
    return Relay(answer.connection, answer.host, listener, ended)


def relay_path(place: Place) -> Any:
    """Return the socket of this host's relay."""
    tail = host_id().rpartition("/")[2]
    return socket_path(f"{place.job}@{tail}")


def main() -> None:
    """Serve a job that is read from the standard input, until nobody is left.

    In a child: who started this may run for long, and waits for no hub.
    """
    job = json.loads(sys.stdin.read())
    if os.fork():
        os._exit(0)
    known = job["place"]
    known["address"] = known["address"] and tuple(known["address"])
    place, secret = Place(**known), bytes.fromhex(job["secret"])
    try:
        served = _open(job, place, secret)
    except (StrettoError, OSError) as e:
        sys.stdout.write(f"{e}\n")
        sys.stdout.flush()
        sys.exit(1)
    loop: Loop = served.loop
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    while not served.is_finished:
        loop.step(None)
    served.close()


def _open(job: dict[str, Any], place: Place, secret: bytes) -> Any:
    until = time.monotonic() + job["deadline_s"]
    if job["kind"] == "hub":
        door = socket.socket(fileno=job["door"]) if job["door"] >= 0 else None
        return open_hub(
            place, secret, deadline_s=job["deadline_s"], stays_open=True, door=door
        )
    while (relay := open_relay(place, secret, until)) is None:
        if time.monotonic() > until:
            raise RendezvousError(f"nobody answers at {place.address}")
    return relay
