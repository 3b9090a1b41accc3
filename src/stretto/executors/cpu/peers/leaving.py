"""How a rank leaves a call that failed while peers may be writing in its arrays.

A peer that gives has the kernel write in memory that is ours again once we have raised.
So it says in whose arrays it is about to write, looks whether they are still in the
call, writes a little, and says that it has; who leaves says so, and looks whether
somebody writes. Between the two, each has a full fence: one of them sees.
"""

from __future__ import annotations

import os
import select
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from stretto.executors.cpu.peers.far import FarSlab
from stretto.executors.cpu.shared.slab import Slab
from stretto.fabric.process import open_pidfd

__all__ = ["leave"]

_LOOK_S = 20e-6
_LONGEST_S = 2.0
"""A piece takes tens of microseconds; only who is stopped in its midst takes longer."""
_fence = threading.Lock()


def leave(rank: int, slabs: Sequence[Slab | FarSlab]) -> None:
    """Return when no peer writes in this rank's arrays any more, nor will."""
    mine = slabs[rank]
    assert isinstance(mine, Slab), "it is ours"
    mine.leave()
    with _fence:  # what is stored before is seen before what is loaded after
        pass
    until = time.monotonic() + _LONGEST_S
    for peer, slab in enumerate(slabs):
        while isinstance(slab, Slab) and slab.gives()[0] == rank != peer:
            if _has_ended(slab.gives()[1]):
                break
            if time.monotonic() > until:
                warnings.warn(
                    f"rank {peer} stands still while it writes in an array of rank "
                    f"{rank}, which has left the call: that array may still change",
                    RuntimeWarning,
                    stacklevel=2,
                )
                break
            time.sleep(_LOOK_S)


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended, also where nobody has collected it."""
    held = open_pidfd(pid) if pid else None
    if held is None:
        return pid == 0 or not Path(f"/proc/{pid}").exists()
    number = held.take()
    try:
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(number)
