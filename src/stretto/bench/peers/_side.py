"""What a library does in one of the two processes of a comparison."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stretto.bench.child import LineSocket
from stretto.bench.contender import Library
from stretto.bench.timing import each_us
from stretto.bench.workload.moves import WHATS, MoveCase

_WARM_UP = 3


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


class MovingSide(Library):
    """One class for both processes, whose `role` is `here` or `there`."""

    PATHS: ClassVar[tuple[str, ...]] = ()
    """The ways it has, and below the cases that it can do."""
    WHATS: ClassVar[tuple[str, ...]] = WHATS
    lines: LineSocket
    memory: NDArray[np.uint8]
    """What is moved from, or to."""

    def __init__(self, role: str, path: str, nbytes: int) -> None:
        self.role, self.path = role, path
        self.memory = small_pages(nbytes)

    def about(self) -> Mapping[str, Any]:
        """Return what the other side must know."""
        raise NotImplementedError

    def meet(self, said: Mapping[str, Any]) -> None:
        """Connect, by what the other side says."""
        raise NotImplementedError

    def prepare(self, case: MoveCase) -> Callable[[], None]:
        """Return what does a case once, and returns when it is done."""
        raise NotImplementedError

    def attend(self, case: MoveCase, rounds: int, is_over: Callable[[], bool]) -> None:
        """Do what the other side needs done meanwhile, until it is over."""
        while not is_over():
            time.sleep(0.001)

    def over(self) -> None:
        """Let the other side know, where it waits for that, that it is over."""

    # What whoever compares asks for.

    def fill(self, case: Mapping[str, Any]) -> None:
        """Store a case's bytes where they are taken from, and none at the other end."""
        asked = MoveCase(**case)
        has = asked.has_source(self.role)
        self.memory[: max(1, asked.total)] = asked.source() if has else 0

    def is_right(self, case: Mapping[str, Any]) -> bool:
        """Return whether all has arrived."""
        asked = MoveCase(**case)
        return np.array_equal(self.memory[: max(1, asked.total)], asked.result())

    def serve(self, case: Mapping[str, Any], rounds: int) -> Any:
        """Attend until the next line, which is no question."""
        self.lines.tell({"answer": None})
        self.attend(MoveCase(**case), rounds + _WARM_UP, self.lines.has_line)
        return self.lines.hear()["do"]

    def time(self, case: Mapping[str, Any], rounds: int) -> list[float]:
        """Return the microseconds of so many rounds, after some to warm up."""
        asked = MoveCase(**case)
        call = self.prepare(asked)
        each_us(call, _WARM_UP)
        found = each_us(call, rounds, asked.idle_us)
        self.over()
        return found
