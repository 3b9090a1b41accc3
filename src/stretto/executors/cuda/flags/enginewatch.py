"""Deadlines for copy engines: what their calls say in host memory, and their release.

A call says which it is when it begins, 0 when it ends, and at each step where it is.
The watcher takes the second word away whenever it finds one; so a call that is inside
and says nothing new for as long as the deadline is stuck, also when one replay follows
another.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.executors import Group, Patience
from stretto.executors.cuda.device.driver import Pinned, ask
from stretto.executors.cuda.flags.regions import ENGINE_BYTES, ENGINE_SLOTS, Region
from stretto.plan import Plan, Signal, Wait, spell_step

__all__ = ["EngineWatch"]


class EngineWatch:
    """The host words of one session's engine calls, two per flag set."""

    def __init__(
        self,
        group: Group,
        regions: Sequence[Region],
        base: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._regions = tuple(regions)
        self._base = base
        self._clock = clock
        self._pinned = Pinned(len(self._regions))
        self._said: NDArray[np.uint32] = self._pinned.words.view(np.uint32)
        self._last = [(0, clock()) for _ in self._regions]
        self._patience = [Patience(group) for _ in self._regions]

    def words(self, region: Region) -> tuple[int, int]:
        """Return the device's addresses of a set's two words: which call, where."""
        at = self._pinned.device_pointer + 8 * self._regions.index(region)
        return at, at + 4

    def stuck(self) -> int | None:
        """Return the set in which a call is past its deadline."""
        now = self._clock()
        for index, (_, since) in enumerate(self._last):
            inside, at = self._said[2 * index : 2 * index + 2]
            if not inside:
                self._last[index] = (0, now)
            elif at:
                self._last[index] = (int(at), now)
                self._said[2 * index + 1] = 0
            elif self._patience[index].is_over(since, now):
                return index
        return None

    def tick(
        self,
        plans: dict[int, Plan],
        stream: object,
        who_called_what: Callable[[int, Sequence[int]], str],
    ) -> Exception | None:
        """Look once; return the fault of a stuck call, having freed it.

        `who_called_what` says so of a call and of the ranks that called another.
        """
        index = self.stuck()
        if index is None:
            return None
        mark = int(self._said[2 * index])
        step = max(0, self._last[index][0] - 1)
        words = self._read(index, stream)
        waiting, text = explain(self._group.rank, plans.get(mark), mark, step, words)
        others = ~np.isin(words[0], (0, 1, mark))
        differ = [q for q in range(self._group.num_ranks) if others[q].any()]
        mismatch = who_called_what(mark, differ) or text if differ else ""
        error = self._group.fail(waiting, text, mismatch=mismatch)
        self.release(mark, stream)
        return error

    def release(self, mark: int, stream: object) -> None:
        """Satisfy every wait of every call that is inside."""
        flags = np.zeros((2, ENGINE_BYTES // 8), np.uint32)
        flags[0] = mark
        for region in self._regions:
            _upload(self._base + region.engine, flags, stream)

    def release_all(self, stream: object) -> None:
        """Free whatever calls are inside now."""
        for index, _ in enumerate(self._regions):
            mark = int(self._said[2 * index])
            if mark:
                self.release(mark, stream)

    def close(self) -> None:
        """Free the words."""
        self._said = np.zeros(0, np.uint32)
        self._pinned.close()

    def _read(self, index: int, stream: object) -> NDArray[np.uint32]:
        """Return flags and credits, [kind][peer][n]."""
        raw = (ctypes.c_uint8 * ENGINE_BYTES)()
        start = self._base + self._regions[index].engine
        where = ctypes.addressof(raw)
        ask("cuMemcpyDtoHAsync", where, start, ENGINE_BYTES, stream)
        ask("cuStreamSynchronize", stream)
        words = np.ctypeslib.as_array(raw).view(np.uint32)
        return words.reshape(2, -1, ENGINE_SLOTS)


def _upload(to: int, words: NDArray[np.uint32], stream: object) -> None:
    raw = words.tobytes()
    buffer = ctypes.create_string_buffer(raw, len(raw))
    try:
        ask("cuMemcpyHtoDAsync", to, ctypes.addressof(buffer), len(raw), stream)
    finally:
        ask("cuStreamSynchronize", stream)


def explain(
    rank: int, plan: Plan | None, mark: int, step: int, words: NDArray[np.uint32]
) -> tuple[list[int], str]:
    """Return whom a stuck call waits for, and where it is in words."""
    if plan is None:
        return [], f"rank {rank}: a copy-engine call is stuck at step {step}"
    steps = plan.ranks[rank][0]
    waiting: list[int] = []
    at = steps[step] if step < len(steps) else steps[-1]
    for one in steps[step:]:
        if type(one) is not type(at):
            break
        if isinstance(one, Wait) and words[0, one.rank, one.n] != mark:
            waiting.append(one.rank)
        if isinstance(one, Signal) and words[1, one.rank, one.n] != 0:
            waiting.append(one.rank)
    waiting = sorted(set(waiting)) or [
        s.rank for s in [at] if isinstance(s, Wait | Signal)
    ]
    if not waiting:  # at a copy, which only a broken link keeps from ending
        waiting = [q for q in range(plan.num_ranks) if q != rank]
    where = f"step {step} ({spell_step(rank, at)})"
    return waiting, f"rank {rank}, {plan.name}, {where}: ranks {waiting} did not come"
