"""What Numba compiled, kept between processes in files of ours.

Numba's own cache is pickles without a checksum, in a folder that others may write, and
a truncated index stops every process. Ours are pickles too: so a file is read only when
the user alone could have written it and its checksum is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba

from stretto import caches
from stretto._version import __version__
from stretto.errors import is_interruption

__all__ = ["Kept"]


class Kept:
    """What a Numba dispatcher asks and tells: one file a function and signature."""

    cache_path = None

    def __init__(self, function: Callable[..., Any], sources: str) -> None:
        """Keep what is compiled of a function; `sources` stands for all of its code."""
        self._name, self._sources = function.__name__, sources
        self._turn = contextlib.ExitStack()
        """Held while this process compiles what others wait for."""

    def __enter__(self) -> Kept:
        """Be asked and told."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let the others have what was compiled."""
        self._turn.close()

    def enable(self) -> None:
        """It always is."""

    def disable(self) -> None:
        """It never is."""

    def flush(self) -> None:
        """Forget nothing: names change with what they stand for."""

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return what was compiled for a signature, or None: compile it, alone.

        So several ranks that find nothing compile once. Numba fills tables of all that
        it can compile when it compiles; loading needs none of them, so fills none.
        """
        path = self._path(signature, target)
        data = caches.load(path)
        if data is None:
            self._turn.enter_context(caches.alone(path.parent / "turn.lock"))
            data = caches.load(path)
        if data is None:
            _say(path.parent / f"said-{self._facts(target, __version__)}")
            return None
        self._turn.close()
        try:
            from numba.core.compiler import CompileResult
            from numba.core.runtime import rtsys

            rtsys.initialize(target)  # what every compiled function is linked with
            return CompileResult._rebuild(target, *pickle.loads(data))
        except Exception as e:  # of another Numba, say: whatever it is, compile
            if is_interruption(e):
                raise
            caches.discard(path, f"cannot be read: {type(e).__name__}: {e}")
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled for a signature."""
        try:
            from numba.core.serialize import dumps

            data = dumps(result._reduce())
        except Exception as e:  # what cannot be kept is compiled each time
            if is_interruption(e):
                raise
            return
        caches.store(self._path(signature, result.target_context), data)

    def _path(self, signature: Any, target: Any) -> Any:
        name = self._facts(target, self._name, self._sources, str(signature))
        return caches.folder("compiled") / f"{self._name}-{name}"

    def _facts(self, target: Any, *facts: str) -> str:
        """Return a name for facts on this processor, with these compilers."""
        here = (
            *facts,
            target.codegen().magic_tuple(),
            (numba.__version__, llvmlite.__version__, sys.version),
        )
        return hashlib.sha256(repr(here).encode()).hexdigest()[:32]


def _say(mark: Path) -> None:
    """Say that compiling takes its time: once for what is kept, not once a rank."""
    try:
        mark.touch(mode=0o600, exist_ok=False)
    except OSError:
        return
    sys.stderr.write(
        "stretto: compiling the CPU interpreter for this processor; this takes some "
        f"seconds, once (kept in {mark.parent})\n"
    )
    sys.stderr.flush()
