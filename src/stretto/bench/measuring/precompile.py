"""Compile what will be measured while something else is measured.

Kernels are compiled for one rank each and kept on disk, so every rank compiles its own,
in threads: the compiler runs without Python's lock. What somebody waits for overtakes
what may be wanted later, and threads that launch come before those that compile.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from stretto.bench.workload.cases import CallCase
from stretto.compiler.plan import Schedule
from stretto.executors import Call, cuda
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.runtime.choice import FrozenParams, frozen, proved_plan

_NICE = 10
"""Of threads that compile, where threads have priorities of their own."""

Key: TypeAlias = tuple[str, int, FrozenParams, bool, tuple[int, ...]]
"""What a call is: a pin, the plan's form, and counts. Many share their kernels."""


class Precompiler:
    """What is being compiled on this rank; nothing, where nothing needs to be."""

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        *,
        dtype: str,
        op: str,
        arch: tuple[int, int] | None,
    ) -> None:
        """Start with nothing; `arch` is the GPU's, None where there is none."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self._rank, self._arch = rank, arch
        self._dtype, self._op = dtype, Operator.named(op)
        threads = max(1, (cores - 2 * num_ranks) // num_ranks)
        self._pool = None
        if arch is not None:
            self._pool = ThreadPoolExecutor(threads, "ahead", initializer=_step_back)
        self._asked: dict[Key, Future[None]] = {}
        self._waiting: deque[Key] = deque()
        """As many as there are calls of `_next` to come."""
        self._order = threading.Lock()
        self._kernels: dict[str, Future[object]] = {}

    @property
    def asked(self) -> list[str]:
        """Return the pins whose kernels are, or have been, compiled here."""
        return list(dict.fromkeys(key[0] for key in list(self._asked)))

    def start(self, pins: Iterable[str], case: CallCase) -> None:
        """Compile what serves these pins, behind what was asked for before."""
        if self._pool is None:
            return
        for pin in pins:
            key = _key(pin, case)
            if key not in self._asked:
                self._asked[key] = Future()
                with self._order:
                    self._waiting.append(key)
                self._pool.submit(self._next)

    def wait(
        self, pins: Iterable[str], case: CallCase, *, at_most_s: float = math.inf
    ) -> list[str]:
        """Wait for what serves these pins, and return those for which it is there.

        They overtake what was asked for before and has not begun. Whoever needs one
        meets what went wrong with it.
        """
        some = list(pins)
        self.start(some, case)
        if self._pool is None:  # nothing to compile, or closed
            return some
        keys = dict.fromkeys(_key(pin, case) for pin in some)
        with self._order:
            first = [key for key in keys if key in self._waiting]
            later = [key for key in self._waiting if key not in keys]
            self._waiting = deque((*first, *later))
        until = time.monotonic() + at_most_s
        for key in keys:
            left_s = None if math.isinf(until) else max(0.0, until - time.monotonic())
            with contextlib.suppress(TimeoutError):
                self._asked[key].exception(left_s)
        return [pin for pin in some if self._asked[_key(pin, case)].done()]

    def close(self) -> None:
        """Compile nothing more: from now on, whoever calls a plan does."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _next(self) -> None:
        """Compile what is wanted first of all that has not begun."""
        with self._order:
            key = self._waiting.popleft()
        try:
            self._compile(*key)
        except Exception as e:
            self._asked[key].set_exception(e)
        else:
            self._asked[key].set_result(None)

    def _compile(
        self,
        pin: str,
        num_ranks: int,
        params: FrozenParams,
        in_place: bool,
        counts: tuple[int, ...],
    ) -> None:
        name, _, words = pin.partition(" ")
        algorithm, how = algorithms.get(name), Schedule.parse(words)
        if algorithm.kernel is not None or self._arch is None:
            return  # written by hand: compiled when it is called
        plan = proved_plan(algorithm, num_ranks, params, how, in_place)
        call = Call(dtype=self._dtype, op=self._op, counts=counts)
        wanted = cuda.warm(plan, call, rank=self._rank, arch=self._arch)
        for name, compile_it in wanted.items():
            with self._order:
                is_ours = name not in self._kernels
                kernel = self._kernels.setdefault(name, Future())
            if not is_ours:
                kernel.result()
                continue
            try:
                kernel.set_result(compile_it())
            except Exception as e:
                kernel.set_exception(e)
                raise


def _key(pin: str, case: CallCase) -> Key:
    in_place = case.in_place or "zero_copy" not in pin
    return pin, case.num_ranks, frozen(case.params), in_place, case.counts


def _step_back() -> None:
    """Let whoever launches go before this thread."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
