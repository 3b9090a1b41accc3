"""Ranks for tests of the CPU executor: forked processes and the smallest group."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from stretto import executors
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.errors import (
    CallError,
    CollectiveMismatch,
    CollectiveTimeout,
    PeerLost,
)
from stretto.executors import Call, Group
from stretto.program import algorithms


class LocalGroup(Group):
    """The ranks of one test: a mesh of sockets and a shared word that says broken."""

    def __init__(self, rank: int, socks: Mapping[int, socket.socket], cell: Any):
        self.rank = rank
        self.num_ranks = len(socks) + 1
        self.deadline_s = 20.0
        self._socks = socks
        for sock in socks.values():
            sock.settimeout(20.0)
        self._cell = cell

    def exchange(
        self, payload: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> list[tuple[Mapping[str, Any], tuple[int, ...]]]:
        raw = json.dumps(payload).encode()
        for sock in self._socks.values():
            socket.send_fds(sock, [struct.pack("<q", len(raw))], list(fds))
            sock.sendall(raw)
        got: dict[int, Any] = {self.rank: (payload, tuple(fds))}
        for peer, sock in self._socks.items():
            head, theirs, _, _ = socket.recv_fds(sock, 8, 16)
            body, size = b"", struct.unpack("<q", head)[0]
            while len(body) < size:
                body += sock.recv(size - len(body))
            got[peer] = (json.loads(body), tuple(theirs))
        return [got[rank] for rank in range(self.num_ranks)]

    @property
    def broken(self) -> Any:
        return self._cell

    def fail(
        self,
        waiting_for: Sequence[int],
        where: str,
        *,
        mismatch: str = "",
        refused: str = "",
    ) -> Exception:
        lost = int(self._cell[0]) - 2
        self._cell[0] = self._cell[0] or 1
        if lost >= 0:
            return PeerLost(f"rank {lost} is lost; {where}")
        if refused:
            return CallError(f"{refused}; {where}")
        if mismatch:
            return CollectiveMismatch(mismatch)
        return CollectiveTimeout(f"waiting for {list(waiting_for)}; {where}")


def run_ranks(
    num_ranks: int, work: Callable[..., Any], *args: Any, timeout_s: float = 60.0
) -> list[Any]:
    """Run work(group, *args) in a process per rank; return results or exceptions.

    A rank that dies is None, and the others' group says who it was.
    """
    cell = np.frombuffer(mmap.mmap(-1, 4096), dtype=np.int64)[:1]
    pairs = {(i, j): socket.socketpair() for j in range(num_ranks) for i in range(j)}
    mesh: list[dict[int, socket.socket]] = [{} for _ in range(num_ranks)]
    for (i, j), (left, right) in pairs.items():
        mesh[i][j], mesh[j][i] = left, right
    children: dict[int, tuple[int, int]] = {}
    for rank in range(num_ranks):
        end, start = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(LocalGroup(rank, mesh[rank], cell), work, args, start)
        os.close(start)
        children[rank] = (pid, end)
    for left, right in pairs.values():
        left.close()
        right.close()
    return _collect(children, cell, time.monotonic() + timeout_s)


def _child(group: LocalGroup, work: Any, args: Any, start: int) -> None:
    try:
        try:
            result = work(group, *args)
        except BaseException as e:
            result = e
        with os.fdopen(start, "wb") as pipe:
            pipe.write(pickle.dumps(result))
    finally:
        os._exit(0)


def _collect(children: dict[int, tuple[int, int]], cell: Any, until: float) -> Any:
    results: dict[int, Any] = {}
    raw = dict.fromkeys(children, b"")
    for _, end in children.values():
        os.set_blocking(end, False)
    try:
        while len(results) < len(children):
            if time.monotonic() > until:
                missing = sorted(set(children) - set(results))
                raise TimeoutError(f"ranks {missing} did not end")
            for rank, (_, end) in children.items():
                if rank in results:
                    continue
                try:
                    part = os.read(end, 1 << 20)
                except BlockingIOError:
                    continue
                raw[rank] += part
                if not part:
                    results[rank] = pickle.loads(raw[rank]) if raw[rank] else None
                    if not raw[rank] and not cell[0]:
                        cell[0] = rank + 2
            time.sleep(0.002)
    finally:
        for pid, end in children.values():
            os.close(end)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [results[rank] for rank in sorted(results)]


def load_compiled() -> None:
    """Load compiled code before ranks are forked: it would take each a second."""
    cell = np.zeros(1, np.int64)
    session = executors.get("cpu").open_session(LocalGroup(0, {}, cell))
    program = verify(algorithms.get("all_reduce/one_shot").build(1))
    call = Call(dtype="float32", counts=(4,))
    x = np.ones(4, np.float32)
    session.prepare(verify_plan(lower(program, Schedule())), call)(x, x)
    session.close()


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """Give tests the function that runs ranks."""
    return run_ranks
