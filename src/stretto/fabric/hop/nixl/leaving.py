"""The end of a process that has not closed its hops.

A thread that is in one of NIXL's calls when the interpreter ends is ended there, and
C++ then aborts the process. So the hops are ended before, and nobody calls it later.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any

_hops: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: list[int] = []


def ends_with_process(hop: Any) -> None:
    """Have a hop ended when this process ends; a child that it forks ends none."""
    if os.getpid() not in _registered:
        _hops.clear()  # of the process that forked this one
        _registered.append(os.getpid())
        atexit.register(_leave, os.getpid())
    _hops.add(hop)


def _leave(pid: int) -> None:
    if pid == os.getpid():
        for hop in list(_hops):
            hop.close()
