"""Functions that were typed in, made to travel: from a notebook, a REPL or stdin.

A child cannot import such a main module, so its functions go as they are: their code,
and the globals that they use, which become globals of the child's main module. Classes
need cloudpickle, which is used for everything where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import marshal
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

_MAIN = "__main__"


def is_typed_in(module: str) -> bool:
    """Return whether a module is a main module that no file holds."""
    main = sys.modules.get(_MAIN)
    if module != _MAIN or main is None or getattr(main, "__spec__", None) is not None:
        return False
    return not os.path.isfile(getattr(main, "__file__", None) or "")  # noqa: PTH113


def dumps(value: Any) -> bytes:
    """Pickle a value, functions of the main module by value."""
    if importlib.util.find_spec("cloudpickle") is not None:
        import cloudpickle  # type: ignore[import-not-found,unused-ignore]

        return bytes(cloudpickle.dumps(value))
    out = io.BytesIO()
    _Pickler(out).dump(value)
    return out.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Take a function of the main module apart, and name a module."""
        if isinstance(value, FunctionType) and value.__module__ == _MAIN:
            return _apart(value)
        if isinstance(value, ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, CodeType):
            return marshal.loads, (marshal.dumps(value),)
        if isinstance(value, type) and value.__module__ == _MAIN:
            raise pickle.PicklingError(
                f"class {value.__qualname__} was typed in; classes travel by value "
                "when cloudpickle is installed (pip install cloudpickle), or when a "
                "file defines them"
            )
        return NotImplemented


def _apart(function: FunctionType) -> tuple[Any, ...]:
    """Return how to make a function again: bare first, as it may name itself."""
    cells = function.__closure__ or ()
    made = function.__code__, function.__name__, len(cells)
    used = {
        name: function.__globals__[name]
        for name in dict.fromkeys(_names(function.__code__))
        if name in function.__globals__
    }
    state = {
        "globals": used,
        "cells": [cell.cell_contents for cell in cells],
        "defaults": function.__defaults__,
        "keywords": function.__kwdefaults__,
        "qualname": function.__qualname__,
        "doc": function.__doc__,
    }
    return _made, made, state, None, None, _finish


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function may look up, inner functions' too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _made(code: CodeType, name: str, cells: int) -> Callable[..., Any]:
    names = vars(sys.modules[_MAIN])
    return FunctionType(
        code, names, name, None, tuple(CellType() for _ in range(cells))
    )


def _finish(function: FunctionType, state: dict[str, Any]) -> None:
    function.__globals__.update(state["globals"])
    for cell, value in zip(function.__closure__ or (), state["cells"], strict=True):
        cell.cell_contents = value
    function.__defaults__, function.__kwdefaults__ = (
        state["defaults"],
        state["keywords"],
    )
    function.__qualname__, function.__doc__ = state["qualname"], state["doc"]
    function.__module__ = _MAIN
