"""UCX: puts by whatever it finds between two hosts, InfiniBand and RoCE among them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stretto.fabric.hop import Carrier, Hop, Window
from stretto.fabric.hop.ucx import library
from stretto.fabric.jit.loading import load

__all__ = ["OFFER", "Ucx"]

_log = logging.getLogger("stretto.hop")


class Ucx(Carrier):
    """One stream a peer, by the fabric that UCX takes."""

    name = library = "ucx"
    compiled, checks_puts = True, False

    def new_hop(self, window: Window) -> Hop:
        """Make a worker."""
        from stretto.fabric.hop.ucx.carrier import UcxHop

        if why := library.passed_over():
            level = logging.INFO if window.rank else logging.WARNING
            _log.log(level, "carrier ucx: %s", why)
        return UcxHop(self, window)

    def missing(self) -> str:
        """Return why it cannot be used here, or nothing; then it is ready at once."""
        if why := library.missing():
            return why
        load("carrier ucx", "stretto.fabric.hop.ucx.carrier")  # compiled before we meet
        return ""

    def doctor(self) -> Mapping[str, str]:
        """Return what this machine has for it, and what is missing, by subject."""
        if why := library.missing():
            return {"ready": f"no: {why}"}
        ucp = library.load()
        return {
            "ready": f"yes: UCX {ucp.version}, {ucp.where}",
            "built for": ", ".join(ucp.fabrics()),
            "cards with RDMA": library.passed_over() or "as UCX finds them",
        }


OFFER = Ucx()
