"""Judge in child processes: what hangs, dies or eats memory is a refusal.

A child is told a problem once, and then candidates as text, one line of JSON each. Who
does not answer in time is killed with all that it started, and a new one takes over.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from stretto.search.asking import Answerer
from stretto.search.evolve.loop import Asked, Trial
from stretto.search.evolve.problem import Verdict
from stretto.search.evolve.running import fresh_of

__all__ = ["Children"]


class Children:
    """Some child processes, each with at most one candidate at a time."""

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        seed: int,
        jobs: int = 1,
        deadline_s: float = 60.0,
        memory_mb: int = 2048,
    ) -> None:
        """Start nothing yet: a child is started when it is needed."""
        self._told = json.dumps({"problem": name, "arguments": dict(arguments)})
        self._seed, self._deadline_s = seed, deadline_s
        words = ["stretto.search.judges.child", str(memory_mb), str(os.getpid())]
        self._command = [sys.executable, "-m", *words]
        self._idle: queue.LifoQueue[Answerer | None] = queue.LifoQueue()
        for _ in range(jobs):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="stretto-judge")
        self._living: set[Answerer] = set()

    def __enter__(self) -> Self:
        """Return these."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every child."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in list(self._living):
            child.kill()
        self._threads.shutdown()

    def __call__(self, asked: Asked) -> Iterator[Verdict]:
        """Yield the verdicts, in order."""
        yield from self._threads.map(self._judged, asked)

    def _judged(self, trial: Trial) -> Verdict:
        child = self._idle.get()
        try:
            if child is None or not child.is_alive():
                child = Answerer(self._command, self._told)
                self._living.add(child)
                child.ready(max(60.0, self._deadline_s))
            fresh = fresh_of(self._seed, trial)
            asked = {"text": trial.text, "rung": trial.rung, "fresh": fresh}
            verdict = Verdict(**child.ask(asked, self._deadline_s))
        finally:
            if child is not None and not child.is_alive():
                self._living.discard(child)
                child = None
            self._idle.put(child)
        return verdict
