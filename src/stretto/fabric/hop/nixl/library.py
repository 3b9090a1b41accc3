"""NIXL's wheel: which there is, and which of its backends is asked for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from stretto.errors import MissingExtraError

BACKEND = "STRETTO_NIXL"
_WHEELS = ("nixl_cu13", "nixl_cu12", "nixl_rocm")
_ADVICE = "pip install nixl-cu13 (or -cu12)"
_BETWEEN_PROCESSES = ("LIBFABRIC", "UCCL", "UCX")
"""Backends that move memory; the others are for storage."""
_LIBNL = "libnl-route-3.so.200"
"""Of the system: libraries of RDMA need it, and NIXL's wheel has a copy of its own."""
_ENDS = """
import sys
from {wheel} import _api
_api.nixl_agent("ends", _api.nixl_agent_config(backends=["UCX"]))
sys.stdout.write("ended")
sys.stdout.flush()
"""
_OTHER_UCX = "libucp.so.0"
"""UCX by its own name: the wheel's, the system's, or MPI's. NIXL's has another."""


def backend() -> str:
    """Return the backend that users ask for, or UCX."""
    return os.environ.get(BACKEND, "") or "UCX"


@functools.cache
def backends() -> tuple[str, ...]:
    """Return the backends between processes that the wheel has, without loading it."""
    spec = importlib.util.find_spec(_wheel())
    assert spec is not None
    beside = (
        Path(str(spec.origin)).parents[1].glob(f".{_wheel()}.*/plugins/libplugin_*.so")
    )
    found = {path.stem.removeprefix("libplugin_") for path in beside}
    return tuple(name for name in _BETWEEN_PROCESSES if name in found)


def new_agent(name: str, with_backends: tuple[str, ...]) -> Any:
    """Return an agent without a thread of its own: that would never sleep."""
    if why := clash():
        raise MissingExtraError(why)
    made = api()
    how = made.nixl_agent_config(enable_prog_thread=False, backends=list(with_backends))
    return made.nixl_agent(name, how)


def clash() -> str:
    """Return what this process has loaded that NIXL cannot live beside, or nothing."""
    if "ortools" in sys.modules:
        return (
            "NIXL and OR-Tools crash in one process, and OR-Tools is loaded: "
            "synthesise in a process of its own"
        )
    try:
        ctypes.CDLL(_OTHER_UCX, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (AttributeError, OSError):  # it is not there, nor can it be elsewhere
        return ""
    return (
        "NIXL brings a UCX of its own, and this process has loaded another: use "
        "either in a process of its own"
    )


def keep_apart() -> None:
    """Load the system's libnl, where there is one, before the wheel's copy.

    UCX's module for EFA is part of the wheel, EFA's library is not: it brings the
    system's libnl. Loaded second, that one finds the functions of the wheel's copy and
    notes itself there; when the process ends, the copy reads what has been unmapped,
    and the process dies of it. Loaded first, each keeps to itself.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL(_LIBNL)


@functools.cache
def fault_at_end() -> str:
    """Return what ends processes that load NIXL, or nothing: one is tried."""
    program = _ENDS.format(wheel=_wheel())
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        timeout=60, env={**os.environ, "NIXL_LOG_LEVEL": "ERROR"},
    )  # fmt: skip
    if run.returncode >= 0 or "ended" not in run.stdout:
        return ""
    name = signal.Signals(-run.returncode).name
    return (
        f"{version()} ends its process with {name}, without stretto too: it has a copy "
        "of libnl, and so has this system. Where stretto loads NIXL it does not; who "
        f"loads it otherwise calls ctypes.CDLL({_LIBNL!r}) before"
    )


def api() -> Any:
    """Return the wheel's module of agents, loaded."""
    keep_apart()
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    os.environ.setdefault("UCX_MEM_EVENTS", "no")  # it is told what is registered
    return importlib.import_module(f"{_wheel()}._api")


def version() -> str:
    """Return the wheel's name and version."""
    name = _wheel().replace("_", "-")
    return f"{name} {metadata.version(name)}"


def _wheel() -> str:
    for name in _WHEELS:
        if importlib.util.find_spec(name) is not None:
            return name
    raise MissingExtraError(f"no NIXL here: {_ADVICE}")


@functools.cache
def missing() -> str:
    """Return why NIXL cannot be used here, or nothing."""
    try:
        known = backends()
    except (MissingExtraError, ImportError, RuntimeError) as e:
        return str(e)
    if backend() not in known:
        return f"{BACKEND}={backend()}: its wheel has {', '.join(known) or 'none'}"
    return ""
