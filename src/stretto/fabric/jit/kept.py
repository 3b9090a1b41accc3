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
from typing import Any

import llvmlite
import numba

from stretto import caches
from stretto.errors import is_interruption


class KeptFunctions:
    """What a Numba dispatcher asks and tells: one file a function and signature."""

    cache_path = None

    def __init__(self, function: Callable[..., Any], sources: str) -> None:
        """Keep what is compiled of a function; `sources` stands for all of its code."""
        self._name, self._sources = function.__name__, sources
        self._turn = contextlib.ExitStack()
        """Held while this process compiles what others wait for."""

    def __enter__(self) -> KeptFunctions:
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
        facts = self._name, self._sources, str(signature), here(target)
        name = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
        return caches.folder("compiled") / f"{self._name}-{name}"


def here(target: Any) -> tuple[Any, ...]:
    """Return this processor, and these compilers."""
    versions = numba.__version__, llvmlite.__version__, sys.version
    return target.codegen().magic_tuple(), versions
