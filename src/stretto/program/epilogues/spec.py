"""What a kernel of an epilogue is made for: a graph, and what each name stands for.

Results are seen as rows. An input varies with the element, with its place in the row
(a weight), with the row (a scale), or not at all; so does every node of the graph.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stretto.errors import CallError
from stretto.program.collectives import storage
from stretto.program.epilogues.expr import REDUCTIONS, Graph


class ValueForm(enum.Enum):
    """How a value varies over (rows, row)."""

    ELEMENT = "element"
    ROW = "row"
    """One for every place in a row, the same in all rows: shape (row,)."""
    COLUMN = "column"
    """One for every row: shape (..., 1)."""
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class Named:
    """An array (or number) of an epilogue."""

    name: str
    dtype: str
    """Empty: a number, passed by value."""
    form: ValueForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """An epilogue of one kind of call: hashable, the same on every rank."""

    graph: Graph
    dtype: str
    """Of the collective's result."""
    row: int
    """Elements of a row; 0 when the graph knows no rows."""
    inputs: tuple[Named, ...]
    """All but the result, in the function's order."""
    outputs: tuple[Named, ...]
    forms: tuple[ValueForm, ...]
    """Of every node."""

    @property
    def cell(self) -> int:
        """Return how many elements of the result are 16 bytes: sums begin with them."""
        return 16 // storage(self.dtype).itemsize

    def parts(self, most: int) -> int:
        """Return into how many equal parts a row can be cut, so many at most.

        Parts are whole groups of 32 cells, so that sums of each are part of the row's.
        """
        groups, rest = divmod(self.row, 32 * self.cell)
        if rest or not groups:
            return 1
        return max(n for n in range(1, max(1, most) + 1) if groups % n == 0)

    def __str__(self) -> str:
        """Return the text that is its identity."""
        named = [f"{n.name}:{n.dtype or 'number'}:{n.form.value}" for n in self.inputs]
        out = [f"{n.name}:{n.dtype}:{n.form.value}" for n in self.outputs]
        head = f"{self.dtype} row={self.row} ({' '.join(named)}) -> {' '.join(out)}"
        return f"{head}\n{self.graph}"


def form_of(
    name: str, shape: Sequence[int], result: Sequence[int], row: int
) -> ValueForm:
    """Return how an input of that shape meets a result: by NumPy's broadcasting."""
    shape, result = tuple(shape), tuple(result)
    size = 1
    for n in result:
        size *= n
    rows = size // row if row else 0
    short = shape
    while short and short[0] == 1:
        short = short[1:]
    if shape in (result, (rows, row)):
        return ValueForm.ELEMENT
    if not short:
        return ValueForm.SCALAR
    if short == (row,):
        return ValueForm.ROW
    if shape in ((*result[:-1], 1), (rows, 1)):
        return ValueForm.COLUMN
    raise CallError(
        f"epilogue: {name} has shape {shape}, the result {result} with rows of {row}; "
        f"want {result}, ({row},) for one row, ({rows}, 1) for one value a row, or ()"
    )


def resolve(graph: Graph, inputs: Mapping[str, Named], *, dtype: str, row: int) -> Spec:
    """Return what a graph is for inputs of such types and forms."""
    forms = tuple(_forms(graph, inputs))
    outputs = []
    for name, at in graph.outputs:
        node, form = graph.nodes[at], forms[at]
        if form in (ValueForm.ROW, ValueForm.SCALAR):
            raise CallError(
                f"epilogue: output {name!r} does not depend on {graph.inputs[0]}; want "
                "a value of every element, or of every row"
            )
        kind = str(node.value) if node.op == "cast" else dtype
        outputs.append(Named(name, kind, form))
    rowed = any(f in (ValueForm.ROW, ValueForm.COLUMN) for f in forms)
    return Spec(
        graph=graph,
        dtype=dtype,
        row=row if rowed else 0,
        inputs=tuple(inputs[name] for name in graph.inputs[1:]),
        outputs=tuple(outputs),
        forms=forms,
    )


def _forms(graph: Graph, inputs: Mapping[str, Named]) -> Iterator[ValueForm]:
    found: list[ValueForm] = []
    for node in graph.nodes:
        args = [found[a] for a in node.args]
        if node.op == "input":
            name = str(node.value)
            first = name == graph.inputs[0]
            form = ValueForm.ELEMENT if first else inputs[name].form
        elif node.op in REDUCTIONS:
            if args[0] in (ValueForm.COLUMN, ValueForm.SCALAR):
                raise CallError(
                    f"epilogue: {node.op} of a value that is the same all along a row; "
                    "want one that varies within it"
                )
            form = (
                ValueForm.COLUMN if args[0] is ValueForm.ELEMENT else ValueForm.SCALAR
            )
            if form is ValueForm.SCALAR:
                raise CallError(
                    f"epilogue: {node.op} of a weight, the same for all rows; compute "
                    "it before the call and pass it as a number"
                )
        elif not args:
            form = ValueForm.SCALAR
        else:
            down = any(f in (ValueForm.ELEMENT, ValueForm.COLUMN) for f in args)
            along = any(f in (ValueForm.ELEMENT, ValueForm.ROW) for f in args)
            form = (
                (ValueForm.ELEMENT if along else ValueForm.COLUMN)
                if down
                else (ValueForm.ROW if along else ValueForm.SCALAR)
            )
        found.append(form)
        yield form
