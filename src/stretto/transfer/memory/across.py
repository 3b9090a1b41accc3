"""Whether the kernel copies between two processes' memories, found out by trying."""

from __future__ import annotations

import ctypes
import os
import secrets

import numpy as np

_PR_SET_PTRACER = 0x59616D61


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Witness:
    """Random bytes of ours, by which a peer sees that it reads our memory.

    Some other process may have our number in the peer's eyes.
    """

    def __init__(self) -> None:
        self._bytes = np.frombuffer(secrets.token_bytes(16), np.uint8).copy()

    def dump(self) -> dict[str, int | str]:
        """Return where they lie, and what they are."""
        return {
            "address": int(self._bytes.ctypes.data),
            "bytes": self._bytes.tobytes().hex(),
        }

    def admit(self, pid: int) -> None:
        """Let a peer reach us where the kernel asks for our leave (Yama)."""
        if hasattr(os, "memfd_create"):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def why_not(pid: int, address: int, want: bytes) -> str:
    """Return why memory of a process cannot be reached, or nothing."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return "this system has no such call"
    call.restype = ctypes.c_ssize_t
    got = (ctypes.c_char * len(want))()
    mine, theirs = _Piece(ctypes.addressof(got), len(want)), _Piece(address, len(want))
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    read = call(pid, ctypes.byref(mine), one, ctypes.byref(theirs), one, none)
    if read < 0:
        return f"the kernel refuses: {os.strerror(ctypes.get_errno())}"
    return "" if got.raw == want else "another process answers to its number"
