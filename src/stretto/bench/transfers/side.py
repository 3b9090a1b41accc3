"""One process of a comparison: it does what lines on a socket ask for.

    python -m stretto.bench.transfers.side MODULE ROLE PATH BYTES DESCRIPTOR

Each library has two of them, `here` and `there`, and nothing else in them: so no two
libraries share a process, and what they print goes nowhere near the answers.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import select
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.bench.transfers.cases import Case

__all__ = ["Channel", "Side", "main", "small_pages"]

_WARM_UP = 3


class Channel:
    """Lines of JSON, both ways, on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._file = sock, sock.makefile("rw", encoding="utf-8")
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def tell(self, said: Mapping[str, Any]) -> None:
        """Send a line."""
        self._file.write(json.dumps(said) + "\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next line; empty: the other end is gone."""
        line = self._file.readline()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._sock.close()

    def has_line(self) -> bool:
        """Return whether there is one."""
        return bool(self._poll.poll(0))


def small_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return memory of small pages, written once.

    NumPy's has huge ones where the system finds some, and the kernel copies from these
    three times as fast: who found them would win.
    """
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    made = np.frombuffer(memory, np.uint8)
    made[:] = 1
    return made


class Side(ABC):
    """What a library does in one of the two processes: one class for both."""

    memory: NDArray[np.uint8]
    """What is moved from, or to."""

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        self.role, self.path = role, path
        self.memory = small_pages(nbytes)

    @abstractmethod
    def about(self) -> Mapping[str, Any]:
        """Return what the other side must know."""

    @abstractmethod
    def meet(self, said: Mapping[str, Any]) -> None:
        """Connect, by what the other side says."""

    @abstractmethod
    def prepare(self, case: Case) -> Callable[[], None]:
        """Return what does a case once, and returns when it is done."""

    def attend(self, case: Case, rounds: int, is_over: Callable[[], bool]) -> None:
        """Do what the other side needs done meanwhile, until it is over."""
        while not is_over():
            time.sleep(0.001)

    def over(self) -> None:  # noqa: B027  (most have nobody to tell)
        """Let the other side know, where it waits for that, that it is over."""


def _answer(side: Side, channel: Channel, said: Mapping[str, Any]) -> Any:
    match said["do"]:
        case "about":
            return dict(side.about())
        case "meet":
            return side.meet(said["said"])
    case = Case(**said["case"])
    n = max(1, case.total)
    match said["do"]:
        case "fill":
            side.memory[:n] = case.source() if case.has_source(side.role) else 0
            return None
        case "check":
            return bool(np.array_equal(side.memory[:n], case.result()))
        case "attend":
            channel.tell({"answer": None})
            side.attend(case, int(said["rounds"]) + _WARM_UP, channel.has_line)
            return channel.hear()["do"]
        case "time":
            return _times(side, case, int(said["rounds"]))
    raise ValueError(said)


def _times(side: Side, case: Case, rounds: int) -> list[float]:
    call = side.prepare(case)
    for _ in range(_WARM_UP):
        call()
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    side.over()
    return seconds


def main() -> None:
    """Serve until the other end is gone."""
    name, role, path, nbytes, descriptor = sys.argv[1:6]
    channel = Channel(socket.socket(fileno=int(descriptor)))
    try:
        side = importlib.import_module(name).open_side(role, path, int(nbytes))
        channel.tell({"answer": None})
        while said := channel.hear():
            channel.tell({"answer": _answer(side, channel, said)})
    except Exception as e:
        channel.tell({"error": f"{type(e).__name__}: {e}"})
    os._exit(0)


if __name__ == "__main__":
    main()
