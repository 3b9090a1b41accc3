"""Builtins of Python that Numba compiled: called without a dispatcher or a tuple.

Such a function is given three words: the object that it holds, where the arguments
stand, and how many there are. Objects are words, too: where they lie. It returns an
object, which the caller then owns, or 0 when it has raised.

What is over at once keeps the GIL; `let_go` and `take_back` stand around what is not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba import types

from stretto.fabric.jit.atomics import compiled, entry, load
from stretto.fabric.jit.libc import INT, WORD, outside

DATA = object.__basicsize__
"""Where a NumPy array keeps the address of its data; who relies on it looks first."""
_ITEMS = tuple.__basicsize__
_FAST = 0x80
"""Arguments stand side by side (METH_FASTCALL)."""

_Makes = Callable[[int], int]
_Does = Callable[[int], None]
_DOES = types.void(WORD)
let_go: Callable[[], int] = outside("PyEval_SaveThread", WORD())
"""Give the GIL back; return what takes it again."""
take_back: _Does = outside("PyEval_RestoreThread", _DOES)
own: _Does = outside("Py_IncRef", _DOES)
disown: _Does = outside("Py_DecRef", _DOES)
number: _Makes = outside("PyLong_FromLongLong", WORD(WORD))
"""Return a Python integer, owned."""
integer: _Makes = outside("PyLong_AsUnsignedLongLongMask", WORD(WORD))
"""Return the word of a Python integer; -1 may say that it is none."""
raised: Callable[[], int] = outside("PyErr_Occurred", WORD())
call_one: Callable[[int, int], int] = outside("PyObject_CallOneArg", WORD(WORD, WORD))
bad_argument: Callable[[], int] = outside("PyErr_BadArgument", INT())


@compiled("int64(int64,int64)", nogil=False)
def held_item(held: int, index: int) -> int:
    """Return an object of the tuple that a builtin holds; it stays the tuple's."""
    return load(held + _ITEMS + 8 * index)


class _Method(ctypes.Structure):
    """What Python knows of a builtin (PyMethodDef)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: dict[Any, _Method] = {}
"""By function, for good: Python keeps the address of one, not the object."""


def _method(function: Any) -> _Method:
    found = _methods.get(function)
    if found is None:
        name = function.py_func.__name__.encode()
        made = _Method(name, entry(function), _FAST, None)
        found = _methods.setdefault(function, made)  # another thread's, if it was first
    return found


def builtin(function: Any, held: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a builtin of a compiled function of three words; it holds a tuple."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    make.restype = ctypes.py_object
    made: Callable[..., Any] = make(ctypes.addressof(_method(function)), held, None)
    return made
