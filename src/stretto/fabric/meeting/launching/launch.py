"""Start ranks as fresh processes, host their meeting, and gather what they return.

Never fork: a forked child inherits locks, threads and devices that no longer work.
(Where ranks exceed cores, a process of ours that has none of these does: `nursery`.)
Each child has one end of a socket pair (its connection to the hub), the task, and a
pipe for its outcome. When the parent dies the kernel kills the children.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import spawn as preparation
from typing import Any

from stretto.errors import CallError, RankFailed
from stretto.fabric.meeting.hosting.hub import Hub
from stretto.fabric.meeting.hosting.rendezvous import Rendezvous
from stretto.fabric.meeting.launching import byvalue
from stretto.fabric.meeting.launching import child as child_module
from stretto.fabric.meeting.launching.child import LENGTH, Outcome, Task
from stretto.fabric.meeting.launching.nursery import Forked, Nursery
from stretto.fabric.memory import create_file
from stretto.fabric.process import exit_words, open_pidfd, uptime_ns
from stretto.fabric.wire import Descriptor
from stretto.fabric.world import World

START_S = 120.0
"""How long a rank may take to start, at least: a deadline for calls may be short."""
GRACE_S = 3.0
"""How long the others may take to end once a rank has failed."""
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from stretto.fabric.meeting.launching.child import main; main(sys.argv[2:])"
)
_SAFE = {  # NVLink multicast is never used on the machines we have
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


@dataclass(slots=True, kw_only=True)
class _Child:
    rank: int
    popen: subprocess.Popen[bytes] | Forked
    pidfd: Descriptor | None
    pipe: int
    data: bytearray = field(default_factory=bytearray)
    is_read: bool = False
    outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.is_read and self.popen.returncode is not None


def launch(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    num_ranks: int,
    deadline_s: float,
    preload: Sequence[str] = (),
) -> list[Any]:
    """Run `function(meeting, *arguments)` on every rank; return results by rank.

    Where ranks exceed cores `preload`, each a "module:function" that is called, happens
    once for all.
    """
    if child_module.is_preparing:
        raise CallError(
            "spawn: called while a rank imports the main module; put the call under "
            'if __name__ == "__main__":'
        )
    if num_ranks < 1:
        raise CallError(f"num_ranks={num_ranks}: at least one rank is needed")
    task = _pack(function, arguments, num_ranks, deadline_s)
    run = _Run(num_ranks, deadline_s)
    try:
        run.start(task, preload if exceed_cores(num_ranks) else ())
        run.until_over()
    finally:
        os.close(task)
        run.end()
    return run.results()


class _Run:
    """One launch: its children, and the hub they meet at."""

    def __init__(self, num_ranks: int, deadline_s: float) -> None:
        start_s = max(START_S, deadline_s)
        deadline = time.monotonic() + start_s
        world = World(
            num_ranks, deadline=deadline, timeout_s=start_s, generation=uptime_ns()
        )
        self._num_ranks = num_ranks
        self._hub = Hub(Rendezvous(world), explain=self._explain)
        self._hub.loop.on_fault = _raise
        self._children: list[_Child] = []
        self._failed: list[int] = []
        """Ranks that failed, the first first."""
        self._failed_at: float | None = None
        self._nursery: Nursery | None = None

    def start(self, task: int, preload: Sequence[str]) -> None:
        """Start all ranks."""
        env = _environment(self._num_ranks)
        if preload:
            self._nursery = Nursery(preload, env)
        for rank in range(self._num_ranks):
            child = _start(rank, task, self._hub, self._nursery, env)
            self._children.append(child)
            os.set_blocking(child.pipe, False)
            loop = self._hub.loop
            loop.watch(child.pipe, partial(self._read, child), fault=_raise)
            if child.pidfd is not None:
                reap = partial(self._reap, child)
                loop.watch(child.pidfd.number, reap, fault=_raise)

    def until_over(self) -> None:
        """Serve until all ranks have ended, or their grace has."""
        while not all(child.is_over for child in self._children):
            patience = 0.1 if any(c.pidfd is None for c in self._children) else 1.0
            if self._failed_at is not None:
                left_s = self._failed_at + GRACE_S - time.monotonic()
                if left_s <= 0:
                    return
                patience = min(patience, left_s)
            self._hub.step(patience)
            for child in self._children:
                if child.is_read and child.popen.returncode is None:
                    self._reap(child)

    def end(self) -> None:
        """Kill whoever still runs, reap all, close everything."""
        for child in self._children:
            if child.popen.poll() is None:
                child.popen.kill()
        self._hub.close()
        for child in self._children:
            child.popen.wait()
            child.pidfd = None
            if not child.is_read:
                os.close(child.pipe)
        if self._nursery is not None:
            self._nursery.close()

    def results(self) -> list[Any]:
        """Return what the ranks returned; raise RankFailed when one did not."""
        outcomes = [child.outcome for child in self._children]
        good = {
            rank: outcome.value
            for rank, outcome in enumerate(outcomes)
            if outcome is not None and not outcome.failure
        }
        if len(good) == self._num_ranks:
            return [good[rank] for rank in range(self._num_ranks)]
        raise self._failure(good)

    def _failure(self, good: dict[int, Any]) -> RankFailed:
        bad = self._failed  # those that were killed after their grace do not count
        causes = [rank for rank in bad if not self._is_consequence(rank)]
        rank = (causes or bad)[0]
        child = self._children[rank]
        who = f"rank {rank} of {self._num_ranks} (pid {child.popen.pid})"
        if child.outcome is not None:
            text = f"{who} {child.outcome.failure}\n\n{child.outcome.trace}".rstrip()
        else:
            text = f"{who} {exit_words(child.popen.returncode)} before it returned"
        others = sorted({*bad} - {rank})
        if others:
            text += f"\n\n(also failed: {', '.join(f'rank {r}' for r in others)})"
        error = RankFailed(text)
        error.rank, error.results = rank, good
        return error

    def _is_consequence(self, rank: int) -> bool:
        outcome = self._children[rank].outcome
        return outcome is not None and outcome.is_consequence

    def _read(self, child: _Child) -> None:
        try:
            data = os.read(child.pipe, 1 << 20)
        except BlockingIOError:
            return
        child.data += data
        if not data:
            self._finish(child)

    def _finish(self, child: _Child) -> None:
        """Take the outcome from what a child has written."""
        self._hub.loop.unwatch(child.pipe)
        os.close(child.pipe)
        child.is_read = True
        child.outcome = _to_outcome(child.data)
        if child.outcome is None or child.outcome.failure:
            self._failed.append(child.rank)
            if self._failed_at is None:
                self._failed_at = time.monotonic()

    def _reap(self, child: _Child) -> None:
        """Take note of a child that has ended."""
        if child.popen.poll() is None:
            return
        if child.pidfd is not None and child.pidfd.number >= 0:
            self._hub.loop.unwatch(child.pidfd.number)
            os.close(child.pidfd.take())
        if not child.is_read:
            self._read(child)
        if not child.is_read:  # a process of its own still holds the pipe
            self._finish(child)
        if child.outcome is None:
            self._hub.died(child.rank, exit_words(child.popen.returncode))

    def _explain(self, rank: int) -> str | None:
        """Return how a rank ended whose connection did; the kernel may lag a little."""
        child = self._children[rank]
        if child.outcome is None:
            try:
                return exit_words(child.popen.wait(0.05))
            except subprocess.TimeoutExpired:
                pass
        return None


def _raise(error: Exception) -> None:
    """What goes wrong here is for who called `spawn`."""
    raise error


def _to_outcome(data: bytearray) -> Outcome | None:
    """Return what a child wrote, or None when it ended before it had written all."""
    if len(data) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(data)
    if len(data) < LENGTH.size + length:
        return None
    try:
        outcome = pickle.loads(memoryview(data)[LENGTH.size :])
    except Exception as e:
        return Outcome(failure=f"returned what cannot be read back: {e}")
    assert isinstance(outcome, Outcome)
    return outcome


def exceed_cores(num_ranks: int) -> bool:
    """Return whether ranks do, and the system lets one process fork them for us."""
    if not hasattr(os, "pidfd_open") or not hasattr(os, "sched_getaffinity"):
        return False
    return num_ranks > len(os.sched_getaffinity(0))


def _environment(num_ranks: int) -> dict[str, str]:
    """Return what ranks are given: ours, and as many threads each as it has cores.

    NumPy and PyTorch would have one for every core in each rank, and at the end of
    every product these wait in a loop for one another: on two cores, two ranks took
    ten times as long.
    """
    has_mask = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_mask else os.cpu_count() or 1
    threads = str(max(1, cores // num_ranks))
    return {"OMP_NUM_THREADS": threads, **os.environ, **_SAFE}


def _start(
    rank: int, task: int, hub: Hub, nursery: Nursery | None, env: Mapping[str, str]
) -> _Child:
    ours, theirs = socket.socketpair()
    pipe, result = os.pipe()
    inherited = (theirs.fileno(), task, result)
    try:
        forked = None if nursery is None else nursery.fork(rank, inherited)
        popen = _fresh(rank, inherited, env) if forked is None else forked
    finally:
        theirs.close()
        os.close(result)
    hub.adopt(ours, rank=rank)
    if forked is None:
        pidfd = open_pidfd(popen.pid)
    else:  # whose number may be another's by now
        pidfd = Descriptor(os.dup(forked.pidfd.number))
    return _Child(rank=rank, popen=popen, pidfd=pidfd, pipe=pipe)


def _fresh(
    rank: int, inherited: Sequence[int], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a rank by itself."""
    command = [
        sys.executable,
        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
        "-c",
        _BOOT,
        json.dumps(sys.path),
        str(rank),
        str(os.getpid()),
        *map(str, inherited),
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=inherited,
        env={**env, "LOCAL_RANK": str(rank)},
    )


def _pack(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    num_ranks: int,
    deadline_s: float,
) -> int:
    """Return a descriptor of the pickled task, which has no name to be left behind."""
    inner = _innermost(function, arguments)
    name = getattr(inner, "__module__", None) or "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    typed_in = byvalue.is_typed_in(name)
    try:
        packed = byvalue.dumps if typed_in else pickle.dumps
        work = packed((function, tuple(arguments)))
    except Exception as e:
        what = f"{getattr(inner, '__qualname__', inner)!r} or an argument"
        raise CallError(
            f"spawn: {what} cannot be sent to another process: {e}. Define the "
            "function at the top of a module"
            + ", in a file that this one imports"
            * typed_in
        ) from e
    task = Task(
        num_ranks=num_ranks,
        deadline_s=deadline_s,
        start_s=max(START_S, deadline_s),
        preparation=_preparation(
            needs_main=not typed_in and (b"__main__" in work or b"__mp_main__" in work)
        ),
        module=name,
        file=None if name == "__main__" else file,
        work=work,
    )
    number = create_file(0, "stretto-task")
    data = memoryview(pickle.dumps(task))
    while data:
        data = data[os.write(number, data) :]
    return number


def _innermost(function: Any, arguments: Sequence[Any]) -> Any:
    """Return the user's function: `spawn` passes it as an argument of ours."""
    if getattr(function, "__module__", "").startswith("stretto.") and arguments:
        first = arguments[0]
        return first if callable(first) else function
    return function


def _preparation(*, needs_main: bool) -> dict[str, Any]:
    """Return what a child must know of our main module, and no key of ours."""
    data: dict[str, Any] = preparation.get_preparation_data("stretto-rank")
    needless = ["authkey", "start_method"]
    if not needs_main:
        needless += ["init_main_from_name", "init_main_from_path"]
    for key in needless:
        data.pop(key, None)
    return data
