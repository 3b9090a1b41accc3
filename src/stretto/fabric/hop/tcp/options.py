"""What is asked of a connection: small frames at once, no pacing nearby, early notice.

Some systems pace what leaves by default (BBR): timers spread the segments of a stream.
That serves long ways with losses. Between hosts of one place it costs three times the
time and twice the processor, and so it is left off there, for our connections alone.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stretto.errors import RendezvousError
from stretto.fabric import alive
from stretto.fabric.variables import text_of

CONGESTION = "STRETTO_TCP_CONGESTION"
_UNANSWERED_MS = 3500
"""What is sent is acknowledged by then, or else the host is gone."""
_PACED = ("bbr",)
_UNPACED = ("cubic", "reno")
"""In order of preference: not every process may have the first; any may the second."""
_NEARBY_US = 2000
"""A round trip of one place, and not of two."""
_AGAIN, _PROBES, _UNACKED, _LAST_ACK, _LEAST_RTT = 2, 3, 24, 56, 148
"""Where `tcp_info` of Linux has how often in a row it was sent again, how often a peer
was asked for room and did not answer, what is sent and not acknowledged, how long ago
the last acknowledgement came, in milliseconds, and the least round trip, in
microseconds."""
_OFTEN = 2
"""How often in a row it is sent again or asked in vain until a rail is left: 0.6 s."""
_MANY_PROBES = 3
_SETTLE_S, _PAUSE_S = 0.5, 0.001
_INFO = _LEAST_RTT + 4
_HAS_INFO = os.uname().sysname == "Linux" and hasattr(socket, "TCP_INFO")
_SYSTEMS = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def tune(sock: socket.socket) -> None:
    """Send small frames at once, do not pace, and notice a host that is gone."""
    sock.setblocking(False)
    if sock.family == getattr(socket, "AF_UNIX", None):  # of TLS's thread
        return
    alive.watch(sock, read_late=True)
    unpaced(sock)


def unpaced(sock: socket.socket, environment: Mapping[str, str] | None = None) -> str:
    """Choose a connection's congestion control; return its name, or nothing.

    What users name counts. Else the system's, but for one that paces to a peer nearby.
    """
    if not hasattr(socket, "TCP_CONGESTION"):
        return ""
    if named := text_of(CONGESTION, "", environment):
        try:
            _choose(sock, named)
        except OSError as e:
            raise RendezvousError(
                f"{CONGESTION}={named}: {socket.gethostname()} does not let this "
                f"process have it ({e.strerror}); it has {', '.join(_known())}"
            ) from None
    elif _name(sock).startswith(_PACED) and _round_trip_us(sock) < _NEARBY_US:
        for name in _UNPACED:
            with suppress(OSError):
                _choose(sock, name)
                break
    return _name(sock)


def silent(sock: socket.socket) -> str:
    """Return how the host at the other end seems to be gone, or nothing.

    A peer that reads nothing for long is no fault: it is busy with something else. Its
    system still answers. The system's own limit (TCP_USER_TIMEOUT) does not know the
    difference, and ends the connections of ranks that are late.
    """
    info = _info(sock)
    if not info:
        return ""
    unacked, *_, last_ack = struct.unpack_from("=9I", info, _UNACKED)
    waits = unacked or info[_PROBES] >= _MANY_PROBES
    if not waits or last_ack < _UNANSWERED_MS:
        return ""
    return f"its host has acknowledged nothing for {last_ack / 1e3:.1f} s"


def stalls(sock: socket.socket) -> bool:
    """Return whether what was sent does not arrive, sooner than the host is given up.

    It may be the rail's fault, and where there is another, that one is tried. Where
    this host's own end is down, nothing leaves that could be sent again: the system
    only asks for room, and hears nothing.
    """
    info = _info(sock)
    return bool(info) and max(info[_AGAIN], info[_PROBES]) >= _OFTEN


def settle(socks: Sequence[socket.socket]) -> None:
    """Wait until the peers' systems have what was sent, but not for long.

    Whoever closes a connection on which something is unread resets it, and loses what
    has not left yet. So what comes is thrown away, until all has been acknowledged.
    """
    until = time.monotonic() + _SETTLE_S
    left = list(socks)
    while left := [sock for sock in left if _is_sending(sock)]:
        if time.monotonic() > until:
            return
        time.sleep(_PAUSE_S)


def _is_sending(sock: socket.socket) -> bool:
    """Throw away what has come; return whether something is not acknowledged yet."""
    try:
        with suppress(BlockingIOError):
            while sock.recv(1 << 16):
                pass
        if sock.family == getattr(socket, "AF_UNIX", None) or silent(sock):
            return False
        waits = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return bool(struct.unpack("=i", waits)[0])
    except (OSError, ValueError):  # it has ended
        return False


def congestion(environment: Mapping[str, str] | None = None) -> str:
    """Return what connections will have on this host, in words."""
    if named := text_of(CONGESTION, "", environment):
        return f"{named}, by {CONGESTION}"
    try:
        system = _SYSTEMS.read_text(encoding="ascii").strip()
    except OSError:
        return "the system's"
    if not system.startswith(_PACED):
        return f"{system}, the system's"
    free = next((n for n in _UNPACED if n in _known()), _UNPACED[-1])
    return (
        f"{free} to hosts nearby, as the system's {system} paces; "
        f"{CONGESTION}={system} keeps it"
    )


def _known() -> list[str]:
    file = _SYSTEMS.with_name("tcp_available_congestion_control")
    with suppress(OSError):
        return sorted(file.read_text(encoding="ascii").split())
    return []


def _choose(sock: socket.socket, name: str) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def _name(sock: socket.socket) -> str:
    said = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return said.rstrip(b"\0").decode("ascii", "replace")


def _round_trip_us(sock: socket.socket) -> int:
    """Return the least round trip that the system has seen, or what is no place's."""
    info = _info(sock)
    if not info:
        return _NEARBY_US
    return int(struct.unpack_from("=I", info, _LEAST_RTT)[0])


def _info(sock: socket.socket) -> bytes:
    """Return what Linux knows of a connection, or nothing."""
    if sock.family == getattr(socket, "AF_UNIX", None) or not _HAS_INFO:
        return b""
    with suppress(OSError):
        said = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
        return said if len(said) == _INFO else b""
    return b""
