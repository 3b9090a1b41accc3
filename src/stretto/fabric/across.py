"""Whether the kernel copies between two processes' memories, found out by trying."""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Witness", "admit", "rule", "why_not"]

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_RULES = {
    "": "whoever is of the same user",
    "0": "whoever is of the same user",
    "1": "processes of one launcher, and whom they admit (Yama 1)",
    "2": "root alone (Yama 2)",
    "3": "nobody (Yama 3)",
}
_admitted: list[int] = []


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Witness:
    """Random bytes of ours, by which a peer sees that it reads our memory.

    Some other process may have our number in the peer's eyes.
    """

    def __init__(self) -> None:
        self._bytes = np.frombuffer(secrets.token_bytes(16), np.uint8).copy()

    def dump(self) -> dict[str, int | str]:
        """Return where they lie, what they are, and whose."""
        return {
            "address": int(self._bytes.ctypes.data),
            "bytes": self._bytes.tobytes().hex(),
            "pid": os.getpid(),
        }


def rule() -> str:
    """Return whom this system's kernel lets copy from a process, in words."""
    said = ""
    with suppress(OSError):
        said = _YAMA.read_text(encoding="ascii").strip()
    return _RULES.get(said, f"unknown (Yama {said})")


def admit(pid: int = 0) -> None:
    """Let a process reach this one where the kernel asks for our leave (Yama).

    Who has one launcher with us comes in by that: it admits all whom it began. The
    kernel remembers one name; a second makes it anybody's, as MPI and UCX have it.
    """
    if not hasattr(os, "memfd_create"):
        return
    parent = os.getppid()
    who = parent if not pid or _parent(pid) == parent else pid
    if _admitted in ([who], [_ANYBODY]):
        return
    _admitted[:] = [_ANYBODY if _admitted else who]
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_admitted[0]), 0, 0, 0)


def _parent(pid: int) -> int:
    """Return who began a process; 0 where nobody says."""
    with suppress(OSError, ValueError, IndexError):
        said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(said.rpartition(")")[2].split()[1])
    return 0


def why_not(witness: Mapping[str, Any], pid: int = 0) -> str:
    """Return why memory of a process cannot be reached, or nothing."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return "this system has no such call"
    pid, address = pid or int(witness["pid"]), int(witness["address"])
    want = bytes.fromhex(str(witness["bytes"]))
    call.restype = ctypes.c_ssize_t
    got = (ctypes.c_char * len(want))()
    mine, theirs = _Piece(ctypes.addressof(got), len(want)), _Piece(address, len(want))
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    read = call(pid, ctypes.byref(mine), one, ctypes.byref(theirs), one, none)
    if read < 0:
        return f"the kernel refuses: {os.strerror(ctypes.get_errno())}"
    return "" if got.raw == want else "another process answers to its number"
