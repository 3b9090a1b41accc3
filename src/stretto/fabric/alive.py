"""Notice a host that is gone, and never one that is there: packets get lost.

On a silent connection the kernel asks each second whether the other end is there. It
gives up at the first second at which nothing has come for the time that is set here: a
time below two seconds means, as soon as one packet is lost. What a program says itself
is sent again at once when it is lost. So who beats, as a relay and its hub do, may give
up early; on all other connections three questions must be lost in a row.
"""

from __future__ import annotations

import socket

BEAT_S = 0.6
"""How long a connection that beats is silent."""
_SILENT_MS, _BEATING_MS = 3500, 1600
_OPTIONS = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}


def watch(sock: socket.socket, *, beats: bool = False, read_late: bool = False) -> None:
    """End a connection when its host is gone: after 4 s, or 2 s on one that beats.

    With `read_late` the other end may read nothing for as long as it likes, which the
    kernel's limit takes for being gone; then only a silent connection ends by itself.
    It also sends what is short at once.
    """
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = dict(_OPTIONS)
    if not read_late:
        options["TCP_USER_TIMEOUT"] = _BEATING_MS if beats else _SILENT_MS
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
