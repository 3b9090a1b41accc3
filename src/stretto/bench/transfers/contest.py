"""Libraries beside each other: the same cases, in turns, what has arrived compared."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from stretto.bench.transfers import peers
from stretto.bench.transfers.cases import Case
from stretto.bench.transfers.side import Channel
from stretto.errors import MissingExtraError, StrettoError

__all__ = ["Contender", "Figure", "Refusal", "contest"]

_PATIENCE_S = 120.0
TURNS = 3
_TURN_S = 0.3
_MOST_ROUNDS, _LEAST_ROUNDS = 1000, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a library took for a case."""

    who: str
    case: Case
    seconds: tuple[float, ...]
    """Of every round, sorted."""
    is_right: bool
    """Whether what has arrived is what was sent."""

    def at(self, part: float) -> float:
        """Return what so large a part of all rounds is quicker than."""
        return self.seconds[min(len(self.seconds) - 1, int(part * len(self.seconds)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a library is not among them: it is missing, has no such way, or failed."""

    who: str
    path: str
    why: str


class Contender:
    """A library's two processes; they start together, and are there once they `meet`.

    So that all may start before the first is waited for.
    """

    def __init__(self, name: str, path: str, nbytes: int) -> None:
        module = peers.get(name)
        if why := module.missing():
            raise MissingExtraError(why)
        if path not in module.PATHS:
            raise MissingExtraError(f"{name} has no way by {path}")
        self.name, self.path, self._module = name, path, module.__name__
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._channels: dict[str, Channel] = {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by close)
        environment = dict(module.environment(path))
        try:
            for role in ("there", "here"):
                self._start(role, path, nbytes, environment)
        except BaseException:
            self.close()
            raise

    def meet(self) -> None:
        """Wait until both are there, and introduce them."""
        for role in ("there", "here"):
            self.hear(role)
        about = {role: self.ask(role, do="about") for role in ("there", "here")}
        for role, other in (("there", "here"), ("here", "there")):
            self.tell(role, do="meet", said=about[other])
        for role in ("there", "here"):
            self.hear(role)

    def _start(
        self, role: str, path: str, nbytes: int, environment: Mapping[str, str]
    ) -> None:
        ours, theirs = socket.socketpair()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        command = [sys.executable, "-m", "stretto.bench.transfers.side", self._module,
                   role, path, str(nbytes), str(theirs.fileno())]  # fmt: skip
        self._children[role] = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        ours.settimeout(_PATIENCE_S)
        self._channels[role] = Channel(ours)

    def tell(self, role: str, **said: Any) -> None:
        """Ask a side for something; `hear` returns the answer."""
        self._channels[role].tell(said)

    def hear(self, role: str) -> Any:
        """Return what a side answers; StrettoError: it failed, and how."""
        try:
            said = self._channels[role].hear()
        except OSError as e:
            raise StrettoError(f"{self.name}, {role}: {e}; {self._last()}") from e
        if "answer" not in said:
            why = said.get("error", "its process has ended")
            raise StrettoError(f"{self.name}, {role}: {why}; {self._last()}")
        return said["answer"]

    def _last(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"it printed {lines[-1][:200]!r}" if lines else "it printed nothing"

    def ask(self, role: str, **said: Any) -> Any:
        """Ask a side, and return what it answers."""
        self.tell(role, **said)
        return self.hear(role)

    def turn(self, case: Case, rounds: int) -> list[float]:
        """Do a case for a turn; return the seconds of its rounds."""
        said = asdict(case)
        self.ask("there", do="attend", case=said, rounds=rounds)
        try:
            return list(self.ask("here", do="time", case=said, rounds=rounds))
        finally:
            self.tell("there", do="over")
            self.hear("there")

    def fill(self, case: Case) -> None:
        """Store a case's bytes where they are taken from, and none at the other end."""
        for role in ("there", "here"):
            self.ask(role, do="fill", case=asdict(case))

    def check(self, case: Case) -> bool:
        """Return whether all has arrived."""
        if case.what == "notify":
            return True
        role = "here" if case.what == "get" else "there"
        return bool(self.ask(role, do="check", case=asdict(case)))

    def pids(self) -> list[int]:
        """Return both processes."""
        return [child.pid for child in self._children.values()]

    def close(self) -> None:
        """End both."""
        for child in self._children.values():
            child.kill()
            child.wait(10)
        for channel in self._channels.values():
            channel.close()
        self._log.close()

    def __enter__(self) -> Contender:
        """Use it for a while."""
        try:
            self.meet()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """End it."""
        self.close()


def contest(
    who: Sequence[str], path: str, cases: Sequence[Case], *, turns: int = TURNS
) -> Iterator[Figure | Refusal]:
    """Yield what each library takes for each case, and who is not among them.

    They take turns, so that what else the machine does meets all alike.
    """
    most = max([1, *(case.total for case in cases)])
    running: list[Contender] = []
    try:
        for name in who:
            try:
                running.append(Contender(name, path, most))
            except StrettoError as e:
                yield Refusal(who=name, path=path, why=str(e))
        for one in tuple(running):
            try:
                one.meet()
            except StrettoError as e:
                running.remove(one)
                one.close()
                yield Refusal(who=one.name, path=path, why=str(e))
        for case in cases:
            yield from _of_case(running, case, turns)
    finally:
        for one in running:
            one.close()


def _of_case(
    running: list[Contender], case: Case, turns: int
) -> Iterator[Figure | Refusal]:
    able = [one for one in running if case.what in peers.get(one.name).WHATS]
    for one in running:
        if one not in able:
            yield Refusal(who=one.name, path=case.path, why=f"it has no {case.what}")
    seconds: dict[str, list[float]] = {one.name: [] for one in able}
    rounds: dict[str, int] = {}
    failed: dict[str, str] = {}
    for nth in range(turns):
        for one in able:
            if one.name in failed:
                continue
            try:
                if not nth:
                    one.fill(case)
                    rounds[one.name] = _rounds(one.turn(case, 1)[0])
                seconds[one.name] += one.turn(case, rounds[one.name])
            except StrettoError as e:
                failed[one.name] = f"{case.label}: {e}"
    for one in able:
        if one.name in failed:
            running.remove(one)
            one.close()
            yield Refusal(who=one.name, path=case.path, why=failed[one.name])
            continue
        yield Figure(
            who=one.name, case=case, seconds=tuple(sorted(seconds[one.name])),
            is_right=one.check(case),
        )  # fmt: skip


def _rounds(seconds: float) -> int:
    """Return how many rounds of that length make a turn."""
    fit = int(_TURN_S / max(seconds, 1e-7))
    return max(_LEAST_ROUNDS, min(_MOST_ROUNDS, fit))
