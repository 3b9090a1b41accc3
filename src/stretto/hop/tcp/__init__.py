"""TCP: the carrier that is always there. Frames on sockets, a stream a lane."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from stretto.hop import Window
from stretto.hop.tcp import carrier, options
from stretto.hop.tcp.carrier import TcpHop

__all__ = ["TcpHop", "doctor", "missing", "open_hop"]


def open_hop(window: Window, *, compiled: bool | None = None) -> TcpHop:
    """Open a rank's way to its peers; `compiled` only where it must be so, or not."""
    return TcpHop(window, compiled=compiled)


def missing() -> str:
    """Return nothing: it is always there."""
    return ""


def doctor() -> Mapping[str, str]:
    """Return what this machine has for it, and what is missing, by subject."""
    why = carrier.missing()
    return {
        "engine": f"pure Python, slower: {why}" if why else "compiled by Numba",
        "congestion control": options.congestion(),
        "interfaces": ", ".join(name for _, name in socket.if_nameindex()) or "none",
    }
