"""UCX's library: the wheel's, or with STRETTO_UCX=system that of the system.

Its structures grow at their ends and say by a mask which fields are given, so those of
1.14 are understood by all later ones.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

from stretto.errors import DeviceError, MissingExtraError

__all__ = ["Ucp", "load", "missing"]

CHOICE = "STRETTO_UCX"
_LIBRARIES = ("libucs.so", "libucs_signal.so", "libuct.so", "libucp.so")
_LEAST = (1, 14)
_ADVICE = (
    "pip install libucx-cu13 (or -cu12), or the system's UCX and STRETTO_UCX=system"
)


class Ucp:
    """UCX's functions; those that return a status raise what it says."""

    def __init__(self, folder: Path | None) -> None:
        """Open the libraries in the order in which they need one another."""
        parts = []
        for name in _LIBRARIES:
            file = f"{name}.0" if folder is None else os.fspath(folder / name)
            parts.append(ctypes.CDLL(file))
        self._ucs, self._ucp = parts[0], parts[-1]
        self.where = "the system's" if folder is None else os.fspath(folder)
        found = [ctypes.c_uint() for _ in range(3)]
        self._ucp.ucp_get_version(*map(ctypes.byref, found))
        self.numbers = tuple(int(n.value) for n in found)
        self.version = ".".join(map(str, self.numbers))
        if self.numbers[:2] < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise MissingExtraError(f"UCX {self.version}; want {least} or later")
        self._ucs.ucs_status_string.restype = ctypes.c_char_p

    def address(self, name: str) -> int:
        """Return where a function lies, for compiled code."""
        return int(ctypes.cast(getattr(self._ucp, name), ctypes.c_void_p).value or 0)

    def spell(self, status: int) -> str:
        """Return the words for a status."""
        return str(self._ucs.ucs_status_string(status).decode("ascii", "replace"))

    def ask(self, name: str, *args: Any) -> None:
        """Call a function that returns a status; raise when that is an error."""
        status = int(getattr(self._ucp, name)(*args))
        if status < 0:
            raise DeviceError(f"UCX, {name}: {self.spell(status)}")

    def call(self, name: str, *args: Any, result: Any = None) -> Any:
        """Call any other function."""
        function = getattr(self._ucp, name)
        function.restype = result
        return function(*args)


@functools.cache
def load() -> Ucp:
    """Return the library."""
    os.environ.setdefault("UCX_MEM_EVENTS", "no")  # it is told what is registered
    asked = os.environ.get(CHOICE, "")
    if asked not in ("", "system", "wheel"):
        raise MissingExtraError(f"{CHOICE}={asked!r:.40}; want 'system' or 'wheel'")
    if asked == "system":
        try:
            return Ucp(None)
        except OSError as e:
            raise MissingExtraError(
                f"{CHOICE}=system: {e}; install the system's UCX, name its folder in "
                "LD_LIBRARY_PATH, or take the wheel's"
            ) from None
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"no UCX here: {_ADVICE}")
    return Ucp(Path(next(iter(spec.submodule_search_locations))) / "lib")


@functools.cache
def missing() -> str:
    """Return why UCX cannot be used here, or nothing."""
    if importlib.util.find_spec("numba") is None:
        return "it needs Numba: pip install 'stretto[cpu]'"
    try:
        load()
    except (MissingExtraError, OSError) as e:
        return str(e)
    return ""
