"""Whether NumPy arrays are those of an earlier call: told by one builtin of Python.

An array is known by its identity and a weak reference, and by what can change in place:
its type, its flags, its shape (or only how large it is). NumPy and CPython keep these
at places that their ABI fixes; `usable` looks whether they do so here.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from stretto.fabric.jit.atomics import compiled, load, store
from stretto.fabric.jit.builtins import DATA, bad_argument, builtin, held_item, own

_NDIM, _DIMS = DATA + 8, DATA + 16
_DTYPE, _FLAGS = DATA + 40, DATA + 48
_REFERRED = object.__basicsize__
"""Where a weak reference keeps its object."""
_INT = (1 << 32) - 1
_MOST_AXES = 64
_WORDS = 5 + _MOST_AXES
"""Of what is known of an array: how, its reference, type and flags, its size or how
many axes, and those."""
_OUT = 8 * _WORDS
_TRUE, _FALSE = 1, 2
"""Items that are held beside the record."""


_NOTHING, _NONE, _BY_SIZE, _BY_SHAPE = range(4)
_HOW = {"nothing": _NOTHING, "size": _BY_SIZE, "shape": _BY_SHAPE}


@compiled("int64(int64)", nogil=False)
def _size(array: int) -> int:
    size = 1
    for axis in range(load(array + _NDIM) & _INT):
        size *= load(load(array + _DIMS) + 8 * axis)
    return size


@compiled("void(int64,int64)", nogil=False)
def _describe(at: int, array: int) -> None:
    """Write what an array is known by; how, and its reference, are there."""
    how = load(at)
    if how <= _NONE:
        return
    store(at + 16, load(array + _DTYPE))
    store(at + 24, load(array + _FLAGS) & _INT)
    if how == _BY_SIZE:
        store(at + 32, _size(array))
        return
    axes = load(array + _NDIM) & _INT
    store(at + 32, axes)
    for axis in range(axes):
        store(at + 40 + 8 * axis, load(load(array + _DIMS) + 8 * axis))


@compiled("int64(int64,int64)", nogil=False)
def _is_same(at: int, array: int) -> int:
    """Return whether an argument is still what was written of it."""
    how, ref = load(at), load(at + 8)
    if how == _NOTHING:
        return 1
    if how == _NONE:
        return int(array == ref)
    same = load(ref + _REFERRED) == array and load(array + _DTYPE) == load(at + 16)
    if not same or load(array + _FLAGS) & _INT != load(at + 24):
        return 0
    if how == _BY_SIZE:
        return int(_size(array) == load(at + 32))
    axes = load(at + 32)
    if load(array + _NDIM) & _INT != axes:
        return 0
    for axis in range(axes):
        if load(load(array + _DIMS) + 8 * axis) != load(at + 40 + 8 * axis):
            return 0
    return 1


@compiled("int64(int64,int64,int64)", nogil=False)
def _same(held: int, given: int, count: int) -> int:
    """Return whether `x` and `out` are those that are known, as a builtin."""
    if count != 2:
        bad_argument()
        return 0
    record = load(held_item(held, 0) + DATA)
    same = _is_same(record, load(given)) and _is_same(record + _OUT, load(given + 8))
    answer = held_item(held, _TRUE if same else _FALSE)
    own(answer)
    return answer


def same_arrays(
    x: Any, x_by: str, out: Any, out_by: str
) -> Callable[[Any, Any], bool] | None:
    """Return what tells whether two arguments are still `x` and `out`.

    Each is a NumPy array or None, and is known by "size" or "shape", or by "nothing".
    Returns None where arrays do not lie as expected.
    """
    if not usable():
        return None
    record = np.zeros(2 * _WORDS, np.int64)
    held: list[Any] = []
    for at, array, by in ((0, x, x_by), (_WORDS, out, out_by)):
        how = _NONE if array is None and by != "nothing" else _HOW[by]
        ref = weakref.ref(array) if how > _NONE else None
        held += [ref, array.dtype if how > _NONE else None]
        record[at : at + 2] = how, id(ref)
        _describe(int(record.ctypes.data) + 8 * at, id(array))
    return builtin(_same, (record, True, False, *held))


@functools.cache
def usable() -> bool:
    """Return whether NumPy and CPython keep what is read here where we expect it."""
    array = np.zeros((2, 3), np.int16)[:, ::2]
    ref, at = weakref.ref(array), id(array)
    dims = _word(at + _DIMS)
    found = (
        (_word(at + _NDIM) & _INT, _word(dims), _word(dims + 8)) == (2, 2, 2)
        and _word(at + _DTYPE) == id(array.dtype)
        and _word(at + _FLAGS) & _INT == array.flags.num
        and _word(id(ref) + _REFERRED) == at
    )
    del array
    return found and _word(id(ref) + _REFERRED) != at


def _word(at: int) -> int:
    return ctypes.c_int64.from_address(at).value
