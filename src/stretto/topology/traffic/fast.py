"""The packet engine compiled: every function of `engine.py`, linked to the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import types

from stretto.fabric.jit.atomics import compiled
from stretto.topology.traffic import engine

__all__ = ["handler", "kick", "run"]

_FLAT = types.Array(types.float64, 1, "C")
_ROWS = types.Array(types.float64, 2, "C")
_WORDS = types.Array(types.int64, 1, "C")
_TABLE = types.Array(types.int64, 2, "C")
_TABLES = (_TABLE, _ROWS, *[_TABLE] * 7, _ROWS)
_STATE = types.Tuple((*_TABLES, _FLAT, _FLAT, _FLAT, _WORDS, _WORDS, _FLAT))
_HANDLER = types.void(_FLAT, _FLAT, _FLAT)
_TOLD = types.FunctionType(_HANDLER)
_KINDS: dict[str, Any] = {
    "when": types.int64, "code": types.int64, "link": types.int64,
    "packet": types.int64, "flow": types.int64, "size": types.int64,
    "node": types.int64, "came": types.int64, "leaves": types.int64,
    "kind": types.int64, "seq": types.int64, "until": types.int64,
    "on_ack": _TOLD, "on_cnp": _TOLD, "on_timer": _TOLD, "on_loss": _TOLD,
    "x": _STATE, "H": _WORDS, "S": _WORDS,
}  # fmt: skip
_RETURNS = {
    "pop": types.int64, "draw": types.float64, "admit": types.boolean,
    "arrive": types.int64, "receive": types.int64, "time_out": types.int64,
    "run": types.int64,
}  # fmt: skip


def _linked() -> dict[str, Any]:
    """Compile all functions; each calls the compiled ones before it."""
    space: dict[str, Any] = dict(vars(engine))
    for function in engine.FUNCTIONS:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        result = _RETURNS.get(function.__name__, types.void)
        signature = result(*(_KINDS[name] for name in names))
        copy = FunctionType(code, space, function.__name__)
        space[function.__name__] = compiled(signature, lean=True)(copy)
    return space


_SPACE = _linked()
run: Callable[..., int] = _SPACE["run"]
kick: Callable[..., None] = _SPACE["kick"]
_handlers: dict[Any, Any] = {}


def handler(function: Callable[..., None]) -> Any:
    """Return a handler of congestion control compiled, made once.

    It is kept between processes by its name, and many are called `on_ack`: so it gets
    one that says whose it is, and what it does.
    """
    made = _handlers.get(function)
    if made is None:
        code = function.__code__
        said = code.co_filename, code.co_code, code.co_consts, code.co_names
        digest = hashlib.sha256(repr(said).encode()).hexdigest()[:12]
        name = f"{function.__name__}_{digest}"
        copy = FunctionType(code, function.__globals__, name)
        made = _handlers[function] = compiled(_HANDLER, lean=True)(copy)
    return made
