"""NIXL: puts by the backend that a cluster has for it, EFA's libfabric among them."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.errors import MissingExtraError
from stretto.hop import Window, say_plain
from stretto.hop.nixl import library

__all__ = ["doctor", "missing", "open_hop"]


def open_hop(window: Window, *, compiled: bool | None = None) -> object:
    """Open a rank's way to its peers; all interpreters can use it.

    Its compiled calls take the interpreter's lock. Who must not wait for that in them,
    opens it with `compiled=False`, and has none.
    """
    if why := missing():
        raise MissingExtraError(f"carrier nixl: {why}")
    from stretto.hop.nixl.carrier import NixlHop

    say_plain("nixl", window.rank)
    return NixlHop(window, has_calls=compiled is not False)


def missing() -> str:
    """Return why it cannot be used here, or nothing."""
    return library.missing() or library.clash()


def doctor() -> Mapping[str, str]:
    """Return what this machine has for it, and what is missing, by subject."""
    if why := library.missing():
        return {"ready": f"no: {why}"}
    return {
        "ready": f"yes: {library.version()}, backend {library.backend()}",
        "backends": ", ".join(library.backends()),
        "end of processes": library.fault_at_end() or "in order",
        "memory of GPUs": "by way of pinned memory, not GPUDirect",
    }
