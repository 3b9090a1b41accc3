"""What an epilogue means, in NumPy: the oracle, and how CPUs apply it.

Sums have an order of their own, which GPUs keep: the elements of 16 bytes from left to
right, then neighbours in pairs, pairs of pairs, and so on, with zeros at the end. So a
row's result depends on nothing but the row: not on threads, blocks or other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.program.collectives import narrow, widen
from stretto.program.epilogues.expr import Node
from stretto.program.epilogues.spec import Spec, ValueForm

Floats = NDArray[np.float32]

_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "exp": np.exp,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "where": np.where,
}


def evaluate(spec: Spec, result: NDArray[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs as flat arrays in storage types; arrays are flat too."""
    count = result.size
    row = spec.row or count
    if not count:
        return [narrow(np.zeros(0, np.float32), n.dtype) for n in spec.outputs]
    known: dict[str, Any] = {
        spec.graph.inputs[0]: widen(result, spec.dtype).reshape(-1, row)
    }
    shapes = {
        ValueForm.ELEMENT: (-1, row),
        ValueForm.ROW: (1, -1),
        ValueForm.COLUMN: (-1, 1),
        ValueForm.SCALAR: (1, 1),
    }
    for named, given in zip(spec.inputs, inputs, strict=True):
        if named.dtype:
            wide = widen(np.asarray(given), named.dtype)
        else:
            wide = np.array([given], np.float32)
        known[named.name] = wide.astype(np.float32).reshape(shapes[named.form])
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for node in spec.graph.nodes:
            values.append(_value(spec, node, known, [values[a] for a in node.args]))
    rows = count // row
    made = []
    for (_, at), out in zip(spec.graph.outputs, spec.outputs, strict=True):
        shape = (rows, row if out.form is ValueForm.ELEMENT else 1)
        whole = np.broadcast_to(values[at], shape).reshape(-1)
        made.append(narrow(np.ascontiguousarray(whole), out.dtype))
    return made


def _value(spec: Spec, node: Node, known: dict[str, Any], args: list[Any]) -> Any:
    match node.op:
        case "input":
            return known[str(node.value)]
        case "number":
            return np.full((1, 1), node.value, np.float32)
        case "length":
            return np.full((1, 1), spec.row, np.float32)
        case "cast":
            dtype = str(node.value)
            rounded = widen(narrow(args[0], dtype), dtype)
            return rounded.astype(np.float32).reshape(args[0].shape)
        case "row_sum":
            return row_tree(np.add, args[0], spec.cell, 0.0) + np.float32(0)
        case "row_max":
            return row_tree(np.maximum, args[0], spec.cell, -np.inf)
    return _UFUNCS[node.op](*args)


def row_tree(ufunc: np.ufunc, values: Floats, cell: int, nothing: float) -> Floats:
    """Return the rows combined, shape (rows, 1), in the order said above."""
    rows, row = values.shape
    leaves = 1 << (-(-row // cell) - 1).bit_length()
    padded = np.full((rows, leaves * cell), nothing, np.float32)
    padded[:, :row] = values
    parts = padded.reshape(rows, leaves, cell)
    total = parts[:, :, 0]
    for k in range(1, cell):
        total = ufunc(total, parts[:, :, k])
    while total.shape[1] > 1:
        total = ufunc(total[:, 0::2], total[:, 1::2])
    return total
