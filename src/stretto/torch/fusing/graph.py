"""The pass over graphs of ATen that makes one operator of all_reduce, add and norm.

For Inductor it is a pass after gradients; for other backends of torch.compile, `over`
makes one of them run it first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node

from stretto.errors import CallError
from stretto.torch.fusing.matching import (
    FusedMatch,
    Unknown,
    find_norm,
    leading_ones,
    norms_of,
)
from stretto.torch.fusing.report import FuseReport
from stretto.torch.operators.library import resolve
from stretto.torch.operators.norms import fused_up_to

OP = torch.ops.stretto.all_reduce_rmsnorm.default
aten = torch.ops.aten
_COLLECTIVE = ("_c10d_functional", "stretto")
"""Operators of these namespaces stay in their order, which is that of all ranks."""


class FusionPass(CustomGraphPass):  # type: ignore[misc]
    """What `torch._inductor.config.post_grad_custom_pre_pass` takes."""

    def __init__(self, report: FuseReport | None = None) -> None:
        self.report = report or FuseReport()

    def __call__(self, graph: Graph) -> None:
        """Rewrite a graph."""
        fuse_graph(graph, self.report)

    def uuid(self) -> None:
        """Return that Inductor shall keep no graph that this has been at.

        What is fused depends on the groups of this very run, which a graph knows by
        name alone, and of a graph that was kept nobody would hear what was fused.
        """


def over(backend: str, report: FuseReport) -> Callable[..., Any]:
    """Return a backend of torch.compile like "aot_eager", after this pass."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.registry import lookup_backend
    from torch._functorch.aot_autograd import make_boxed_func

    if backend not in ("eager", "aot_eager"):
        raise CallError(
            f"fuse: backend {backend!r}; want 'inductor', or 'aot_eager' where there "
            f"is no compiler"
        )
    lookup_backend(backend)  # registered, in this version

    def run(module: GraphModule, _: Any) -> Any:
        fuse_graph(module.graph, report)
        module.recompile()
        return make_boxed_func(module.forward)

    made: Callable[..., Any] = aot_autograd(fw_compiler=run)
    return made


def fuse_graph(graph: Graph, report: FuseReport) -> int:
    """Replace what can be; return how often."""
    count = 0
    for root in norms_of(graph):
        try:
            found = find_norm(root)
            if found is None:
                continue
            _check_group(found.group, found.total.meta["val"])
            _replace(graph, found)
        except Unknown as e:
            report.refuse(root.name, str(e))
            continue
        count += 1
    if count:
        graph.lint()
    report.fused += count
    return count


def _check_group(group: str, total: torch.Tensor) -> None:
    """Refuse a group that is not ours, and sums that are faster by themselves."""
    try:
        comm = resolve(group)
    except CallError as e:
        raise Unknown(str(e)) from None
    nbytes = total.numel() * total.element_size()
    if total.device.type == "cuda" and isinstance(nbytes, int):
        most = fused_up_to(comm)
        if nbytes > most:
            raise Unknown(f"{nbytes} bytes; on this machine up to {most} are fused")


def _replace(graph: Graph, found: FusedMatch) -> None:
    """Put the fused operator where the sum was made."""
    total, weight = found.total, found.weight
    if weight is not None:
        for node in _later_than(weight, total):  # all are known to be movable first
            total.prepend(node)
    with graph.inserting_before(total):
        x = found.x
        for view in found.views:
            x = _made(graph, view.target, (x, *view.args[1:]), view)
        x, residual = (_as_the_sum(graph, one, total) for one in (x, found.residual))
        if weight is None:
            row, like = int(total.meta["val"].shape[-1]), total.meta["val"]
            kind = {"dtype": like.dtype, "device": like.device}
            weight = graph.call_function(aten.ones.default, ([row],), kind)
            with like.fake_mode:
                weight.meta["val"] = torch.ones(row, **kind)
        args = (x, residual, weight, found.eps, found.group)
        fused = graph.call_function(OP, args)
        value = total.meta["val"]
        with value.fake_mode:
            made = value.new_empty(value.shape), value.new_empty(value.shape)
        fused.meta["val"] = made
        outputs = []
        for at in (0, 1):
            one = graph.call_function(operator.getitem, (fused, at))
            one.meta["val"] = made[at]
            outputs.append(one)
        out = outputs[0]
        for view in found.later:
            out = _made(graph, view.target, (out, *view.args[1:]), view)
    found.out.replace_all_uses_with(out)
    total.replace_all_uses_with(outputs[1])
    for node in sorted({*found.gone, *found.later, total}, reverse=True):
        if not node.users:
            graph.erase_node(node)


def _as_the_sum(graph: Graph, one: Node | None, total: Node) -> Node | None:
    """Return a tensor with all axes of the sum: those it lacks have one element."""
    lacks = 0 if one is None else leading_ones(one, total) or 0
    for _ in range(lacks):
        assert one is not None
        value = one.meta["val"]
        one = graph.call_function(aten.unsqueeze.default, (one, 0))
        with value.fake_mode:
            one.meta["val"] = value.unsqueeze(0)
    return one


def _made(graph: Graph, target: Any, args: tuple[Any, ...], like: Node) -> Node:
    made = graph.call_function(target, args)
    made.meta.update(like.meta)
    return made


def _later_than(node: Node, before: Node) -> list[Node]:
    """Return a node and what it needs, as far as that comes after another one."""
    wanted, seen = [node], set()
    while wanted:
        one = wanted.pop()
        if one in seen or one < before or one.op == "placeholder":
            continue
        if one is before:
            raise Unknown("the weight depends on the sum")
        tags = getattr(one.target, "tags", ())
        if (
            one.op not in ("call_function", "get_attr")
            or one.is_impure()
            or torch.Tag.nondeterministic_seeded in tags
            or getattr(one.target, "namespace", "") in _COLLECTIVE
        ):
            raise Unknown(f"the weight is made by {one.name}, after the sum")
        seen.add(one)
        wanted.extend(one.all_input_nodes)
    return sorted(seen)
