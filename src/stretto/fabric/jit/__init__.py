"""Functions that Numba compiles, kept between processes; words of memory by address."""

from __future__ import annotations

import functools
import importlib.util
import os

from stretto.errors import MissingExtraError

__all__ = ["missing", "require"]


@functools.cache
def missing() -> str:
    """Return why nothing can be compiled here, or nothing. Numba is not imported."""
    if importlib.util.find_spec("numba") is None:
        return "Numba is not installed: pip install 'stretto[cpu]'"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT is set: unset it"
    return ""


def require(what: str) -> None:
    """Raise MissingExtraError where nothing can be compiled: `what` needs it."""
    if why := missing():
        raise MissingExtraError(
            f"{what} needs what Numba compiles. {why}; writing, proving and "
            "simulating work without it"
        )
