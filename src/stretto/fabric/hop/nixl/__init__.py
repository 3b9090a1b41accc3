"""NIXL: puts by the backend that a cluster has for it, EFA's libfabric among them."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.fabric.hop import Carrier, Hop, Window
from stretto.fabric.hop.nixl import library

__all__ = ["OFFER", "Nixl"]


class Nixl(Carrier):
    """Requests of an agent, several lanes a peer; it wakes nobody."""

    name, library = "nixl", "ucx"
    lanes, checks_puts = True, False

    def new_hop(self, window: Window) -> Hop:
        """Make an agent."""
        from stretto.fabric.hop.nixl.carrier import NixlHop

        return NixlHop(self, window)

    def missing(self) -> str:
        """Return why it cannot be used here, or nothing."""
        return library.missing() or library.clash()

    def doctor(self) -> Mapping[str, str]:
        """Return what this machine has for it, and what is missing, by subject."""
        if why := library.missing():
            return {"ready": f"no: {why}"}
        return {
            "ready": f"yes: {library.version()}, backend {library.backend()}",
            "backends": ", ".join(library.backends()),
            "end of processes": library.fault_at_end() or "in order",
        }


OFFER = Nixl()
