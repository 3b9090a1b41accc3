"""A process that answers: a line of JSON to it, a line back, within a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import CallError
from stretto.fabric.patience import readable

__all__ = ["Answerer"]

_MOST_ANSWER = 1 << 20
_BEGIN_S = 60.0


class Answerer:
    """The process, as whoever asks sees it; its temporary files go with it."""

    def __init__(
        self, command: Sequence[str], told: str, *, begin_s: float = _BEGIN_S
    ) -> None:
        """Start it, tell it what it is to be, and hear that it is ready."""
        pipe = subprocess.PIPE
        self._folder = tempfile.TemporaryDirectory()
        self._stderr = tempfile.TemporaryFile(dir=self._folder.name)  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._stderr,
            start_new_session=True, env={**os.environ, "TMPDIR": self._folder.name},
        )  # fmt: skip
        self._said = bytearray()
        self._is_ended = False
        self._send(told)
        answer = self._answer(time.monotonic() + begin_s)
        if answer != {"ready": True}:
            why = (answer or {}).get("error") or self._last_words()
            self.kill()
            raise CallError(f"a judge could not begin: {why}")

    @property
    def pid(self) -> int:
        """Return its process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Return whether it can be asked."""
        return not self._is_ended and self._process.poll() is None

    def ask(self, question: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """Return its answer, or `refused` with why there is none; then it is ended.

        It is ended, too, by an answer that says that it is the `last`.
        """
        begun = time.monotonic()
        self._send(json.dumps(question))
        answer = self._answer(begun + deadline_s)
        if isinstance(answer, dict) and "refused" in answer:
            if answer.pop("last", False):
                self.kill()
            answer["cost"] = float("inf") if answer["cost"] is None else answer["cost"]
            return {k: v for k, v in answer.items() if v is not None}
        if answer is None:
            self.kill()
            return {"refused": f"no verdict in {deadline_s:g} s"}
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its end
            self._process.wait(5.0)
        said = f"its judge ended with {self._process.returncode}: {self._last_words()}"
        self.kill()
        return {"refused": said}

    def kill(self) -> None:
        """End it, and what it started; once: its number may be another's later."""
        if self._is_ended:
            return
        self._is_ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):  # what it did not read
                if pipe is not None:
                    pipe.close()
        with contextlib.suppress(OSError):  # whoever it started may still end
            self._folder.cleanup()

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
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - 65536))
        said = self._stderr.read().decode(errors="replace").split("\n")
        words = (line for line in reversed(said) if line.strip())
        return next(words, "it said nothing")[:200]
