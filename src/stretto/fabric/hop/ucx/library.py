"""UCX's library: the wheel's, or with STRETTO_UCX=system that of the system.

A process has one UCX: where another library, such as MPI, has brought one already, it
is used. Two would share the names of their files, and each call the other's functions.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from stretto.errors import DeviceError, MissingExtraError
from stretto.fabric import jit
from stretto.fabric.hop.interface import interface_of
from stretto.fabric.hop.ucx.structures import ComponentAttributes

CHOICE = "STRETTO_UCX"
DEVICES = "UCX_NET_DEVICES"
_LIBRARIES = ("libucs.so", "libucs_signal.so", "libuct.so", "libucp.so")
_LEAST = (1, 14)
_WITH_LOOPBACK = (1, 22)
"""UCX 1.20 ends the process where loopback is its only device; this one does not."""
_OF_EACH = "ucp_get_version", "uct_query_components", "ucs_status_string"
"""A function of each library, from the uppermost down."""
_LOADED = "libucp.so.0"
_NIXL = ("nixl_cu13", "nixl_cu12", "nixl_rocm")
"""NIXL's modules: they load a UCX under other names."""
_CARDS = Path("/sys/class/infiniband")
_FIRST = "open stretto's carrier before that library is imported"
_ADVICE = (
    "pip install libucx-cu13 (or -cu12), or the system's UCX and STRETTO_UCX=system"
)


class Ucp:
    """UCX's functions; those that return a status raise what it says."""

    def __init__(self, folder: Path | None) -> None:
        """Open the libraries of a folder in the order in which they need one another.

        Without a folder, open what is loaded already, or what the system finds.
        """
        if folder is None:
            self._ucp = ctypes.CDLL(_LOADED)
        else:
            parts = [ctypes.CDLL(os.fspath(folder / name)) for name in _LIBRARIES]
            self._ucp = parts[-1]
        folders = [_folder_of(getattr(self._ucp, name)) for name in _OF_EACH]
        if len(set(folders)) > 1:
            raise MissingExtraError(
                f"UCX's libraries are of several UCX: {', '.join(folders)}; another "
                f"library has loaded a part of one: {_FIRST}"
            )
        self.where = folders[0]
        found = [ctypes.c_uint() for _ in range(3)]
        self._ucp.ucp_get_version(*map(ctypes.byref, found))
        self.numbers = tuple(int(n.value) for n in found)
        self.version = ".".join(map(str, self.numbers))
        if self.numbers[:2] < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise MissingExtraError(f"UCX {self.version}; want {least} or later")
        self._ucp.ucs_status_string.restype = ctypes.c_char_p

    def address(self, name: str) -> int:
        """Return where a function lies, for compiled code."""
        return int(ctypes.cast(getattr(self._ucp, name), ctypes.c_void_p).value or 0)

    def spell(self, status: int) -> str:
        """Return the words for a status."""
        return str(self._ucp.ucs_status_string(status).decode("ascii", "replace"))

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

    def fabrics(self) -> tuple[str, ...]:
        """Return the names of what it was built for: `tcp`; `ib` with RDMA."""
        found, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint()
        self.ask("uct_query_components", ctypes.byref(found), ctypes.byref(count))
        said = [ComponentAttributes() for _ in range(count.value)]
        for i, one in enumerate(said):
            of = ctypes.c_void_p(found[i])
            self.ask("uct_component_query", of, ctypes.byref(one))
        self.call("uct_release_component_list", found)
        return tuple(sorted(one.name.decode("ascii", "replace") for one in said))


class _Symbol(ctypes.Structure):
    """`Dl_info`."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _folder_of(function: Any) -> str:
    """Return the folder of the library that has a function."""
    found = _Symbol()
    address = ctypes.cast(function, ctypes.c_void_p)
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(found)):
        return ""
    return os.path.realpath(Path(os.fsdecode(found.file)).parent)


def _is_loaded() -> bool:
    """Return whether this process has a UCX, whoever brought it."""
    try:
        ctypes.CDLL(_LOADED, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


@functools.cache
def load() -> Ucp:
    """Return the library."""
    if any(name in sys.modules for name in _NIXL):
        raise MissingExtraError(
            "NIXL brings a UCX of its own, and this process has loaded it: use either "
            "in a process of its own"
        )
    asked = os.environ.get(CHOICE, "")
    if asked not in ("", "system", "wheel"):
        raise MissingExtraError(f"{CHOICE}={asked!r:.40}; want 'system' or 'wheel'")
    is_loaded = _is_loaded()
    if not is_loaded:
        os.environ.setdefault("UCX_MEM_EVENTS", "no")  # it is told what is registered
        # What it returns is told in our words; what strangers send it, in none.
        os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    # Else an end point that is made while its peer ends is freed, and used: UCX 1.22
    # tries again in `ucp_ep_create`, and lets go of what it returns.
    os.environ.setdefault("UCX_TCP_CONN_NB", "y")
    if asked == "system":
        try:
            return Ucp(None)
        except OSError as e:
            raise MissingExtraError(
                f"{CHOICE}=system: {e}; install the system's UCX, name its folder in "
                "LD_LIBRARY_PATH, or take the wheel's"
            ) from None
    loaded = Ucp(None) if is_loaded else None
    if loaded is not None and asked != "wheel":
        return loaded
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"no UCX here: {_ADVICE}")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    if loaded is not None and loaded.where != os.path.realpath(folder):
        raise MissingExtraError(
            f"{CHOICE}=wheel: this process has UCX {loaded.version} of {loaded.where} "
            f"already; unset {CHOICE}, or {_FIRST}"
        )
    return loaded or Ucp(folder)


def device_for(address: str) -> str:
    """Return the one network device that UCX is to use, or nothing: all that it finds.

    By itself it listens at each interface, whatever address ranks are reached by. Where
    it may go by cards with RDMA, these must stay; where users name devices, they know.
    """
    ucp = load()
    if os.environ.get(DEVICES) or (_cards() and "ib" in ucp.fabrics()):
        return ""
    if address.startswith("127.") and ucp.numbers[:2] < _WITH_LOOPBACK:
        return ""
    return interface_of(address)


def _cards() -> list[str]:
    try:
        return sorted(path.name for path in _CARDS.iterdir())
    except OSError:
        return []


@functools.cache
def passed_over() -> str:
    """Return why cards with RDMA of this host are not used, or nothing."""
    cards = _cards()
    if not cards:
        return ""
    ucp = load()
    if "ib" in ucp.fabrics():
        return ""
    return (
        f"this host has {', '.join(cards)}, but UCX {ucp.version} of {ucp.where} was "
        "built without InfiniBand and RoCE, so it goes by TCP: install the system's "
        f"UCX and set {CHOICE}=system"
    )


@functools.cache
def missing() -> str:
    """Return why UCX cannot be used here, or nothing."""
    if why := jit.missing():
        return why
    try:
        load()
    except (MissingExtraError, OSError) as e:
        return str(e)
    return ""
