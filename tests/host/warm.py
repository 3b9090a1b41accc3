"""Processes of Python that begin with everything imported: forks of a warm server.

`Popen` and `run` stand for those of `subprocess`, where what is started is Python: its
words are those after `sys.executable`. Each pytest process forks one server before its
first test. That has one thread, no communicator and nothing of a test, and forks what
it is asked for: a process like a fresh one, that need not import for a second or two.

Where how a process starts is what is tested, `subprocess` is right.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

from tests.host import forked

__all__ = ["Popen", "begin", "children", "run", "stand_in"]

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_MOST = 64
"""Descriptors in one request."""
_lock = threading.Lock()
_server: socket.socket | None = None
_pid = 0
"""The server's."""
_strangers: set[int] = set()
"""Who lost its parent, a process of a test, while this one adopted: nobody waits."""


def begin() -> None:
    """Load what processes need, and fork the server, which ends with this process."""
    global _server, _pid
    if _server is not None:
        return
    forked.load()
    ours, theirs = socket.socketpair()
    owner = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    _pid = os.fork()
    if _pid == 0:
        try:
            ours.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _serve(theirs, owner)
        finally:
            os._exit(0)
    theirs.close()
    atexit.register(ours.close)
    _server = ours


def children() -> list[int]:
    """Return the children of this process, without the server; strangers are reaped."""
    found = _children()
    for pid in _strangers.intersection(found):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                found.remove(pid)
    _strangers.intersection_update(found)
    return found


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [pid for pid in map(int, text.split()) if pid != _pid]


class Popen(subprocess.Popen):
    """A process of Python, by the words after `python`, forked where all is warm."""

    def __init__(self, words: list[Any], **how: Any) -> None:
        """Start it; `how` is as for `subprocess.Popen`."""
        self._leads = how.get("start_new_session", False)
        super().__init__([sys.executable, *map(str, words)], **how)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd,
                       env, startupinfo, creationflags, shell, p2cread, p2cwrite,
                       c2pread, c2pwrite, errread, errwrite, *rest):  # fmt: skip
        if not forked.is_on or _server is None:
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                startupinfo, creationflags, shell, p2cread, p2cwrite, c2pread,
                c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
        given = (p2cread, c2pwrite, errwrite)
        usual = [nth if one == -1 else one for nth, one in enumerate(given)]
        asked = {
            "words": args[1:],
            "env": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd or Path.cwd()),
            "kept": list(pass_fds),
            "leads": self._leads,
        }
        with _lock:
            before = _children()
            _adopt(1)
            try:
                self.pid = _ask(asked, [*usual, *pass_fds])
            finally:
                _adopt(0)
                _strangers.update({*_children()}.difference(before, [self.pid]))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        return None


def run(words, *, capture_output=False, check=False, timeout=None, **how):
    """Run a process of Python to its end, as `subprocess.run` does."""
    if capture_output:
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **how) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args, out, err)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def stand_in() -> types.SimpleNamespace:
    """Return what a module of ours may have for `subprocess`: it forks Python."""

    def start(command: list[str], **how: Any) -> subprocess.Popen[Any]:
        if command[0] == sys.executable:
            return Popen(command[1:], **how)
        return subprocess.Popen(command, **how)

    return types.SimpleNamespace(**vars(subprocess) | {"Popen": start})


def _ask(asked: dict[str, Any], numbers: list[int]) -> int:
    """Have the server fork; return the new process, which is a child of ours."""
    body = json.dumps(asked).encode()
    head = struct.pack("=q", len(body))
    socket.send_fds(_server, [head], numbers)
    _server.sendall(body)
    said = _server.recv(8, socket.MSG_WAITALL)
    assert len(said) == 8, "the warm server has ended"
    return struct.unpack("=q", said)[0]


def _serve(sock: socket.socket, owner: int) -> None:
    """Fork as often as is asked for, until nobody can ask any more."""
    while True:
        head, numbers, _, _ = socket.recv_fds(sock, 8, _MOST)
        if not head:
            return
        (size,) = struct.unpack("=q", head)
        asked = json.loads(sock.recv(size, socket.MSG_WAITALL))
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                _become(asked, numbers, sock, owner)
            os._exit(0)  # so the new process is adopted by the owner
        os.waitpid(middle, 0)
        for number in numbers:
            os.close(number)


def _become(
    asked: dict[str, Any], numbers: list[int], sock: socket.socket, owner: int
) -> None:
    """Be a process of Python with such words, once this is a child of the owner."""
    while os.getppid() != owner:
        os.sched_yield()
    if asked["leads"]:
        os.setsid()
    sock.sendall(struct.pack("=q", os.getpid()))
    free = max([2, *asked["kept"]]) + 1
    held = [fcntl.fcntl(number, fcntl.F_DUPFD, free) for number in numbers]
    for one, number in zip(held[3:], asked["kept"], strict=True):
        os.dup2(one, number)

    def work() -> None:
        forked.begin()
        os.chdir(asked["cwd"])
        _main(asked["words"], asked["env"])

    forked.become(work, held[:3], set(asked["kept"]), asked["env"])


def _main(words: list[str], env: dict[str, str]) -> None:
    """Do what `python WORDS...` does."""
    words = [word for word in words if word != "-u"]
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    first, *rest = words
    if first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__builtins__ = __builtins__
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        if rest[0] == "torch.distributed.run":
            _fork_workers()
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = rest
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        sys.argv = words
        if "torch" in Path(first).read_text():
            forked.load(with_torch=True)
        runpy.run_path(first, run_name="__main__")


def _fork_workers() -> None:
    """Have torchrun fork its workers, as whoever started it forked it."""
    global _server
    forked.load(with_torch=True)
    _server = None  # that of whoever started it
    begin()
    from torch.distributed.elastic.multiprocessing import subprocess_handler

    handlers = subprocess_handler.subprocess_handler
    start = stand_in().Popen
    handlers.Popen = lambda args, **how: start([*args], **how)


def _adopt(whether: int) -> None:
    """Have processes whose parent ends become children of this one, or not."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert 0 == libc.prctl(_SUBREAPER, whether, 0, 0, 0)
