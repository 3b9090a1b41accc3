"""The compiled interpreter, made ready beside the calls that NumPy runs meanwhile.

In: who wants it. Out: a call with the interpreter, by a thread, once it can be used.
Never: a compiler in this process, whose threads it would hold up for seconds: a process
of its own compiles what this one then loads.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from stretto import caches
from stretto.executors.cpu.running.interpreters import Interpreter, interpreter_named

__all__ = ["when_ready"]

_NICE = 10
_LONGEST_S = 5.0
"""How long a process that ends waits for one that is just being loaded."""
_COMPILE = (
    "import os; os.nice({nice}); "
    "from stretto.executors.cpu.running.beside import compile_now; compile_now()"
)

_lock = threading.Lock()
_waiting: list[Callable[[Interpreter], None]] = []
_thread: threading.Thread | None = None
_child: subprocess.Popen[bytes] | None = None
_is_ending = False


def when_ready(take: Callable[[Interpreter], None]) -> None:
    """Call `take` with the compiled interpreter, by a thread, when there is one."""
    global _thread
    with _lock:
        _waiting.append(take)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(
                target=_serve, name="stretto-interpreter", daemon=True
            )
            _thread.start()


def compile_now() -> None:
    """Compile the interpreter into the cache, and leave a mark that it is there."""
    interpreter_named("numba")
    importlib.import_module("stretto.jit.records")  # by which calls on GPUs are noted
    caches.store(_mark(), b"compiled")


def _serve() -> None:
    while True:
        try:
            if caches.load(_mark()) is None:
                _compile_elsewhere()
            engine = None if _is_ending else interpreter_named("numba")
        except Exception:  # whatever it is, what runs the calls now goes on doing so
            engine = None
        with _lock:
            takers, _waiting[:] = list(_waiting), []
            if engine is None or not takers:
                return
        for take in takers:
            take(engine)


def _compile_elsewhere() -> None:
    """Wait for a process that compiles; without it, it is compiled where it loads."""
    global _child
    paths = [p for p in sys.path if p]
    with _lock:
        if _is_ending:
            return
        try:
            _child = subprocess.Popen(
                [sys.executable, "-c", _COMPILE.format(nice=_NICE)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return
    _child.wait()


@functools.cache
def _mark() -> Path:
    """Return a file that says that all was compiled: here, and by these compilers."""
    from llvmlite import binding as llvm

    folders = Path(__file__).parents[1], Path(__file__).parents[3] / "jit"
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    here = (
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
        [importlib.metadata.version(name) for name in ("numba", "llvmlite")],
        (sys.version, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()),
    )
    name = hashlib.sha256(repr(here).encode()).hexdigest()[:32]
    return caches.folder("compiled") / f"all-{name}"


@atexit.register
def _end() -> None:
    """Leave nothing half loaded: an interpreter that ends may not be in LLVM."""
    global _is_ending
    with _lock:
        _is_ending = True
        if _child is not None and _child.poll() is None:
            _child.kill()
    if _thread is not None:
        _thread.join(_LONGEST_S)


def _forget() -> None:
    """Begin anew in a forked child: threads were the parent's."""
    global _thread, _child, _lock
    _lock, _thread, _child = threading.Lock(), None, None
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
