"""Functions that Numba compiles, kept between processes; words of memory by address."""

from __future__ import annotations

import functools

__all__ = ["missing"]


@functools.cache
def missing() -> str:
    """Return why nothing can be compiled here, or nothing. Numba is imported."""
    try:
        import numba
    except ImportError as e:
        return f"{e}: pip install 'stretto[cpu]'"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else ""
