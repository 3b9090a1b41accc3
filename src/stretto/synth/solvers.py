"""The solvers, imported late: without them only synthesis is missing."""

from __future__ import annotations

import contextlib
import importlib
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from stretto.errors import MissingExtraError
from stretto.fabric.jit.handlers import held_back

__all__ = ["assignment", "cp_model", "csgraph", "linprog", "solved", "sparse"]


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


def linprog(price: Any, **asked: Any) -> Any:
    """Return what HiGHS says of a linear program; its status says what is amiss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # users are not helped by what scipy says
        return _load("scipy.optimize").linprog(price, **asked)


def assignment(cost: Any) -> Any:
    """Return who is given to whom at least cost: `linear_sum_assignment`."""
    return _load("scipy.optimize").linear_sum_assignment(cost)


def sparse() -> Any:
    """Return `scipy.sparse`."""
    return _load("scipy.sparse")


def csgraph() -> Any:
    """Return `scipy.sparse.csgraph`: shortest paths."""
    return _load("scipy.sparse.csgraph")


def _load(name: str) -> Any:
    """Import a module; an interruption comes after that, not as a failed import."""
    try:
        if name in sys.modules:
            return importlib.import_module(name)
        with held_back():
            return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"synthesis: got no {name.partition('.')[0]}, want the solvers; "
            "pip install 'stretto[synth]'"
        ) from e
