"""Compile what will be measured while something else is measured.

Kernels are compiled for one rank each and kept on disk, so every rank compiles its own,
in threads: the compiler runs without Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from stretto import algorithms, executors
from stretto.bench.tune.space import kernel_plan
from stretto.collectives import Operator
from stretto.runtime import Question

__all__ = ["Ahead"]


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
        self._started: dict[tuple[str, Any], Future[None]] = {}

    def start(self, pins: Iterable[str], asked: Question) -> None:
        """Compile what serves these pins, behind what was asked for before."""
        if self._pool is None:
            return
        for pin in pins:
            key = (pin, asked.in_place)
            if key not in self._started:
                self._started[key] = self._pool.submit(self._compile, pin, asked)

    def wait(self, pins: Iterable[str], asked: Question) -> None:
        """Wait for what serves these pins; whoever needs it meets what went wrong."""
        self.start(pins, asked)
        for pin in pins:
            started = self._started.get((pin, asked.in_place))
            if started is not None:
                started.exception()

    def close(self) -> None:
        """Compile nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, pin: str, asked: Question) -> None:
        if algorithms.get(pin.partition(" ")[0]).kernel is not None:
            return  # written by hand: compiled when it is called
        plan = kernel_plan(pin, asked)
        if plan is not None and self._warm is not None:
            self._warm(
                plan, dtype=self._dtype, op=self._op, rank=self._rank, arch=self._arch
            )
