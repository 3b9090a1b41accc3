"""UCX: puts by whatever it finds between two hosts, InfiniBand and RoCE among them."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping

from stretto.errors import MissingExtraError
from stretto.hop import Window, say_plain
from stretto.hop.ucx import library

__all__ = ["doctor", "missing", "open_hop"]

_log = logging.getLogger("stretto.hop")


def open_hop(window: Window, *, compiled: bool | None = None) -> object:
    """Open a rank's way to its peers; it is there compiled only."""
    why = library.missing()
    if why or compiled is False:
        raise MissingExtraError(
            f"carrier ucx: {why or 'it needs compiled interpreters'}"
        )
    from stretto.hop.ucx.carrier import UcxHop

    say_plain("ucx", window.rank)
    if why := library.passed_over():
        level = logging.INFO if window.rank else logging.WARNING
        _log.log(level, "carrier ucx: %s", why)
    return UcxHop(window)


def missing() -> str:
    """Return why it cannot be used here, or nothing; then it is ready at once."""
    if why := library.missing():
        return why
    importlib.import_module("stretto.hop.ucx.carrier")  # compiled now, not when we meet
    return ""


def doctor() -> Mapping[str, str]:
    """Return what this machine has for it, and what is missing, by subject."""
    if why := library.missing():
        return {"ready": f"no: {why}"}
    ucp = library.load()
    return {
        "ready": f"yes: UCX {ucp.version}, {ucp.where}",
        "built for": ", ".join(ucp.fabrics()),
        "cards with RDMA": library.passed_over() or "as UCX finds them",
        "memory of GPUs": "by way of pinned memory, not GPUDirect",
    }
