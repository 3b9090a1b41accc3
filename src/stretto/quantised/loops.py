"""Records in compiled loops: made of elements, added, and made elements again.

Nothing is fused: a product is rounded before it is added, on every machine alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.fabric.jit.atomics import compiled
from stretto.quantised.elements import BF16, F32, narrowed, widened
from stretto.quantised.wire import GROUP

__all__ = ["add_up", "give", "take"]

_U, _F = np.uint32, np.float32
_SIZE, _MOST = _U(0x7FFFFFFF), _U(0x7F7FFFFF)
_LEAST = _F(2.0**-100)
"""Blocks of smaller elements are scaled as if they had this: nothing overflows."""
_FP8, _PER_FP8, _INT8, _PER_INT8 = _F(448), _F(1 / 448), _F(127), _F(1 / 127)
_HALVES = _F(12582912.0)
"""1.5 * 2**23: what is added to it is rounded to a whole number."""


@compiled("float32(float32[::1],uint8[::1],int64)", lean=True)
def _packed(block: Any, out: Any, wire: int) -> Any:
    """Make a block's bytes; return what each stands for a multiple of."""
    largest = _U(0)
    for i in range(GROUP):
        largest = max(largest, _U(_F(block[i]).view(_U) & _SIZE))
    if largest > _MOST:
        for i in range(GROUP):
            out[i] = 0
        return _F(np.nan)
    most = max(_U(largest).view(_F), _LEAST)
    if wire:
        scale = _F(_INT8 / most)
        for i in range(GROUP):
            whole = _F(_F(block[i] * scale) + _HALVES).view(_U)
            out[i] = np.uint8(whole)
        return _F(most * _PER_INT8)
    scale = _F(_FP8 / most)
    for i in range(GROUP):  # as narrowed8: of what is at most 448
        bits = _F(block[i] * scale).view(_U)
        size = _U(bits & _SIZE)
        small = _U(_F(_U(size).view(_F) + _F(16384.0)).view(_U) - _U(0x46800000))
        even = _U(_U(size >> _U(20)) & _U(1))
        large = _U(_U(size - _U(0x3C000000) + _U(0x7FFFF) + even) >> _U(20))
        made = small if size < _U(0x3C800000) else min(large, _U(0x7E))
        out[i] = np.uint8(made | _U(_U(bits >> _U(24)) & _U(0x80)))
    return _F(most * _PER_FP8)


@compiled("void(float32[::1],uint8[::1],float32,int64)", lean=True)
def _unpacked(block: Any, raw: Any, per: Any, wire: int) -> None:
    """Make what a block's bytes stand for."""
    if wire:
        for i in range(GROUP):
            block[i] = _F(np.int8(raw[i])) * per
    else:
        for i in range(GROUP):
            bits = _U(raw[i])
            value = _F(_U(_U(bits & _U(0x7F)) << _U(20)).view(_F) * _F(2.0**120))
            sign = _U(_U(bits & _U(0x80)) << _U(24))
            block[i] = _U(_F(value).view(_U) | sign).view(_F) * per


def _give(item: str) -> Any:
    """Return what makes records of a vector's parts."""

    @compiled(f"void({item}[::1],uint8[::1],int64,int64,int64,float32[::1])", lean=True)
    def give(x: Any, out: Any, each: int, kind: int, wire: int, block: Any) -> None:
        nbytes = each + each // GROUP * 4
        for q in range(out.shape[0] // nbytes):
            record = out[q * nbytes : (q + 1) * nbytes]
            scales = record[each:].view(_F)
            for g in range(each // GROUP):
                first = q * each + g * GROUP
                many = min(GROUP, max(0, x.shape[0] - first))
                some = x[first : first + many]
                if kind == F32:
                    for i in range(many):
                        block[i] = some[i]
                elif kind == BF16:
                    for i in range(many):
                        block[i] = _U(_U(some[i]) << _U(16)).view(_F)
                else:
                    for i in range(many):
                        block[i] = widened(some[i], kind)
                for i in range(many, GROUP):
                    block[i] = 0
                place = record[g * GROUP : (g + 1) * GROUP]
                scales[g] = _packed(block, place, wire)

    return give


@compiled(
    "void(uint8[::1],uint8[::1],int64,int64,int64,float32[::1],float32[::1])", lean=True
)
def add_up(
    came: Any, out: Any, each: int, wire: int, ranks: int, total: Any, block: Any
) -> None:
    """Add the records that came, in their order, and make a record of the sum.

    `ranks`: by how many to divide it, or 0.
    """
    nbytes = each + each // GROUP * 4
    sums = out[each:].view(_F)
    for g in range(each // GROUP):
        for q in range(came.shape[0] // nbytes):
            record = came[q * nbytes : (q + 1) * nbytes]
            per = record[each:].view(_F)[g]
            _unpacked(block, record[g * GROUP : (g + 1) * GROUP], per, wire)
            if q == 0:
                for i in range(GROUP):
                    total[i] = block[i]
            else:
                for i in range(GROUP):
                    total[i] += block[i]
        if ranks:
            for i in range(GROUP):
                total[i] = _F(total[i] / _F(ranks))
        sums[g] = _packed(total, out[g * GROUP : (g + 1) * GROUP], wire)


def _take(item: str) -> Any:
    """Return what makes a vector of records again."""

    @compiled(f"void(uint8[::1],{item}[::1],int64,int64,int64,float32[::1])", lean=True)
    def take(came: Any, out: Any, each: int, kind: int, wire: int, block: Any) -> None:
        nbytes = each + each // GROUP * 4
        for q in range(came.shape[0] // nbytes):
            record = came[q * nbytes : (q + 1) * nbytes]
            scales = record[each:].view(_F)
            for g in range(each // GROUP):
                first = q * each + g * GROUP
                many = min(GROUP, out.shape[0] - first)
                if many <= 0:
                    break
                _unpacked(block, record[g * GROUP : (g + 1) * GROUP], scales[g], wire)
                some = out[first : first + many]
                if kind == F32:
                    for i in range(many):
                        some[i] = block[i]
                elif kind == BF16:
                    for i in range(many):
                        some[i] = narrowed(block[i], BF16)
                else:
                    for i in range(many):
                        some[i] = narrowed(block[i], kind)

    return take


give = {"float32": _give("float32"), "uint16": _give("uint16")}
take = {"float32": _take("float32"), "uint16": _take("uint16")}
