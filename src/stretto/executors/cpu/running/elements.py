"""What a kernel does to a vector of elements of one type: combine, divide, round.

Rounding is that of `program.collectives`: floats of 8 and 16 bits are widened to
float32, combined there left to right and rounded once; integers wrap; min and max carry
NaN; bool adds as `or`. A complex number adds as two floats. Its product is the
schoolbook's with every step rounded, the same everywhere; NumPy's may differ in the
last bit where it fuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from stretto.program.elements import FLOAT8, Format, Operator, storage

_F32, _F64, _HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
_LOGIC = {
    Operator.SUM: Operator.BOR,
    Operator.MAX: Operator.BOR,
    Operator.PROD: Operator.BAND,
    Operator.MIN: Operator.BAND,
}


def element(dtype: str, *, copies: bool) -> Element:
    """Return how elements of a type are handled; copies only know their size."""
    itemsize = storage(dtype).itemsize
    if copies:
        return Integer(min(itemsize, 8), signed=False)
    match dtype:
        case "bool":
            return Boolean(1, signed=False)
        case "float32":
            return Float(_F32, 4)
        case "float64":
            return Float(_F64, 8)
        case "float16":
            return Half()
        case "bfloat16":
            return BFloat()
        case "float8_e4m3fn" | "float8_e5m2":
            return Float8Values(FLOAT8[dtype])
        case "complex64":
            return Complex(_F32, 4)
        case "complex128":
            return Complex(_F64, 8)
    return Integer(itemsize, signed=dtype.startswith("int"))


def _splat(kind: Any, width: int, value: float) -> Any:
    return ir.Constant(ir.VectorType(kind, width), [kind(value)] * width)


class Element:
    """Vectors of one type."""

    size: int
    """Bytes in memory."""
    wide_size: int
    """Bytes in a register while being combined."""
    kind: Any

    def stored(self, width: int) -> Any:
        """Return the type of a vector in memory."""
        return ir.VectorType(self.kind, width)

    def unroll(self, num_srcs: int) -> int:
        """Return how many vectors to have in flight from every source."""
        return 4 if num_srcs <= 3 else 2 if num_srcs <= 6 else 1

    def combine(self, at: Any, op: Operator, parts: Sequence[Any], width: int) -> Any:
        """Return the parts combined left to right."""
        total = parts[0]
        for part in parts[1:]:
            total = self.both(at, op, total, part, width)
        return total

    def both(self, at: Any, op: Operator, a: Any, b: Any, width: int) -> Any:
        """Return two vectors combined."""
        raise NotImplementedError

    def divide(self, at: Any, total: Any, by: int, width: int) -> Any:
        """Return a finished sum divided."""
        raise NotImplementedError


class Integer(Element):
    """Integers that wrap."""

    def __init__(self, size: int, *, signed: bool) -> None:
        """Choose the size in bytes."""
        self.size = self.wide_size = size
        self.signed = signed
        self.kind = ir.IntType(8 * size)

    def both(self, at: Any, op: Operator, a: Any, b: Any, width: int) -> Any:
        """Return two vectors combined."""
        compare = at.icmp_signed if self.signed else at.icmp_unsigned
        match op:
            case Operator.SUM:
                return at.add(a, b)
            case Operator.PROD:
                return at.mul(a, b)
            case Operator.MIN:
                return at.select(compare("<", a, b), a, b)
            case Operator.MAX:
                return at.select(compare(">", a, b), a, b)
            case Operator.BAND:
                return at.and_(a, b)
            case Operator.BOR:
                return at.or_(a, b)
            case Operator.BXOR:
                return at.xor(a, b)
        raise AssertionError(f"{op} of integers: elements.check refuses it")


class Boolean(Integer):
    """Truth values: one byte, 0 or 1."""

    def both(self, at: Any, op: Operator, a: Any, b: Any, width: int) -> Any:
        """Return two vectors combined."""
        return super().both(at, _LOGIC.get(op, op), a, b, width)


class Float(Element):
    """IEEE numbers that are combined as they are stored."""

    def __init__(self, kind: Any, size: int) -> None:
        """Choose the type."""
        self.kind = self.wide = kind
        self.size = self.wide_size = size

    def both(self, at: Any, op: Operator, a: Any, b: Any, width: int) -> Any:
        """Return two vectors combined."""
        match op:
            case Operator.SUM | Operator.AVG:
                return at.fadd(a, b)
            case Operator.PROD:
                return at.fmul(a, b)
            case Operator.MIN:
                first = at.fcmp_ordered("<", a, b)
            case Operator.MAX:
                first = at.fcmp_ordered(">", a, b)
            case _:
                raise AssertionError(f"{op} of floats: elements.check refuses it")
        nan = at.fcmp_unordered("uno", a, a)
        return at.select(at.or_(first, nan), a, b)

    def divide(self, at: Any, total: Any, by: int, width: int) -> Any:
        """Return a finished sum divided."""
        return at.fdiv(total, _splat(self.wide, width, by))


class _Narrow(Float):
    """Numbers of 8 and 16 bits that are combined as float32."""

    def __init__(self, size: int = 2) -> None:
        super().__init__(_F32, 4)
        self.size = size

    def combine(self, at: Any, op: Operator, parts: Sequence[Any], width: int) -> Any:
        """Return the parts combined left to right and rounded once."""
        if len(parts) == 1:
            return parts[0]
        wide = [self.widen(at, part, width) for part in parts]
        return self.narrow(at, super().combine(at, op, wide, width), width)

    def divide(self, at: Any, total: Any, by: int, width: int) -> Any:
        """Return a finished sum divided and rounded."""
        wide = self.widen(at, total, width)
        return self.narrow(at, super().divide(at, wide, by, width), width)

    def widen(self, at: Any, part: Any, width: int) -> Any:
        """Return stored values as float32."""
        raise NotImplementedError

    def narrow(self, at: Any, wide: Any, width: int) -> Any:
        """Return float32 rounded to nearest even."""
        raise NotImplementedError


class Half(_Narrow):
    """float16; the processor converts."""

    def stored(self, width: int) -> Any:
        """Return the type of a vector in memory."""
        return ir.VectorType(_HALF, width)

    def widen(self, at: Any, part: Any, width: int) -> Any:
        """Return stored values as float32."""
        return at.fpext(part, ir.VectorType(_F32, width))

    def narrow(self, at: Any, wide: Any, width: int) -> Any:
        """Return float32 rounded to nearest even."""
        return at.fptrunc(wide, ir.VectorType(_HALF, width))


class BFloat(_Narrow):
    """bfloat16: the upper half of a float32, by integer arithmetic."""

    def stored(self, width: int) -> Any:
        """Return the type of a vector in memory."""
        return ir.VectorType(ir.IntType(16), width)

    def widen(self, at: Any, part: Any, width: int) -> Any:
        """Return stored values as float32."""
        word = ir.IntType(32)
        bits = at.zext(part, ir.VectorType(word, width))
        shifted = at.shl(bits, _splat(word, width, 16))
        return at.bitcast(shifted, ir.VectorType(_F32, width))

    def narrow(self, at: Any, wide: Any, width: int) -> Any:
        """Return float32 rounded to nearest even; NaN stays NaN."""
        word = ir.IntType(32)
        bits = at.bitcast(wide, ir.VectorType(word, width))
        high = at.lshr(bits, _splat(word, width, 16))
        odd = at.and_(high, _splat(word, width, 1))
        up = at.add(at.add(bits, _splat(word, width, 0x7FFF)), odd)
        rounded = at.lshr(up, _splat(word, width, 16))
        quiet = at.or_(high, _splat(word, width, 0x40))
        nan = at.fcmp_unordered("uno", wide, wide)
        result = at.select(nan, quiet, rounded)
        return at.trunc(result, ir.VectorType(ir.IntType(16), width))


class Float8Values(_Narrow):
    """8-bit floats, by integer arithmetic: see `stretto.program.elements.float8`."""

    def __init__(self, form: Format) -> None:
        """Choose the format."""
        super().__init__(1)
        self.form = form

    def stored(self, width: int) -> Any:
        """Return the type of a vector in memory."""
        return ir.VectorType(ir.IntType(8), width)

    def widen(self, at: Any, part: Any, width: int) -> Any:
        """Return stored values as float32."""
        form, word = self.form, ir.IntType(32)
        lanes, floats = ir.VectorType(word, width), ir.VectorType(_F32, width)
        bits = at.zext(part, lanes)
        size = at.and_(bits, _splat(word, width, 0x7F))
        moved = at.shl(size, _splat(word, width, 23 - form.mantissa))
        scale = _splat(_F32, width, 2.0 ** (127 - form.bias))
        value = at.bitcast(at.fmul(at.bitcast(moved, floats), scale), lanes)
        last = _splat(word, width, form.most)  # what is larger is NaN
        value = at.select(
            at.icmp_unsigned(">", size, last),
            _splat(word, width, 0x7FC00000),
            self._with_infinity(at, size, value, width),
        )
        sign = at.and_(bits, _splat(word, width, 0x80))
        sign = at.shl(sign, _splat(word, width, 24))
        return at.bitcast(at.or_(value, sign), floats)

    def _with_infinity(self, at: Any, size: Any, value: Any, width: int) -> Any:
        word = ir.IntType(32)
        if self.form.most & (1 << self.form.mantissa) - 1:
            return value  # e4m3fn: the largest is a number
        is_it = at.icmp_unsigned("==", size, _splat(word, width, self.form.most))
        return at.select(is_it, _splat(word, width, 0x7F800000), value)

    def narrow(self, at: Any, wide: Any, width: int) -> Any:
        """Return float32 rounded to nearest even; NaN stays NaN."""
        form, word = self.form, ir.IntType(32)
        lanes, floats = ir.VectorType(word, width), ir.VectorType(_F32, width)

        def all_of(value: int) -> Any:
            return _splat(word, width, value)

        bits = at.bitcast(wide, lanes)
        size = at.and_(bits, all_of(0x7FFFFFFF))
        shift = 23 - form.mantissa
        magic = all_of((128 - form.bias + shift) << 23)
        lifted = at.fadd(at.bitcast(size, floats), at.bitcast(magic, floats))
        tiny = at.sub(at.bitcast(lifted, lanes), magic)
        odd = at.and_(at.lshr(size, all_of(shift)), all_of(1))
        half = all_of((1 << (shift - 1)) - 1 - ((127 - form.bias) << 23) & 0xFFFFFFFF)
        normal = at.lshr(at.add(at.add(size, half), odd), all_of(shift))
        small = at.icmp_unsigned("<", size, all_of(form.least))
        result = at.select(small, tiny, normal)
        large = at.icmp_unsigned(">", size, all_of(form.overflow))
        result = at.select(large, all_of(form.most), result)
        nan = at.icmp_unsigned(">", size, all_of(0x7F800000))
        result = at.select(nan, all_of(0x7F), result)
        sign = at.shl(at.lshr(bits, all_of(31)), all_of(7))
        return at.trunc(at.or_(result, sign), ir.VectorType(ir.IntType(8), width))


class Complex(Float):
    """Complex numbers: real and imaginary parts in turn."""

    def __init__(self, kind: Any, size: int) -> None:
        """Choose the type of the parts."""
        super().__init__(kind, size)
        self.size = self.wide_size = 2 * size

    def stored(self, width: int) -> Any:
        """Return the type of a vector in memory."""
        return ir.VectorType(self.kind, 2 * width)

    def both(self, at: Any, op: Operator, a: Any, b: Any, width: int) -> Any:
        """Return two vectors combined."""
        if op is not Operator.PROD:
            return super().both(at, op, a, b, width)
        ar, ai, br, bi = (
            self._every(at, v, n, width) for v in (a, b) for n in range(2)
        )
        real = at.fsub(at.fmul(ar, br), at.fmul(ai, bi))
        imaginary = at.fadd(at.fmul(ar, bi), at.fmul(ai, br))
        return self._shuffle(at, real, imaginary, _zipped(width))

    def divide(self, at: Any, total: Any, by: int, width: int) -> Any:
        """Return a finished sum divided, with the rounding of NumPy.

        NumPy divides by `by + 0i` as Smith does: it adds 0 times the other part, and
        multiplies by the reciprocal.
        """
        real, imaginary = (self._every(at, total, n, width) for n in range(2))
        zero = _splat(self.kind, width, 0.0)
        scale = at.fdiv(_splat(self.kind, width, 1), _splat(self.kind, width, by))
        a = at.fmul(at.fadd(real, at.fmul(imaginary, zero)), scale)
        b = at.fmul(at.fsub(imaginary, at.fmul(real, zero)), scale)
        return self._shuffle(at, a, b, _zipped(width))

    def _every(self, at: Any, vector: Any, first: int, width: int) -> Any:
        lanes = [first + 2 * i for i in range(width)]
        return self._shuffle(at, vector, vector, lanes)

    def _shuffle(self, at: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
        return at.shuffle_vector(a, b, mask)

    def unroll(self, num_srcs: int) -> int:
        """Return how many vectors to have in flight from every source."""
        return 2 if num_srcs <= 3 else 1


def _zipped(width: int) -> list[int]:
    return [lane for i in range(width) for lane in (i, width + i)]
