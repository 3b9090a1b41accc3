"""The functions of C that compiled code calls, each declared once; numbers of theirs.

`outside` declares one by its name and type; `builtins` has those of CPython.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any

from numba import types

from stretto.fabric.jit.atomics import compiled, load, store

__all__ = [
    "INT", "MONOTONIC", "NO_WAIT", "POLLIN", "POLLOUT", "WORD", "clock_gettime",
    "epoll_ctl", "errno_at", "ioctl", "memcpy", "now_ns", "outside", "poll", "poll_for",
    "process_vm_readv", "process_vm_writev", "read", "recv", "recvmsg", "sched_yield",
    "send", "sendmsg", "thread_ident", "usleep", "write",
]  # fmt: skip

NO_WAIT = int(getattr(socket, "MSG_DONTWAIT", 0x40))
POLLIN = int(getattr(select, "POLLIN", 1)) << 32
"""What `poll` waits for, as it stands in a word behind a descriptor."""
POLLOUT = int(getattr(select, "POLLOUT", 4)) << 32
MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 1))
INT, WORD = types.int32, types.int64


def outside(name: str, kind: Any) -> Any:
    """Return what compiled code calls for a function that is not ours."""
    return types.ExternalFunction(name, kind)


_Two = Callable[[int, int], int]
_Three = Callable[[int, int, int], int]
_Four = Callable[[int, int, int, int], int]
_Six = Callable[[int, int, int, int, int, int], int]

memcpy: _Three = outside("memcpy", WORD(WORD, WORD, WORD))
clock_gettime: _Two = outside("clock_gettime", INT(INT, WORD))
sched_yield: Callable[[], int] = outside("sched_yield", INT())
usleep: Callable[[int], int] = outside("usleep", INT(types.uint32))
thread_ident: Callable[[], int] = outside("pthread_self", WORD())
"""Return what `threading.get_ident` returns in this thread."""
errno_at: Callable[[], int] = outside("__errno_location", WORD())
"""Return where this thread's `errno` stands."""
read: _Three = outside("read", WORD(INT, WORD, WORD))
write: _Three = outside("write", WORD(INT, WORD, WORD))
send: _Four = outside("send", WORD(INT, WORD, WORD, INT))
recv: _Four = outside("recv", WORD(INT, WORD, WORD, INT))
sendmsg: _Three = outside("sendmsg", WORD(INT, WORD, INT))
recvmsg: _Three = outside("recvmsg", WORD(INT, WORD, INT))
epoll_ctl: _Four = outside("epoll_ctl", INT(INT, INT, INT, WORD))
ioctl: _Three = outside("ioctl", INT(INT, WORD, WORD))
poll: _Three = outside("poll", INT(WORD, WORD, INT))
_ppoll: _Four = outside("ppoll", INT(WORD, WORD, WORD, WORD))
process_vm_readv: _Six = outside(
    "process_vm_readv", WORD(INT, WORD, WORD, WORD, WORD, WORD)
)
process_vm_writev: _Six = outside(
    "process_vm_writev", WORD(INT, WORD, WORD, WORD, WORD, WORD)
)


@compiled("int64(int64)")
def now_ns(clock: int) -> int:
    """Return the time; the two words at an address are used for it."""
    clock_gettime(MONOTONIC, clock)
    return load(clock) * 1_000_000_000 + load(clock + 8)


@compiled("int64(int64,int64,int64,int64)")
def poll_for(polled: int, many: int, clock: int, ns: int) -> int:
    """Sleep until one of these stirs, at most so long; return whether one did.

    The two words at `clock` are used for it.
    """
    store(clock, ns // 1_000_000_000)
    store(clock + 8, ns % 1_000_000_000)
    return 1 if _ppoll(polled, many, clock, 0) > 0 else 0
