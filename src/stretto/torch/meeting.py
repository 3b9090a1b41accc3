"""The ranks of a group meet: by the store that the group has, and then on their own.

The name of the meeting is drawn by lot: a group that is made again, under the same name
and perhaps in the same store, meets elsewhere. So do the other backends of it, which
leave in the store where they are to be found.
"""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from stretto.runtime.calls import Communicator, Work, connect_on
from stretto.torch.untraced import untraced

LONGEST_S = 1e8
"""What stands for "no limit": three years."""


class Elsewhere(Protocol):
    """Where groups meet whose ranks may change: not by their store."""

    def join(self, group: Any, opts: Any, timeout_s: float) -> Any:
        """Return what a group's calls are made on."""

    def leave(self, group: Any) -> None:
        """Take note that a group is closed."""


elsewhere: list[Elsewhere] = []
"""At most one: then all groups meet there."""


untraced(Communicator)
untraced(Work)


def meet(
    store: Any, rank: int, size: int, timeout_s: float
) -> tuple[Communicator, Any]:
    """Return the communicator of a group's members, on one host or on several.

    And a store for this meeting alone: nothing is in it.
    """
    store = of_this_attempt(store)
    if rank == 0:  # before it meets the others, who read it afterwards
        store.set("stretto/lot", secrets.token_hex(6))
    where, late = _host_of(store), torch.cuda.is_available()  # few calls on CPUs then
    comm = connect_on(
        store, rank, size, towards=where, deadline_s=timeout_s, opens_late=late
    )
    lot = store.get("stretto/lot").decode()
    return comm, dist.PrefixStore(f"stretto {lot}", store)


def of_this_attempt(store: Any) -> Any:
    """Return a store without what earlier attempts of torchrun have left in it.

    On one host it starts ranks anew with the same store, where Gloo reads addresses of
    ranks that are gone. Hosts count their attempts apart: there it is left as it is.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return dist.PrefixStore(f"attempt {attempt}", store)


def _host_of(store: Any) -> str:
    """Return where a store is served, if it is: all ranks reach it there."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    found = getattr(store, "host", "")
    return found if isinstance(found, str) else ""


def seconds(timeout: timedelta | None) -> float | None:
    """Return a time-out of torch's in seconds; None: it is not set."""
    if timeout is None or timeout.total_seconds() < 0:
        return None
    given = timeout.total_seconds()
    return min(given, LONGEST_S) if given > 0 else LONGEST_S
