"""What the copying loops need of the processor, and Numba does not offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stretto.fabric.jit.atomics import compiled
from stretto.fabric.jit.libc import memcpy

_WORD = ir.IntType(64)
_LINE = 64
_AT_ONCE = 4


def _lines(typing: Any, dst: Any, src: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = ir.VectorType(_WORD, _LINE // 8)
        past = builder.module.add_metadata([ir.IntType(32)(1)])
        for at in range(0, _LINE * _AT_ONCE, _LINE):
            begin, end = (builder.add(one, _WORD(at)) for one in (args[1], args[0]))
            value = builder.load(builder.inttoptr(begin, line.as_pointer()), align=1)
            place = builder.inttoptr(end, line.as_pointer())
            stored = builder.store(value, place, align=_LINE)
            stored.set_metadata("nontemporal", past)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def _add(typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


def _loader(bits: int) -> Any:
    def _load(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.zext(builder.load(pointer, align=1), _WORD)

        return types.int64(types.int64), emit

    return intrinsic(_load)


def _storer(bits: int) -> Any:
    def _store(typing: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(builder.trunc(args[1], ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), emit

    return intrinsic(_store)


def _taker(bits: int) -> Any:
    kind = ir.IntType(bits)

    def _take(typing: Any, base: Any, nth: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            begin = builder.inttoptr(args[0], kind.as_pointer())
            found = builder.load(builder.gep(begin, [args[1]]), align=1)
            return found if bits == 32 else builder.zext(found, ir.IntType(32))

        return types.uint32(types.int64, types.int64), emit

    return intrinsic(_take)


def _putter(bits: int) -> Any:
    kind = ir.IntType(bits)

    def _put(typing: Any, base: Any, nth: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            begin = builder.inttoptr(args[0], kind.as_pointer())
            cut = args[2] if bits == 32 else builder.trunc(args[2], kind)
            builder.store(cut, builder.gep(begin, [args[1]]), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.uint32), emit

    return intrinsic(_put)


_four_lines: Callable[[int, int], None] = intrinsic(_lines)
add: Callable[[int, int], int] = intrinsic(_add)
"""Add to a word at once; return what it was."""
load8: Callable[[int], int] = _loader(8)
load16: Callable[[int], int] = _loader(16)
load32: Callable[[int], int] = _loader(32)
store8: Callable[[int, int], None] = _storer(8)
store16: Callable[[int, int], None] = _storer(16)
store32: Callable[[int, int], None] = _storer(32)

take8: Callable[[int, int], Any] = _taker(8)
"""Return an element behind an address; a loop over these is made of vectors."""
take16: Callable[[int, int], Any] = _taker(16)
take32: Callable[[int, int], Any] = _taker(32)
put8: Callable[[int, int, Any], None] = _putter(8)
put16: Callable[[int, int, Any], None] = _putter(16)
put32: Callable[[int, int, Any], None] = _putter(32)


@compiled("void(int64,int64,int64)")
def stream(dst: int, src: int, nbytes: int) -> None:
    """Copy past the caches: what is large is not read again soon.

    Whoever announces it fences first.
    """
    at = -dst & (_LINE - 1)
    if at:
        memcpy(dst, src, at)
    while at + _LINE * _AT_ONCE <= nbytes:
        _four_lines(dst + at, src + at)
        at += _LINE * _AT_ONCE
    if at < nbytes:
        memcpy(dst + at, src + at, nbytes - at)
