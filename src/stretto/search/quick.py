"""Functions that are compiled where Numba is, and run as they stand where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stretto.fabric.jit import missing

__all__ = ["quick"]

Any_ = TypeVar("Any_", bound=Callable[..., Any])


def quick(signature: str) -> Callable[[Any_], Any_]:
    """Compile a function for one signature, kept for the next process, if possible.

    The results are the same to the last bit; `function.py_func` is it as it stands.
    """

    def decorate(function: Any_) -> Any_:
        if missing():
            function.__dict__["py_func"] = function
            return function
        from stretto.fabric.jit.atomics import compiled

        return compiled(signature)(function)

    return decorate
