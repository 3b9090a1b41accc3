"""The solvers, imported late: without them only synthesis is missing."""

from __future__ import annotations

import contextlib
import importlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from stretto.errors import MissingExtraError

__all__ = ["cp_model", "csgraph", "optimize", "solved", "sparse"]


def cp_model() -> Any:
    """Return OR-Tools' CP-SAT module."""
    if not {"nixl_cu13", "nixl_cu12", "nixl_rocm"}.isdisjoint(sys.modules):
        raise MissingExtraError(
            "OR-Tools and NIXL crash in one process, and NIXL is loaded: "
            "synthesise in a process of its own"
        )
    return _load("ortools.sat.python.cp_model")


def solved(solver: Any, model: Any, watch: Any = None) -> Any:
    """Have CP-SAT solve and return the status; Ctrl-C ends it, and is raised.

    By itself CP-SAT takes the signal, ends, and nobody hears of it.
    """
    solver.parameters.catch_sigint_signal = False
    with _stopped_by_ctrl_c(solver):
        return solver.solve(model, watch)


@contextlib.contextmanager
def _stopped_by_ctrl_c(solver: Any) -> Iterator[None]:
    """End a solver when SIGINT comes; Python's handler runs when it has returned."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, said = socket.socketpair()
    said.setblocking(False)

    def listen() -> None:
        while number := heard.recv(1):
            if number[0] == signal.SIGINT:
                solver.stop_search()

    thread = threading.Thread(target=listen, name="stretto-ctrl-c", daemon=True)
    before = signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
    try:
        thread.start()
        yield
    finally:
        signal.set_wakeup_fd(before)
        said.close()
        thread.join()
        heard.close()


def optimize() -> Any:
    """Return `scipy.optimize`, whose `linprog` is HiGHS."""
    return _load("scipy.optimize")


def sparse() -> Any:
    """Return `scipy.sparse`."""
    return _load("scipy.sparse")


def csgraph() -> Any:
    """Return `scipy.sparse.csgraph`: shortest paths."""
    return _load("scipy.sparse.csgraph")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"synthesis: got no {name.partition('.')[0]}, want the solvers; "
            "pip install 'stretto[synth]'"
        ) from e
