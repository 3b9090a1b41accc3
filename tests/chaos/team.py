"""Processes of one scenario: forked from this warm one, so a rank starts in no time.

In: functions, one a process. Out: what became of each, and when. Never: a process, a
descriptor or a line of a traceback that is left and not told of.

The process that forks has one thread and no communicator; each member is a rank like
any other, that connects, calls and ends (by its exit hooks, too).
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import os
import pickle
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soon import soon

from stretto.errors import StrettoError

PATIENCE_S = 60.0
"""After so long whoever has not ended hangs."""
_PACKET = 180_000
_PR_SET_CHILD_SUBREAPER = 36


class Skipped(Exception):
    """This machine cannot be made to have that fault; says why."""


@dataclass(slots=True)
class Told:
    """How a member ended, as far as it could say."""

    value: Any = None
    error: str = ""
    """The name of the class of what it raised."""
    text: str = ""
    blamed: tuple[int, ...] = ()
    is_ours: bool = True
    trace: str = ""
    at_s: float = 0.0


@dataclass(slots=True)
class Member:
    """One process of a scenario."""

    name: str
    pid: int
    sock: socket.socket
    pidfd: int
    told: Told | None = None
    said: list[tuple[Any, float]] = field(default_factory=list)
    status: int | None = None
    """As in `exit_words`: negative for a signal."""
    ended_s: float = 0.0
    killed_s: float = 0.0

    def kill(self, number: int = signal.SIGKILL) -> float:
        """Send a signal; return when."""
        self.killed_s = time.monotonic()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)
        return self.killed_s


class Me:
    """What a member's function is given: words for the driver, and from it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.lock = threading.Lock()

    def say(self, what: Any) -> None:
        """Tell the driver something, now."""
        with self.lock:
            self._sock.send(pickle.dumps(("said", what, time.monotonic())))

    def hear(self, within_s: float = PATIENCE_S) -> Any:
        """Return what the driver says."""
        self._sock.settimeout(within_s)
        return pickle.loads(self._sock.recv(_PACKET))


class Team:
    """The processes of one scenario."""

    def __init__(self, folder: Path, patience_s: float = PATIENCE_S) -> None:
        self.folder = folder
        self.until = time.monotonic() + patience_s
        self.members: list[Member] = []
        self.expects_traces = self.may_lack_threads = False
        """Whether a member may print a traceback of its own fault."""
        self._before = len(names_in("/proc/self/fd"))

    def start(self, function: Callable[[Me], Any], name: str = "") -> Member:
        """Fork a member that runs a function."""
        name = name or str(len(self.members))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _be(function, theirs, self.folder / name)
        theirs.close()
        member = Member(name=name, pid=pid, sock=ours, pidfd=os.pidfd_open(pid))
        self.members.append(member)
        return member

    def tell(self, member: Member, what: Any) -> None:
        """Say something to a member."""
        with suppress(OSError):
            member.sock.send(pickle.dumps(what))

    def until_said(self, member: Member, count: int = 1) -> Any:
        """Wait for a member's words; return the last."""
        while len(member.said) < count:
            assert member.status is None, f"{member.name} ended before it said {count}"
            self._look(1.0)
            assert time.monotonic() < self.until, self._hang([member])
        return member.said[count - 1][0]

    def watch(self, seconds: float) -> None:
        """Let time pass, and take note of what happens."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._look(left_s)

    def until_over(self) -> None:
        """Wait until all have ended; whoever does not hangs."""
        while running := [m for m in self.members if m.status is None]:
            self._look(1.0)
            assert time.monotonic() < self.until, self._hang(running)

    def _look(self, wait_s: float) -> None:
        poll = select.poll()
        by_number = {}
        for member in self.members:
            if member.status is None:
                for number in (member.pidfd, member.sock.fileno()):
                    by_number[number] = member
                    poll.register(number, select.POLLIN)
        for number, _ in poll.poll(max(wait_s, 0) * 1e3):
            member = by_number[number]
            self._read(member)
            if member.status is not None:
                continue
            pid, status = os.waitpid(member.pid, os.WNOHANG)
            if pid:
                self._read(member)
                member.status = os.waitstatus_to_exitcode(status)
                member.ended_s = time.monotonic()
            elif number != member.pidfd:
                time.sleep(0.0005)  # its socket may be at its end a little earlier

    def _read(self, member: Member) -> None:
        while True:
            try:
                data = member.sock.recv(_PACKET, socket.MSG_DONTWAIT)
            except OSError:
                return
            if not data:
                return
            kind, what, at_s = pickle.loads(data)
            if kind == "said":
                member.said.append((what, at_s))
            else:
                member.told = what

    def _hang(self, running: list[Member]) -> str:
        """Return who hangs and where."""
        for member in running:
            member.kill(signal.SIGCONT)
            member.kill(signal.SIGUSR1)
        time.sleep(0.5)
        lines = [f"hang of {', '.join(m.name for m in running)}"]
        for member in running:
            with suppress(OSError):
                text = (self.folder / f"{member.name}.stack").read_text()
                lines.append(f"--- {member.name}\n{text[-3000:]}")
        return "\n".join(lines)

    def end(self) -> list[str]:
        """Give everything back; return what was left that should not be."""
        left = []
        for member in self.members:
            if member.status is None:
                member.kill(signal.SIGCONT)
                member.kill()
                os.waitpid(member.pid, 0)
            member.sock.close()
            os.close(member.pidfd)
        left += _orphans()
        if not self.expects_traces:
            left += self._traces()
        grown = len(names_in("/proc/self/fd")) - self._before
        if grown:
            left.append(f"{grown} descriptors of the driver")
        return left

    def _traces(self) -> list[str]:
        found = []
        for path in self.folder.glob("*.err"):
            text = path.read_text(errors="replace")
            if self.may_lack_threads:
                text = _NO_THREAD.sub("", text)
            if "Traceback" in text or "Exception ignored" in text:
                found.append(f"{path.stem} printed {text[-1500:]}")
        return found


_NO_THREAD = re.compile(
    r"Exception ignored in thread started by: .*\n"
    r"(?:Traceback .*\n(?: .*\n)*)?(?:MemoryError|KeyError).*\n"
)
"""What Python itself prints of a thread that found no memory to begin, or to end."""


def names_in(folder: str) -> list[str]:
    """Return the names in a folder."""
    return os.listdir(folder)  # noqa: PTH208 - of this very moment, and fast


def adopt_orphans(whether: bool = True) -> None:
    """Be the parent of whatever loses its own, so that nothing is lost from sight."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0)


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(word) for word in text.split()]


def _orphans() -> list[str]:
    """Wait a little for what members have left; tell of and kill what stays."""
    until = time.monotonic() + 3.0
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not (left := _children()):
            return []
        if time.monotonic() > until:
            break
        time.sleep(0.01)
    words = []
    for pid in left:
        with suppress(OSError):
            words.append(Path(f"/proc/{pid}/stat").read_text()[:60])
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [f"left processes: {words}"]


def held() -> dict[str, int]:
    """Return what this process has that must be the same again after a job."""
    return {
        "descriptors": len(names_in("/proc/self/fd")),
        "threads": len(names_in("/proc/self/task")),
    }


def gives_back(before: dict[str, int], within_s: float = 4.0) -> None:
    """Wait until this process has what it had; an AssertionError says what is left."""
    until = time.monotonic() + soon(within_s)
    while (now := held()) != before and time.monotonic() < until:
        gc.collect()
        time.sleep(0.005)
    if any(now[name] > before[name] for name in now):
        links = []
        for name in names_in("/proc/self/fd"):
            with suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
        names = [t.name for t in threading.enumerate()]
        raise AssertionError(f"left {now}, had {before}: {links}, {names}")


def tell_of(error: BaseException) -> Told:
    """Return an exception as words."""
    ours = isinstance(error, StrettoError)
    return Told(
        error=type(error).__name__,
        text=str(error),
        blamed=tuple(getattr(error, "blamed", ())),
        is_ours=ours,
        trace="" if ours else traceback.format_exc()[-3000:],
        at_s=time.monotonic(),
    )


def _be(function: Callable[[Me], Any], sock: socket.socket, place: Path) -> None:
    """Be a member; does not return."""
    status = 70
    try:
        errors = os.open(f"{place}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(errors, 2)
        os.close(errors)
        stacks = open(f"{place}.stack", "w")  # noqa: SIM115, PTH123 - until it ends
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        with suppress(ValueError, OSError):
            Path("/proc/self/oom_score_adj").write_text("900")
        try:
            told, status = Told(value=function(Me(sock))), 0
            told.at_s = time.monotonic()
        except SystemExit as e:
            told, status = Told(error="SystemExit", text=str(e.code)), int(e.code or 0)
        except BaseException as e:
            told, status = tell_of(e), 1
        data = pickle.dumps(("told", told, 0.0))
        with suppress(OSError):
            sock.send(data)
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
