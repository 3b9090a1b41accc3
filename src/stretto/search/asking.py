"""Processes that answer: a line of JSON to them, a line back, within a deadline."""

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

__all__ = ["Answerer", "AnsweringRanks"]

_MOST_ANSWER = 1 << 20
_SLICE_S = 0.05
"""How long one rank is listened to before the next: any may have ended."""


class Answerer:
    """One process, as whoever asks sees it; its temporary files go with it."""

    def __init__(self, command: Sequence[str], told: str, *, folder: str = "") -> None:
        """Start it, and tell it what it is to be; its files go into a folder."""
        pipe = subprocess.PIPE
        self._own = None if folder else tempfile.TemporaryDirectory()
        folder = self._own.name if self._own else folder
        self._stderr = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._stderr,
            start_new_session=True, env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
        self._said = bytearray()
        self._is_ended = False
        self._send(told)

    def ready(self, begin_s: float = 60.0) -> None:
        """Hear that it is ready; CallError, in its words: it is not."""
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
        """Return its answer, or `refused` with why there is none; then it is ended."""
        self.tell(question)
        answer = self.hear(deadline_s)
        if answer is None:
            self.kill()
            return {"refused": f"no verdict in {deadline_s:g} s"}
        return answer

    def tell(self, question: Mapping[str, Any]) -> None:
        """Ask, and do not wait."""
        self._send(json.dumps(question))

    def hear(self, wait_s: float) -> dict[str, Any] | None:
        """Return its answer; None: not yet. `refused` says why there is none."""
        answer = self._answer(time.monotonic() + wait_s)
        if answer is None:
            return None
        if "refused" in answer:
            answer["cost"] = float("inf") if answer["cost"] is None else answer["cost"]
            return {k: v for k, v in answer.items() if v is not None}
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
            if self._own is not None:
                self._own.cleanup()

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


class AnsweringRanks:
    """Processes that are told and asked the same, and answer together."""

    def __init__(
        self, commands: Sequence[Sequence[str]], told: Mapping[str, Any], begin_s: float
    ) -> None:
        """Start them; they are told a `folder` for all, and are ready then."""
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name
        words = json.dumps({**told, "folder": folder})
        self._ranks = [Answerer(one, words, folder=folder) for one in commands]
        until = time.monotonic() + begin_s
        try:
            for rank in self._ranks:
                rank.ready(max(0.0, until - time.monotonic()))
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Return their processes, by rank."""
        return [rank.pid for rank in self._ranks]

    def is_alive(self) -> bool:
        """Return whether all can be asked."""
        return all(rank.is_alive() for rank in self._ranks)

    def ask(self, question: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """Return what the first answers, once all have.

        If one ends, or is late, all are ended; then `refused` says whose end it was.
        """
        for rank in self._ranks:
            rank.tell(question)
        until = time.monotonic() + deadline_s
        found: list[dict[str, Any] | None] = [None] * len(self._ranks)
        while None in found and time.monotonic() < until:
            found = self._heard(found, _SLICE_S)
            if not self.is_alive():
                found = self._heard(found, 1.0)  # others say more, or that one is gone
                break
        if None not in found and self.is_alive() and found[0] is not None:
            return found[0]
        self.kill()
        why = [
            f"rank {rank}: {said['refused']}"
            for rank, said in enumerate(found)
            if said is not None and said["refused"]
        ]
        if not why:
            return {"refused": f"no verdict in {deadline_s:g} s"}
        return {"refused": "; ".join(sorted(why, key=_is_hearsay))[:400]}

    def _heard(
        self, found: Sequence[dict[str, Any] | None], wait_s: float
    ) -> list[dict[str, Any] | None]:
        return [
            rank.hear(wait_s) if said is None else said
            for rank, said in zip(self._ranks, found, strict=True)
        ]

    def kill(self) -> None:
        """End them all."""
        for rank in self._ranks:
            rank.kill()
        with contextlib.suppress(OSError):  # whoever they started may still end
            self._folder.cleanup()


def _is_hearsay(why: str) -> tuple[bool, bool]:
    """Return what is said first: a signal, and not that another rank is gone."""
    return "ended with -" not in why, "PeerLost" in why
