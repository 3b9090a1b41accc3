"""Judge in child processes: what hangs, dies or eats memory is a refusal.

A child is told a problem once, and then candidates as text, one line of JSON each. Who
does not answer in time is killed with all that it started, and a new one takes over.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from stretto.errors import CallError
from stretto.fabric.patience import readable
from stretto.search.evolve.loop import Asked, Trial
from stretto.search.evolve.problem import Verdict
from stretto.search.evolve.running import fresh_of

__all__ = ["Children"]

_MOST_ANSWER = 1 << 20


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
        self._seed, self._deadline_s, self._memory = seed, deadline_s, memory_mb
        self._idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(jobs):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="stretto-judge")
        self._living: set[_Child] = set()

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
                child = _Child(self._told, self._memory, self._deadline_s)
                self._living.add(child)
            verdict = child.judged(trial, fresh_of(self._seed, trial), self._deadline_s)
        finally:
            if child is not None and not child.is_alive():
                self._living.discard(child)
                child = None
            self._idle.put(child)
        return verdict


class _Child:
    """One child process."""

    def __init__(self, told: str, memory_mb: int, deadline_s: float) -> None:
        words = ["stretto.search.judges.child", str(memory_mb), str(os.getpid())]
        command = [sys.executable, "-m", *words]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._said = bytearray()
        self._send(told)
        answer = self._answer(time.monotonic() + max(60.0, deadline_s))
        if answer != {"ready": True}:
            why = (answer or {}).get("error") or self._last_words()
            self.kill()
            raise CallError(f"a judge could not begin: {why}")

    def is_alive(self) -> bool:
        """Return whether it can be asked."""
        return self._process.poll() is None

    def judged(self, trial: Trial, fresh: int, deadline_s: float) -> Verdict:
        """Return what it says of a candidate; if it says nothing, a refusal."""
        begun = time.monotonic()
        self._send(json.dumps({"text": trial.text, "rung": trial.rung, "fresh": fresh}))
        answer = self._answer(begun + deadline_s)
        if isinstance(answer, dict) and "refused" in answer:
            answer["cost"] = float("inf") if answer["cost"] is None else answer["cost"]
            return Verdict(**{k: v for k, v in answer.items() if v is not None})
        if answer is None:
            self.kill()
            return Verdict(refused=f"no verdict in {deadline_s:g} s")
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its end
            self._process.wait(5.0)
        said = f"its judge ended with {self._process.returncode}: {self._last_words()}"
        self.kill()
        return Verdict(refused=said)

    def kill(self) -> None:
        """End it, and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(BrokenPipeError):  # what it did not read
                if pipe is not None:
                    pipe.close()

    def _send(self, line: str) -> None:
        stdin = self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(line.encode() + b"\n")
                stdin.flush()

    def _answer(self, until: float) -> dict[str, Any] | None:
        """Return its next line; None if it says nothing in time, {} if nothing of use.

        That is: it ends, or says too much, or what is no answer.
        """
        stdout = self._process.stdout
        while stdout is not None and len(self._said) < _MOST_ANSWER:
            line, newline, rest = bytes(self._said).partition(b"\n")
            if newline:
                self._said = bytearray(rest)
                with contextlib.suppress(ValueError):
                    found = json.loads(line)
                    return found if isinstance(found, dict) else {}
                return {}
            left = until - time.monotonic()
            if left <= 0 or not readable(stdout, left):
                return None
            more = os.read(stdout.fileno(), 65536)
            if not more:
                return {}
            self._said += more
        return {}

    def _last_words(self) -> str:
        stderr = self._process.stderr
        if stderr is None or not readable(stderr, 0):
            return "it said nothing"
        said = os.read(stderr.fileno(), 65536).decode(errors="replace").split("\n")
        words = (line for line in reversed(said) if line.strip())
        return next(words, "it said nothing")[:200]
