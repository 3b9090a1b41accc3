"""What this process holds, by name: so that what is left is said, and not counted."""

from __future__ import annotations

import gc
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass

from tests.soon import soon
from tests.waiting import until

__all__ = ["Held", "held", "left_since"]

_OURS = re.compile(r"/memfd:\S+|/\S*given-back\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Descriptors, mappings of shared memory, and threads."""

    files: tuple[str, ...]
    mappings: tuple[str, ...]
    threads: tuple[str, ...]

    def more_than(self, before: Held) -> list[str]:
        """Return what there is more of than before, each with all that is new of it."""
        found = []
        for kind in self.__slots__:
            mine, others = getattr(self, kind), list(getattr(before, kind))
            if len(mine) > len(others):
                for one in mine:
                    if one in others:
                        others.remove(one)
                    else:
                        found.append(f"{kind}: {one}")
        return found


def held() -> Held:
    """Return what this process holds now; what nobody refers to any more may be there.

    A test that is to find the smallest thing collects that first, which takes seconds
    where much was imported.
    """
    files = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - of this very moment
        with suppress(OSError):  # what lists them is among them, and closed by now
            files.append(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")  # noqa: PTH115
    with open("/proc/self/maps", errors="replace") as maps:  # noqa: PTH123
        mappings = _OURS.findall(maps.read())
    names = [one.name for one in threading.enumerate()]
    return Held(files=(*files,), mappings=(*mappings,), threads=(*names,))


def left_since(
    before: Held, within_s: float = 10.0, *, collects: bool = True
) -> list[str]:
    """Return what is left of something, once nothing is, or after a while.

    Without `collects` it must go by itself: no garbage collector need come by.
    """

    def nothing() -> bool:
        return not held().more_than(before)

    if not nothing():
        if collects:
            gc.collect()
        with suppress(AssertionError):
            until(nothing, soon(within_s))
    return held().more_than(before)
