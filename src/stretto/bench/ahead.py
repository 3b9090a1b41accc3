"""Compile what will be measured while something else is measured.

Kernels are compiled for one rank each and kept on disk, so every rank compiles its own,
in threads: the compiler runs without Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from stretto import algorithms, executors
from stretto.bench.cases import Case
from stretto.collectives import Operator
from stretto.plan import Schedule
from stretto.runtime import FrozenParams, frozen, proved_plan

__all__ = ["Ahead"]

Key: TypeAlias = tuple[str, int, FrozenParams, bool]
"""What a kernel depends on, beside the element type: a pin, and the plan's form."""


class Ahead:
    """What is being compiled on this rank; nothing, where nothing needs to be."""

    def __init__(
        self,
        executor: str,
        rank: int,
        num_ranks: int,
        *,
        dtype: str,
        op: str,
        arch: tuple[int, int] | None,
    ) -> None:
        """Start with nothing; `arch` is the GPU's, None where there is none."""
        warm = getattr(executors.get(executor), "warm", None)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        if arch is None:
            warm = None
        self._warm, self._rank, self._arch = warm, rank, arch
        self._dtype, self._op = dtype, Operator.named(op)
        threads = max(1, (cores - 2 * num_ranks) // num_ranks)
        self._pool = ThreadPoolExecutor(threads, "ahead") if warm else None
        self._started: dict[Key, Future[None]] = {}

    def start(self, pins: Iterable[str], case: Case) -> None:
        """Compile what serves these pins, behind what was asked for before."""
        if self._pool is None:
            return
        for pin in pins:
            key = _key(pin, case)
            if key not in self._started:
                self._started[key] = self._pool.submit(self._compile, *key)

    def wait(self, pins: Iterable[str], case: Case) -> None:
        """Wait for what serves these pins; whoever needs it meets what went wrong."""
        some = list(pins)
        self.start(some, case)
        for pin in some:
            started = self._started.get(_key(pin, case))
            if started is not None:
                started.exception()

    def close(self) -> None:
        """Compile nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(
        self, pin: str, num_ranks: int, params: FrozenParams, in_place: bool
    ) -> None:
        name, _, words = pin.partition(" ")
        algorithm, how = algorithms.get(name), Schedule.parse(words)
        if algorithm.kernel is not None or self._warm is None:
            return  # written by hand: compiled when it is called
        plan = proved_plan(algorithm, num_ranks, params, how, in_place)
        self._warm(
            plan, dtype=self._dtype, op=self._op, rank=self._rank, arch=self._arch
        )


def _key(pin: str, case: Case) -> Key:
    in_place = case.in_place or "zero_copy" not in pin
    return pin, case.num_ranks, frozen(case.params), in_place
