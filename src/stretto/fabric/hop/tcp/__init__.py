"""TCP: the carrier that is always there. Frames on sockets, a stream a lane."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

from stretto.errors import MissingExtraError
from stretto.fabric import jit
from stretto.fabric.hop import Carrier, Hop, Window
from stretto.fabric.hop.tcp import options
from stretto.fabric.jit.loading import load

__all__ = ["OFFER", "Tcp"]


class Tcp(Carrier):
    """Frames on sockets: wherever a connection can be made."""

    name = "tcp"
    compiled = fields = lanes = rails = encrypted = True

    def new_hop(self, window: Window) -> Hop:
        """Listen where peers come to."""
        from stretto.fabric.hop.tcp.carrier import TcpHop

        return TcpHop(self, window)

    def missing(self) -> str:
        """Return why it cannot be used here, or nothing; then it is ready at once."""
        if sys.platform != "linux":
            return "it is for Linux"
        try:
            load("carrier tcp", "stretto.fabric.hop.tcp.engine")
        except MissingExtraError as e:
            return str(e)
        return ""

    def doctor(self) -> Mapping[str, str]:
        """Return what this machine has for it, and what is missing, by subject."""
        why = jit.missing()
        return {
            "engine": f"missing: {why}" if why else "compiled by Numba",
            "congestion control": options.congestion(),
            "interfaces": ", ".join(n for _, n in socket.if_nameindex()) or "none",
        }


OFFER = Tcp()
