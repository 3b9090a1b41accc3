"""The ranks of a group meet: what the store says, then a meeting of their own.

The name of the meeting is drawn by lot: a group that is made again, under the same name
and perhaps in the same store, meets elsewhere.
"""

from __future__ import annotations

import secrets
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from stretto.calls import Communicator, connect

__all__ = ["LONGEST_S", "meet", "seconds"]

LONGEST_S = 1e8
"""What stands for "no limit": three years."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def meet(store: Any, rank: int, size: int, timeout_s: float) -> Communicator | None:
    """Return the communicator of a group's members; None: they share no host."""
    name = _agree(store, rank, size)
    if name is None:
        return None
    return connect(rank, size, f"torch-{name}", deadline_s=timeout_s)


def _agree(store: Any, rank: int, size: int) -> str | None:
    """Return the name of the meeting, which rank 0 draws, when all are on one host."""
    if rank:
        store.set(f"stretto/host/{rank}", _host())
        name = store.get("stretto/name").decode()
    else:
        hosts = {store.get(f"stretto/host/{r}").decode() for r in range(1, size)}
        name = secrets.token_hex(12) if hosts <= {_host()} else ""
        store.set("stretto/name", name or "-")
    return name if name not in ("", "-") else None


def _host() -> str:
    """Return what differs between hosts, and between containers on one."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    return f"{boot} {socket.gethostname()}"


def seconds(timeout: timedelta | None) -> float | None:
    """Return a time-out of torch's in seconds; None: it is not set."""
    if timeout is None or timeout.total_seconds() < 0:
        return None
    given = timeout.total_seconds()
    return min(given, LONGEST_S) if given > 0 else LONGEST_S
