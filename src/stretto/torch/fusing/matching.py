"""RMSNorm after an all_reduce in a graph of ATen: found by its meaning, node by node.

    s = residual + all_reduce(x)        or all_reduce(x) alone
    out = s * rsqrt(mean(s * s) + eps) * weight

Views and copies may lie between, and conversions that lose nothing: to a type that
holds every value of the one before. The norm must be computed in float32 at least, as
the fused operator does; only its result may be rounded, to the type of `s`. Any other
conversion, say to 8 bits and back, is a part of the model, and the norm stays as it is.
All that is not `s` or `out` must serve nothing else: then it can go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
_CONVERTS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
_VIEWS = (
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    aten.unsqueeze.default,
)
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
"""What a norm is computed in: squares of narrower types overflow, or are rounded."""
_HOLDS = {
    torch.bfloat16: {torch.bfloat16, *_WIDE},
    torch.float16: {torch.float16, *_WIDE},
    torch.float32: set(_WIDE),
    torch.float64: {torch.float64},
}
"""The types that hold every value of a type; integers and 8 bits are none of a norm."""
_ADDS = (aten.add.Tensor,)
_REDUCED = (c10d.wait_tensor.default, torch.ops.stretto.all_reduce.default)
_FUSED = getattr(aten, "_fused_rms_norm", None)
FUSED_NORM = None if _FUSED is None else _FUSED.default


class Unknown(Exception):
    """A norm that is left alone; says why."""


@dataclass
class FusedMatch:
    """One occurrence: what the fused operator takes, and what it replaces."""

    x: Node
    residual: Node | None
    weight: Node | None
    eps: float
    group: str
    total: Node
    """The sum that is normed: the second output."""
    out: Node
    views: list[Node]
    """How `x` is looked at before the sum, from the inside."""
    later: list[Node]
    """How the sum is looked at before the norm, from the inside."""
    gone: list[Node] = field(default_factory=list)
    """Nodes that serve nothing afterwards."""


def norms_of(graph: torch.fx.Graph) -> list[Node]:
    """Return the nodes that may be the root of a mean square, or a whole norm."""
    targets = {aten.rsqrt.default} | ({FUSED_NORM} if FUSED_NORM else set())
    return [n for n in graph.nodes if n.op == "call_function" and n.target in targets]


def find_norm(root: Node) -> FusedMatch | None:
    """Return the all_reduce and norm that a node belongs to; None: it is no such thing.

    Raises:
        Unknown: It is one that cannot be replaced.
    """
    seen = _whole(root) if root.target is FUSED_NORM else _written_out(root)
    if seen is None:
        return None
    normed, eps, weight, out, gone = seen
    if not _shape(normed):
        return None
    later: list[Node] = []
    total = normed
    while _views(total) and _dtype(total) == _dtype(total.args[0]):
        later.insert(0, total)
        total = _node(total.args[0])
    sides = [total]
    if total.target is aten.add.Tensor and not total.kwargs:
        sides = [a for a in total.args if isinstance(a, Node)]
    for side in reversed(sides):
        reduced = _reduced(side, is_sum=side is total)
        if reduced is None:
            continue
        x, group, views, used = reduced
        others = [a for a in sides if a is not side]
        _check(x, total, side, others, weight, out)
        if views and not _value(x).is_contiguous():
            raise Unknown("what is reduced is strided, and its sum is seen otherwise")
        gone = [*gone, *([] if side is total else [total]), *used]
        residual = others[0] if others else None
        return FusedMatch(
            x, residual, weight, eps, group, total, out, views, later, gone
        )
    _explain(sides)
    return None


def _check(
    x: Node,
    total: Node,
    side: Node,
    others: list[Node],
    weight: Node | None,
    out: Node,
) -> None:
    """Refuse types and shapes that the fused operator does not take."""
    dtype = _dtype(x)
    if dtype not in _TYPES:
        raise Unknown(f"the norm of {dtype}; want one of {', '.join(map(str, _TYPES))}")
    if total is not side and len(others) != 1:
        raise Unknown("a sum with a number; want one of two tensors")
    for one in (total, out, *others):
        if _dtype(one) != dtype:
            raise Unknown(
                f"{one.name} is of {_dtype(one)}, the all_reduce of {dtype}; want one"
            )
    if any(leading_ones(one, total) is None for one in (*others, side)):
        raise Unknown("the sum broadcasts; want tensors of one shape")
    if _shape(out)[-1] != _shape(total)[-1]:
        raise Unknown("the norm is over other rows than the sum's last axis")
    if weight is not None and _dtype(weight) not in _TYPES:
        raise Unknown(f"a weight of {_dtype(weight)}")


def _explain(sides: list[Node]) -> None:
    """Refuse a sum over ranks that is converted before its norm, or the add."""
    for side in sides:
        here, types = side, []
        while isinstance(here, Node) and (
            here.target in (*_CONVERTS, *_ADDS) or _views(here)
        ):
            if here.target in _CONVERTS:
                types.append(str(_dtype(here)))
            here = here.args[0]
        if types and isinstance(here, Node) and here.target in _REDUCED:
            raise Unknown(
                f"the sum is converted to {', '.join(reversed(types))} before its "
                f"norm; want conversions that lose nothing"
            )


# The norm, up from its root.


def _whole(root: Node) -> Any:
    """Return (normed, eps, weight, out, gone) of ATen's own norm."""
    normed, row, weight, eps = (*root.args, None, None)[:4]
    if list(row) != [_shape(normed)[-1]]:
        raise Unknown(f"a norm over {row}; want the last axis")
    outs = [u for u in root.users if u.args[1] == 0]
    if len(outs) != 1 or any(u.args[1] != 0 and u.users for u in root.users):
        raise Unknown("the norm's scale is kept, as for a gradient")
    if eps is None:
        eps = torch.finfo(_dtype(normed)).eps
    return normed, eps, weight, outs[0], [outs[0], *root.users, root]


def _written_out(root: Node) -> Any:
    """Return the same of a norm in single steps, whose rsqrt this is."""
    shifted = _node(root.args[0])
    if shifted.target not in (aten.add.Tensor, aten.add.Scalar) or shifted.kwargs:
        return None
    mean, eps = shifted.args[:2]
    if not isinstance(eps, float | int) or not isinstance(mean, Node):
        return None
    if mean.target is not aten.mean.dim or len(mean.args) < 3 or not mean.args[2]:
        return None
    square = _node(mean.args[0])
    base = _squared(square)
    if base is None or not _shape(base):
        return None
    normed = _plain(base)
    if mean.args[1] not in ([-1], [len(_shape(base)) - 1]):
        raise Unknown(f"a norm over axes {mean.args[1]}; want the last")
    if len(root.users) != 1 or len(mean.users) != 1:
        raise Unknown("the norm's scale is used elsewhere, as for a gradient")
    for one in (base, square, mean, shifted, root):
        if _dtype(one) not in _WIDE:
            raise Unknown(f"a norm that is computed in {_dtype(one)}; want float32")
    scaled = next(iter(root.users))
    if scaled.target is not aten.mul.Tensor or root is _other(scaled, root):
        return None
    if _plain(_other(scaled, root)) is not normed or _dtype(scaled) not in _WIDE:
        return None
    weight, out, tail = _weighted(scaled, _dtype(normed), _shape(base)[-1:])
    gone = [*reversed(tail), root, shifted, mean, square]
    wide = [n for n in (base, _other(scaled, root)) if n is not normed]
    return normed, float(eps), weight, out, [*gone, *dict.fromkeys(wide)]


def _weighted(
    scaled: Node, dtype: torch.dtype, row: Any
) -> tuple[Node | None, Node, list[Node]]:
    """Follow the scaled rows to the end of the norm: by the weight, to their type."""
    weight, here, tail = None, scaled, [scaled]
    while weight is None or _dtype(here) != dtype:
        if len(here.users) != 1:
            break
        user = next(iter(here.users))
        if _converts(user):
            if _dtype(user) not in _HOLDS.get(dtype, ()):
                break  # rounded to less than the norm's type: that is the model's
        elif weight is None and user.target is aten.mul.Tensor and not user.kwargs:
            other = _other(user, here)
            if not isinstance(other, Node) or _shape(other) != row:
                break
            weight = other
        else:
            break
        here = user
        tail.append(here)
    return weight, here, tail


def _squared(node: Node) -> Node | None:
    """Return what is squared."""
    if node.target is aten.pow.Tensor_Scalar and node.args[1] == 2:
        return _node(node.args[0])
    if node.target is aten.mul.Tensor and node.args[0] is node.args[1]:
        return _node(node.args[0])
    if node.target is aten.square.default:
        return _node(node.args[0])
    return None


# The all_reduce, up from the sum.


def _reduced(
    side: Node, *, is_sum: bool
) -> tuple[Node, str, list[Node], list[Node]] | None:
    """Return (x, group, views, nodes) when a node is an all_reduce's result."""
    views: list[Node] = []
    used: list[Node] = []
    here, shared = side, ""
    while True:
        used.append(here)
        if len(here.users) > 1 and not (is_sum and here is side):
            shared = here.name
        if _views(here):
            views.insert(0, here)
            here = _node(here.args[0])
        elif here.target is aten.copy.default:
            into = _node(here.args[1])
            if _dtype(here) != _dtype(into) or _shape(here) != _shape(into):
                raise Unknown(
                    f"the sum is copied to {_dtype(here)} of {list(_shape(here))}, "
                    f"it is {_dtype(into)} of {list(_shape(into))}; want the same"
                )
            here = into
        else:
            break
    if here.target is c10d.wait_tensor.default:
        here = _node(here.args[0])
        used.append(here)
        if here.target is not c10d.all_reduce.default:
            return None
        shared = shared or (here.name if len(here.users) > 1 else "")
    elif here.target is not torch.ops.stretto.all_reduce.default:
        return None
    if len(here.args) != 3 or here.kwargs:
        raise Unknown("an all_reduce by keywords; want them by position")
    x, op, group = here.args
    if shared:
        raise Unknown(f"what was reduced ({shared}) is used beside the sum, too")
    if op != "sum":
        raise Unknown(f"all_reduce of {op!r}; want 'sum'")
    return _node(x), str(group), views, used


# Nodes.


def _node(value: Any) -> Node:
    if not isinstance(value, Node):
        raise Unknown(f"{value!r} where a tensor is meant")
    return value


def _views(node: Node) -> bool:
    """Return whether a node only looks at a tensor otherwise: `x[0]` of one, too."""
    if node.target is aten.select.int:
        given, axis = node.args[:2]
        return bool(_shape(given)[axis] == 1)
    return node.target in _VIEWS


def leading_ones(one: Node, total: Node) -> int | None:
    """Return how many axes of one element a tensor lacks of a sum; None: it differs."""
    shape, want = _shape(one), _shape(total)
    lacks = len(want) - len(shape)
    alike = lacks >= 0 and shape == want[lacks:]
    return lacks if alike and all(size == 1 for size in want[:lacks]) else None


def _plain(node: Any) -> Any:
    """Return what a node is but for conversions that lose nothing."""
    while _converts(node):
        before = node.args[0]
        if _dtype(node) not in _HOLDS.get(_dtype(before), ()):
            break
        node = before
    return node


def _converts(node: Any) -> bool:
    """Return whether a node changes the type of a tensor, and nothing else of it."""
    if not isinstance(node, Node) or node.target not in _CONVERTS:
        return False
    extra = {k for k, v in node.kwargs.items() if v is not None}
    if extra - {"dtype", "device", "layout"} or not isinstance(node.args[0], Node):
        return False
    made, given = _value(node), _value(node.args[0])
    return bool(made.device == given.device and made.layout == given.layout)


def _other(node: Node, one: Node) -> Any:
    """Return the other of two arguments."""
    return node.args[1] if node.args[0] is one else node.args[0]


def _value(node: Any) -> Any:
    if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        raise Unknown(f"{node!r} has no shape in this graph")
    return node.meta["val"]


def _dtype(node: Any) -> torch.dtype:
    return _value(node).dtype


def _shape(node: Any) -> Any:
    return tuple(_value(node).shape)
