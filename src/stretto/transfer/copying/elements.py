"""Convert elements while they are scattered, compiled.

What has 8 or 16 bits is looked up in a table of all its values. A float32 is rounded to
nearest even by its bits: eight words say how the other type divides its own.
"""

from __future__ import annotations

from stretto.fabric.jit.atomics import compiled, load
from stretto.transfer.copying.intrinsics import (
    load8,
    load16,
    load32,
    store8,
    store16,
    store32,
)


@compiled("int64(int64,int64)")
def narrowed(bits: int, form: int) -> int:
    """Return the bits of a float32 rounded to a smaller type."""
    mantissa, bias = load(form), load(form + 8)
    size = bits & 0x7FFFFFFF
    sign = (bits >> 31) << load(form + 16)
    if size > 0x7F800000:
        return sign | load(form + 24) | ((size & 0x7FFFFF) >> (23 - mantissa))
    if size > load(form + 32):
        return sign | load(form + 40)
    exponent, kept = size >> 23, size & 0x7FFFFF
    if exponent:
        kept |= 1 << 23
    else:
        exponent = 1
    exponent += bias - 127
    shift, base = 23 - mantissa, 0
    if exponent < 1:
        shift += 1 - exponent
    else:
        base = (exponent - 1) << mantissa
    if shift > 25:
        return sign
    whole, rest, half = kept >> shift, kept & ((1 << shift) - 1), 1 << (shift - 1)
    if rest > half or (rest == half and whole & 1):
        whole += 1
    return sign | (base + whole)


@compiled("int64(int64,int64,int64)")
def _get(at: int, nth: int, size: int) -> int:
    if size == 1:
        return load8(at + nth)
    if size == 2:
        return load16(at + 2 * nth)
    return load32(at + 4 * nth)


@compiled("void(int64,int64,int64,int64,int64)")
def convert_run(sizes: int, table: int, dst: int, src: int, count: int) -> None:
    """Convert elements that lie one after the other; sizes are 16 x the source's + 1's.

    The table is of 32-bit words, or of a form's words where the source is a float32.
    """
    src_size, dst_size = sizes >> 4, sizes & 15
    for i in range(count):
        bits = _get(src, i, src_size)
        made = narrowed(bits, table) if src_size == 4 else load32(table + 4 * bits)
        if dst_size == 1:
            store8(dst + i, made)
        elif dst_size == 2:
            store16(dst + 2 * i, made)
        else:
            store32(dst + 4 * i, made)
