"""What mpirun's ranks know of one another by PMIx: a text of rank 0's, for all.

Open MPI's launcher serves PMIx to every process that it starts, whether it uses MPI or
not. Its library comes with Open MPI, and is called as C declares it (pmix_common.h).
A process may join PMIx once, and MPI wants to be the one who does: so a child of the
rank's, which counts as the rank, joins, asks, and ends. It runs this file.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_NAMES = ("libpmix.so.2", "libpmix.so", "libpmix.2.dylib", "libpmix.dylib")
_ROOTS = ("PMIX_PREFIX", "OPAL_PREFIX", "MPI_HOME")
_INSIDE = ("lib", "lib64", "lib/openmpi")
_GLOBAL, _STRING, _INT = 3, 3, 6
_KEY = 512
_GRACE_S = 10.0


class PmixError(Exception):
    """What PMIx said instead of a text."""


class _Proc(ctypes.Structure):
    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Data(ctypes.Union):
    _fields_ = (
        ("string", ctypes.c_char_p),
        ("integer", ctypes.c_int),
        ("widest", ctypes.c_uint64 * 3),
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_char * _KEY),
        ("flags", ctypes.c_uint32),
        ("value", _Value),
    )


def library(environment: Mapping[str, str] | None = None) -> str:
    """Return the name of PMIx's library, or "" where this rank has none.

    It lies with Open MPI: at a prefix that is named, or beside mpirun.
    """
    env = os.environ if environment is None else environment
    if "PMIX_RANK" not in env:
        return ""
    roots = [Path(env[name]) for name in _ROOTS if env.get(name)]
    if (mpirun := shutil.which("mpirun", path=env.get("PATH"))) is not None:
        roots += [Path(mpirun).parents[1], Path(mpirun).resolve().parents[1]]
    roots += [Path(sys.prefix), Path("/usr"), Path("/usr/local")]
    for root in roots:
        for folder in _INSIDE:
            for name in _NAMES:
                if (root / folder / name).exists():
                    return os.fspath(root / folder / name)
    return ""


def share(name: str, key: str, text: str | None, within_s: float) -> str:
    """Return the text that rank 0 gives; the others give None, and wait for it."""
    words = [sys.executable, "-I", __file__, name, key, str(within_s)]
    try:
        done = subprocess.run(
            words,
            input="" if text is None else text,  # a secret is in it: no argument
            capture_output=True,
            text=True,
            timeout=within_s + _GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PmixError(f"no answer within {within_s:g} s") from None
    if done.returncode:
        raise PmixError(done.stderr.strip()[-300:] or f"status {done.returncode}")
    return done.stdout


def _share(name: str, key: str, text: str, within_s: float) -> str:
    """Do the same in this process."""
    pmix, me = ctypes.CDLL(name), _Proc()
    _ask(pmix, "PMIx_Init", ctypes.byref(me), None, ctypes.c_size_t(0))
    try:
        if not text:
            return _get(pmix, me, key, within_s)
        value = _Value(_STRING, _Data(string=text.encode()))
        scope = ctypes.c_uint8(_GLOBAL)
        _ask(pmix, "PMIx_Put", scope, key.encode(), ctypes.byref(value))
        _ask(pmix, "PMIx_Commit")
        return text
    finally:
        pmix.PMIx_Finalize(None, ctypes.c_size_t(0))


def _get(pmix: Any, me: _Proc, key: str, within_s: float) -> str:
    root = _Proc(me.nspace, 0)
    limit = _Info(b"pmix.timeout", 0)
    limit.value.type, limit.value.data.integer = _INT, max(1, int(within_s))
    found = ctypes.POINTER(_Value)()
    _ask(
        pmix,
        "PMIx_Get",
        ctypes.byref(root),
        key.encode(),
        ctypes.byref(limit),
        ctypes.c_size_t(1),
        ctypes.byref(found),
    )
    return str(found.contents.data.string.decode())


def _ask(pmix: Any, name: str, *args: Any) -> None:
    status = getattr(pmix, name)(*args)
    if status:
        spell = pmix.PMIx_Error_string
        spell.restype = ctypes.c_char_p
        raise PmixError(f"{name}: {spell(status).decode('ascii', 'replace')}")


if __name__ == "__main__":
    try:
        with suppress(BrokenPipeError):
            _, library_, key_, within = sys.argv
            given = sys.stdin.read()
            sys.stdout.write(_share(library_, key_, given, float(within)))
    except (PmixError, OSError) as e:
        sys.exit(str(e))
