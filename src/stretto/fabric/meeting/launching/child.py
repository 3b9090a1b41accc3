"""A rank that `spawn` has started: from a fresh interpreter to its result.

What to run comes pickled from our own parent, through a file only we two have; what
it gave goes back the same way, through a pipe. Neither is ever a socket.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import spawn as preparation
from typing import Any

from stretto.errors import CallError, CommunicatorBroken, PeerLost, is_library
from stretto.fabric.meeting.greet import greet
from stretto.fabric.meeting.meeting import Meeting
from stretto.fabric.process import die_with_parent
from stretto.fabric.wire import Connection

LENGTH = struct.Struct("<Q")
is_preparing = False
"""Whether this process is a rank that imports its parent's main module just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a child is to do; it comes pickled."""

    num_ranks: int
    deadline_s: float
    start_s: float
    preparation: dict[str, Any]
    """What multiprocessing's spawn tells a child of its parent's main module."""
    module: str
    file: str | None
    """The module that defines the function, and where it lies, if it is no package."""
    work: bytes
    """The pickled (function, arguments); read once the main module is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a rank ended; `failure` is empty when it returned."""

    value: Any = None
    failure: str = ""
    """One line, as the rest of a sentence."""
    trace: str = ""
    is_consequence: bool = False
    """Whether it only passed on that the group was broken."""


def main(argv: list[str]) -> None:
    """Run one rank: `rank parent_pid socket_fd task_fd result_fd`."""
    rank, parent, socket_fd, task_fd, result_fd = map(int, argv)
    die_with_parent(parent)
    for number in (socket_fd, task_fd, result_fd):
        os.set_inheritable(number, False)
    outcome = _run(rank, socket.socket(fileno=socket_fd), task_fd)
    data = _pickle_outcome(outcome)
    with os.fdopen(result_fd, "wb") as pipe:
        pipe.write(LENGTH.pack(len(data)) + data)
    sys.exit(1 if outcome.failure else 0)


def _run(rank: int, sock: socket.socket, task_fd: int) -> Outcome:
    meeting: Meeting | None = None
    try:
        task, function, arguments = _load(task_fd)
        meeting = greet(
            Connection(sock),
            rank=rank,
            num_ranks=task.num_ranks,
            deadline_s=task.deadline_s,
            start_s=task.start_s,
        )
        value = function(meeting, *arguments)
        meeting.close()
        return Outcome(value=value)
    except BaseException as e:
        if isinstance(e, SystemExit) and e.code in (None, 0):
            if meeting is not None:
                meeting.close()
            return Outcome()
        line = f"raised {type(e).__name__}: {e}"
        if meeting is not None:
            meeting.close(line[:1000])
        return Outcome(
            failure=line,
            trace=_trace(e),
            is_consequence=_is_consequence(e, rank),
        )


def _load(task_fd: int) -> tuple[Task, Callable[..., Any], tuple[Any, ...]]:
    data = os.pread(task_fd, os.fstat(task_fd).st_size, 0)
    os.close(task_fd)
    task: Task = pickle.loads(data)
    global is_preparing
    is_preparing = True
    preparation.prepare(task.preparation)
    is_preparing = False
    _ensure_module(task)
    try:
        function, arguments = pickle.loads(task.work)
    except AttributeError as e:
        raise CallError(
            f"this rank has no such name: {e}; a file is read anew on each rank, and "
            "not what stands under `if __name__ == '__main__':`: define it above"
        ) from None
    return task, function, arguments


def _ensure_module(task: Task) -> None:
    """Load the function's module from its file where its name alone finds nothing."""
    if task.file is None or task.module in sys.modules:
        return
    try:
        if importlib.util.find_spec(task.module) is not None:
            return
    except (ImportError, ValueError):
        pass
    spec = importlib.util.spec_from_file_location(task.module, task.file)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[task.module] = module
        spec.loader.exec_module(module)


def _trace(error: BaseException) -> str:
    """Return where the user's own lines raised; `failure` says what was raised.

    Lines of the library are left out, as long as one of the user's is there.
    """
    told = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = told
    while one is not None:
        own = [frame for frame in one.stack if not is_library(frame.filename)]
        one.stack[:] = own or list(one.stack)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    said = len(list(told.format_exception_only()))
    notes = [f"{note}\n" for note in getattr(error, "__notes__", ())]
    return "".join([*list(told.format())[:-said], *notes])


def _pickle_outcome(outcome: Outcome) -> bytes:
    buffer = io.BytesIO()
    try:
        pickle.dump(outcome, buffer, protocol=pickle.HIGHEST_PROTOCOL)
        return buffer.getvalue()
    except Exception as e:
        kind = type(outcome.value).__name__
        line = f"returned a {kind} that cannot be pickled: {e}"
        return pickle.dumps(Outcome(failure=line, trace=traceback.format_exc()))


def _is_consequence(error: BaseException, rank: int) -> bool:
    if isinstance(error, PeerLost | CommunicatorBroken):
        return True
    blamed = getattr(error, "blamed", ())
    return bool(blamed) and rank not in blamed
