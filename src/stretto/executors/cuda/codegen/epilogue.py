"""The structure that a kernel gets for its epilogue (kernels/epilogue.cuh uses it).

Nodes of the graph become constants, by where they are the same: of a row (or of
everything), computed once a row and kept in `Values`; of an element, computed where a
reduction or an output needs them. Legend: v<i> is node i; k an element of a cell.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stretto.arrays import pointer
from stretto.compiler.plan import Plan
from stretto.errors import CallError
from stretto.executors.cuda.codegen.elements import ELEMENTS
from stretto.executors.cuda.codegen.operands import Operands
from stretto.executors.cuda.codegen.rowwise import HeldRows, results
from stretto.program.epilogues import REDUCTIONS, Named, Spec, ValueForm

MAX_ROW_CELLS = 16 << 10
"""Cells of a row: what a block's shared memory and registers are made for."""
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
_CALLS = {
    "neg": "-{0}",
    "abs": "as_float(as_bits({0}) & 0x7fffffffu)",
    "minimum": "Min::apply({0}, {1})",
    "maximum": "Max::apply({0}, {1})",
    "exp": "expf({0})",
    "tanh": "tanhf({0})",
    "sqrt": "sqrtf({0})",
    "where": "{0} ? {1} : {2}",
}
_REDUCTIONS = {"row_sum": "RowSum", "row_max": "RowMax"}


def structure(spec: Spec, share: int, held: HeldRows, close: bool) -> str:
    """Return the text of `struct Epilogue`.

    `share` blocks have each row together, in a cluster when they are `close` (0: blocks
    have several rows); `held` says what is kept as it comes.
    """
    if spec.row > MAX_ROW_CELLS * spec.cell:
        raise CallError(
            f"epilogue: rows of {spec.row} {spec.dtype}; a block takes rows of up to "
            f"{MAX_ROW_CELLS * spec.cell}: say row= when the last axis is not the row"
        )
    return "\n".join(_Writer(spec, share, held, close).lines()) + "\n"


def conclusion(
    spec: Spec, plan: Plan, rank: int, operands: Operands, held: HeldRows
) -> tuple[list[str], list[str]]:
    """Return what a rank's steps have before they wait, and at their end."""
    named = [*spec.inputs, *spec.outputs]
    given = [f"me.p.output[{rank}]"]
    aligned = list(given)
    for nth, one in enumerate(named):
        word = f"at.{operands.word('extra', nth)}"
        if one.dtype:
            given.append(f"static_cast<u64>({word})")
            aligned.append(given[-1])
        else:
            given.append(f"as_float(static_cast<u32>({word}))")
    lines = [
        "  // of the rows that this block completes",
        f"  const bool aligned = ({' | '.join(aligned)}) % 16 == 0;",
        f"  const Epilogue::Args given = {{{', '.join([*given, 'aligned'])}}};",
    ]
    spans, turns = [], []
    for position, atom in results(plan, rank):
        size = operands.word("size", atom)
        first = operands.word("output", rank, position)
        spans.append(f"span(me, me.slice(at.{size}, t, 0), at.{first})")
        turns.append(str(operands.turn(atom)))
    each = ",\n      ".join(spans)
    if not held.rows:
        return [], [*lines, f"  conclude<Epilogue>(me, t, given,\n      {each});"]
    lines += [
        f"  const Span spans[] = {{\n      {each}}};",
        f"  const u32 turns[] = {{{', '.join(turns)}}};",
        f"  Held<Epilogue, Lane<R{rank}L0>> rows(me, given, spans, turns);",
    ]
    return lines, []


def words_of(spec: Spec) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """Return what makes a launch's words of its arrays: addresses, bits of numbers."""
    named = [*spec.inputs, *spec.outputs]
    by_cells = spec.row > 0 and spec.row % spec.cell == 0
    streamed = ValueForm.ELEMENT, ValueForm.ROW
    looks = [(one, not one.dtype, by_cells and one.form in streamed) for one in named]

    def words(given: Sequence[Any]) -> tuple[int, ...]:
        found: list[int] = []
        for one, (name, is_number, whole) in zip(given, looks, strict=True):
            if is_number:
                found.append(_known_bits(one) if one else _bits(one))  # 0 is not -0
                continue
            at = one if type(one) is int else pointer(one)
            if whole and at % 16:
                raise CallError(
                    f"epilogue: {name.name} begins {at % 16} bytes after a multiple of "
                    "16, and rows are moved by 16 bytes; pass a copy (tensor.clone())"
                )
            found.append(at)
        return tuple(found)

    return words


def _bits(number: Any) -> int:
    """Return the bits of a number in float32."""
    try:
        packed = _FLOAT.pack(number)
    except OverflowError:
        packed = _FLOAT.pack(math.copysign(math.inf, number))
    bits: int = _WORD.unpack(packed)[0]
    return bits


_known_bits = functools.lru_cache(maxsize=256)(_bits)
_FLOAT, _WORD = struct.Struct("f"), struct.Struct("I")


class _Writer:
    """Writes one epilogue."""

    def __init__(self, spec: Spec, share: int, held: HeldRows, close: bool) -> None:
        self.spec, self.share, self.held, self.close = spec, share, held, close
        self.nodes = spec.graph.nodes
        self.given = _spelled(spec.graph.inputs)
        self.made = _spelled([o.name for o in spec.outputs])
        self.reductions = [i for i, n in enumerate(self.nodes) if n.op in REDUCTIONS]
        self.streams = [
            (f"in_{self.given[spec.graph.inputs[0]]}", spec.dtype, ValueForm.ELEMENT),
            *(
                (f"in_{self.given[n.name]}", n.dtype, n.form)
                for n in spec.inputs
                if n.form in (ValueForm.ELEMENT, ValueForm.ROW)
            ),
        ]
        self.stages = self._stages()

    def _stages(self) -> list[int]:
        """Return after how many reductions each node is known."""
        found: list[int] = []
        for i, node in enumerate(self.nodes):
            known = max((found[a] for a in node.args), default=0)
            if i in self.reductions:
                known = max(known, self.reductions.index(i)) + 1
            found.append(known)
        return found

    def lines(self) -> Iterator[str]:
        """Yield the structure."""
        spec = self.spec
        for line in str(spec).splitlines():
            yield f"// {line}"
        yield "struct Epilogue {"
        yield f"  static constexpr u32 row = {spec.row}, cell = {spec.cell};"
        yield f"  static constexpr u32 share = {self.share or 1};  // blocks to a row"
        yield f"  static constexpr bool near = {str(self.close).lower()};  // a cluster"
        yield f"  static constexpr u32 held = {self.held.rows};  // rows in registers"
        yield f"  static constexpr u32 slots = {self.held.slots};  // rows by warps"
        yield f"  static constexpr u32 reductions = {len(self.reductions)};"
        yield from self._args()
        yield from self._cell()
        kept = [i for i in range(len(self.nodes)) if self._is_kept(i)]
        yield "  struct Values {  // of a row"
        yield from (f"    {self._type(i)} v{i};" for i in kept)
        yield "    u32 nothing;\n  };"
        yield from self._begin()
        for nth in range(len(self.reductions)):
            yield from self._reduction(nth)
        if self.reductions:
            names = ", ".join(f"Reduce{n}" for n in range(len(self.reductions)))
            yield "  template <u32 I>"
            yield f"  using Reduce = typename Nth<I, {names}>::type;"
        yield from self._store()
        yield "};\n"

    def _args(self) -> Iterator[str]:
        yield "  struct Args {"
        yield "    u64 result;"
        for named in self.spec.inputs:
            kind = "u64" if named.dtype else "float"
            yield f"    {kind} in_{self.given[named.name]};"
        for named in self.spec.outputs:
            yield f"    u64 out_{self.made[named.name]};"
        yield "    bool aligned;  // all of them, to 16 bytes\n  };"

    def _cell(self) -> Iterator[str]:
        names = [name for name, _, _ in self.streams]
        yield f"  struct Floats {{\n    float {', '.join(f'{n}[cell]' for n in names)};"
        yield "  };\n  struct Cell {"
        for name, dtype, _ in self.streams:
            yield f"    Words<{ELEMENTS[dtype]}, cell> {name};"
        result = names[0]
        yield "    __device__ void load_given(const Args& at, const Span& row,"
        yield "                               u32 column, u32 n, bool whole) {"
        for name, _, form in self.streams[1:]:
            if form is ValueForm.ELEMENT:
                yield f"      {name}.load(at.{name}, row.element + column, n, whole);"
        yield "    }\n    __device__ void load_along(const Args& at, u32 column, u32 n,"
        yield "                               bool whole) {"
        for name, _, form in self.streams[1:]:
            if form is ValueForm.ROW:
                yield f"      {name}.load(at.{name}, column, n, whole);"
        yield "    }\n    template <bool SHARED>"
        yield "    __device__ void load(const Args& at, const Span& row, u32 column,"
        yield "                         u32 n, bool whole) {"
        yield f"      {result}.template load<SHARED>("
        yield "          at.result, row.element + column, n, whole);"
        yield "      load_given(at, row, column, n, whole);"
        yield "      load_along(at, column, n, whole);"
        yield "    }\n    __device__ void store_result(const Args& at, const Span& row,"
        yield "                                 u32 column) const {"
        yield f"      {result}.store(at.result, row.element + column, cell, true);"
        yield "    }\n    __device__ void hold(Vec v) {"
        yield f"      {result}.of[0] = v.x, {result}.of[1] = v.y;"
        yield f"      {result}.of[2] = v.z, {result}.of[3] = v.w;"
        yield "    }\n    __device__ Floats widen() const {\n      Floats f;"
        yield from (f"      {name}.widen(f.{name});" for name in names)
        yield "      return f;\n    }\n  };"

    def _begin(self) -> Iterator[str]:
        yield "  __device__ static Values begin(const Args& at, const Span& row) {"
        yield "    Values v = {};"
        for i in range(len(self.nodes)):
            if self._is_kept(i) and self.stages[i] == 0:
                yield f"    v.v{i} = {self._formula(i)};"
        yield "    return v;\n  }"

    def _reduction(self, nth: int) -> Iterator[str]:
        at = self.reductions[nth]
        node = self.nodes[at]
        yield f"  struct Reduce{nth} {{  // v{at} = {node}"
        yield f"    using R = {_REDUCTIONS[node.op]};"
        yield "    __device__ static float of(const Values& v, const Floats& f,"
        yield "                               u32 k) {"
        yield from self._element(node.args)
        yield f"      return {self._operand(node.args[0])};\n    }}"
        yield "    __device__ static void settle(Values& v, float total) {"
        plus = " + 0.0f" if node.op == "row_sum" else ""
        yield f"      v.v{at} = total{plus};"
        for i in range(len(self.nodes)):
            if i != at and self._is_kept(i) and self.stages[i] == nth + 1:
                yield f"      v.v{i} = {self._formula(i)};"
        yield "    }\n  };"

    def _store(self) -> Iterator[str]:
        outputs = [
            (named, node)
            for named, (_, node) in zip(
                self.spec.outputs, self.spec.graph.outputs, strict=True
            )
        ]
        whole = [(o, n) for o, n in outputs if o.form is ValueForm.ELEMENT]
        first = [(o, n) for o, n in whole if not self.stages[n]]
        yield from self._store_elements("store_first", first)
        yield from self._store_elements("store", [p for p in whole if p not in first])
        yield "  __device__ static void store_row(const Args& at, const Span& row,"
        yield "                                   const Values& v) {"
        for named, node in outputs:
            if named.form is ValueForm.COLUMN:
                kind = ELEMENTS[named.dtype]
                place = f"at.out_{self.made[named.name]}, row.element / row_length"
                yield f"    store_one<{kind}>({place}, {self._operand(node)});"
        yield "  }\n  static constexpr u32 row_length = row > 0 ? row : 1;"

    def _store_elements(
        self, name: str, whole: Sequence[tuple[Named, int]]
    ) -> Iterator[str]:
        """Yield what stores a cell of some outputs, all that are given."""
        yield f"  __device__ static void {name}(const Args& at, const Span& row,"
        yield "                               u32 column, u32 n, bool whole,"
        yield "                               const Values& v, const Floats& f) {"
        if whole:
            names = ", ".join(f"out_{self.made[o.name]}[cell]" for o, _ in whole)
            yield f"    float {names};\n#pragma unroll"
            yield "    for (u32 k = 0; k < cell; ++k) {"
            yield from self._element([self._unrounded(n) for _, n in whole])
            for named, node in whole:
                value = self._operand(self._unrounded(node))
                yield f"      out_{self.made[named.name]}[k] = {value};"
            yield "    }"
        for named, _ in whole:
            words = f"Words<{ELEMENTS[named.dtype]}, cell>"
            place = f"at.out_{self.made[named.name]}, row.element + column"
            yield f"    {words}::rounded(out_{self.made[named.name]})"
            yield f"        .store({place}, n, whole);"
        yield "  }"

    def _element(self, roots: Sequence[int]) -> Iterator[str]:
        """Yield what must be computed of an element for some nodes, in order."""
        needed: set[int] = set()
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i not in needed and self._varies(i):
                needed.add(i)
                stack += self.nodes[i].args
        for i in sorted(needed):
            yield f"      const {self._type(i)} v{i} = {self._formula(i)};"

    def _unrounded(self, i: int) -> int:
        """Return what an output is before its last cast: it is rounded when stored."""
        node = self.nodes[i]
        return node.args[0] if node.op == "cast" else i

    def _varies(self, i: int) -> bool:
        return self.spec.forms[i] in (ValueForm.ELEMENT, ValueForm.ROW)

    def _is_kept(self, i: int) -> bool:
        return not self._varies(i) and self.nodes[i].op not in ("number", "length")

    def _type(self, i: int) -> str:
        return "bool" if self.nodes[i].op in ("lt", "le", "gt", "ge") else "float"

    def _operand(self, i: int) -> str:
        node = self.nodes[i]
        if node.op == "number":
            return _literal(float(node.value or 0))
        if node.op == "length":
            return _literal(self.spec.row)
        return f"v{i}" if self._varies(i) else f"v.v{i}"

    def _formula(self, i: int) -> str:
        node = self.nodes[i]
        if node.op == "input":
            return self._input(str(node.value))
        args = [self._operand(a) for a in node.args]
        if node.op in _INFIX:
            return f"{args[0]} {_INFIX[node.op]} {args[1]}"
        if node.op == "cast":
            dtype = str(node.value)
            if dtype == "float32":
                return args[0]
            return f"round_as<{ELEMENTS[dtype]}>({args[0]})"
        return _CALLS[node.op].format(*args)

    def _input(self, name: str) -> str:
        word = f"in_{self.given[name]}"
        if name == self.spec.graph.inputs[0]:
            return f"f.{word}[k]"
        named = next(n for n in self.spec.inputs if n.name == name)
        if named.form in (ValueForm.ELEMENT, ValueForm.ROW):
            return f"f.{word}[k]"
        if not named.dtype:
            return f"at.{word}"
        place = "row.element / row_length" if named.form is ValueForm.COLUMN else "0"
        return f"load_one<{ELEMENTS[named.dtype]}>(at.{word}, {place})"


def _spelled(names: Sequence[str]) -> dict[str, str]:
    """Return names as kernels have them: of other letters than ASCII, numbers."""
    return {n: n if n.isascii() else str(nth) for nth, n in enumerate(names)}


def _literal(value: float) -> str:
    """Return a number as C++ reads it back, to the bit."""
    single = np.float32(value)
    if not math.isfinite(single) or single == 0:  # dividing by 0.0f is a warning
        return f"as_float({single.view(np.uint32):#010x}u)"
    return f"{single!s}f"
