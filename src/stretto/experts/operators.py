"""Both operations as operators of `torch.ops.stretto`: shapes, gradients, one graph.

    experts_dispatch   its gradient is a combine without weights
    experts_combine    its gradient is a dispatch, weighed where the experts are

A graph has sizes before it runs: rows have room for any routing, as on GPUs, and zeros
where nothing came. What ties a combine to its dispatch are tensors as well: places are
counts of ids, so they are counted again, and only sizes are kept (`way`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.arrays import host_view
from stretto.errors import CallError
from stretto.experts.cpu import ReceivedRows
from stretto.experts.elements import STORED
from stretto.experts.geometry import Geometry
from stretto.experts.names import found
from stretto.experts.tensors import (
    cleared,
    combined_back,
    raw,
    returned,
    returned_weights,
    summed,
    wants_gradients,
)
from stretto.torch.operators.library import define

__all__ = ["GraphDispatched", "combined", "dispatched", "in_graph"]

OPS = torch.ops.stretto


class GraphDispatched:
    """What a dispatch in a graph brought; as `Dispatched`, but for sizes."""

    def __init__(self, geometry: Geometry, own: Any, tensors: Any) -> None:
        """Hold an operator's tensors, and this rank's ids and weights."""
        self.geometry, (self.own_ids, self.own_weights) = geometry, own
        self.rows, self.scales, self.ids, self.weights, *rest = tensors
        self.counts, self.starts, self.sources, self.way = rest
        if not geometry.quantise:
            self.scales = None


def in_graph() -> bool:
    """Whether a call is traced now."""
    return bool(torch.compiler.is_compiling())


def dispatched(ep: Any, x: Tensor, ids: Tensor, weights: Any) -> GraphDispatched:
    """Dispatch in a graph."""
    if weights is None:
        weights = torch.ones_like(ids, dtype=torch.float32)
    if ep.geometry.quantise and wants_gradients(x, weights):
        raise CallError(
            f"dispatch: a gradient through quantise={ep.geometry.quantise!r}; want "
            "quantise=None where one trains, or torch.no_grad()"
        )
    tensors = OPS.experts_dispatch(x, ids, weights, ep.name)
    return GraphDispatched(ep.geometry, (ids, weights), tensors)


def combined(ep: Any, rows: Tensor, sent: GraphDispatched, weights: Any) -> Tensor:
    """Combine in a graph."""
    of_rows, own = sent.weights, sent.own_weights
    if weights is not None:
        of_rows, own = (
            (of_rows, weights) if ep.geometry.order == "k" else (weights, own)
        )
    made: Tensor = OPS.experts_combine(
        rows, of_rows, sent.own_ids, own, sent.ids, sent.way, True, ep.name
    )
    return made


# What operators do, and their shapes.


def _shapes(x: Tensor, ids: Tensor, weights: Tensor, experts: str) -> list[Tensor]:
    """Return zeros of a dispatch's results: ids are none."""
    ep = found(experts)
    g, n, rank = ep.geometry, ep.geometry.num_ranks, ep.comm.rank
    lines = (n, g.max_tokens) if g.layout == "rank" else (g.most_lines(rank),)
    rows = x.new_zeros((*lines, g.hidden), dtype=torch.uint8 if g.quantise else None)
    whole = torch.int64
    return [
        rows.view(torch.float8_e4m3fn) if g.quantise else rows,
        x.new_zeros((*lines, g.scale_bytes // 4), dtype=torch.float32),
        x.new_full((g.slots, g.top_k), -1, dtype=torch.int32),
        x.new_zeros((g.slots, g.top_k), dtype=torch.float32),
        x.new_zeros(g.num_local(rank), dtype=whole),
        x.new_zeros(g.num_local(rank) + 1, dtype=whole),
        x.new_zeros(n, dtype=whole),
        x.new_zeros(1 + 2 * n * n, dtype=whole),
    ]


def _dispatch(x: Tensor, ids: Tensor, weights: Tensor, experts: str) -> list[Tensor]:
    ep = found(experts)
    sent = cleared(ep.plain_dispatch(x.contiguous(), ids, weights.contiguous()))
    made = _shapes(x, ids, weights, experts)
    came = sent.rows, sent.scales, sent.ids, sent.weights, sent.counts, sent.starts
    for out, one in zip(made, (*came, sent.sources), strict=False):
        if one is not None and len(one):
            raw(out)[: len(one)].copy_(raw(one))
    kept = sent.received
    made[-1][0] = kept.number
    matrices = made[-1][1:].view(2, *kept.row_matrix.shape)
    matrices[0].copy_(torch.from_numpy(kept.row_matrix.copy()))
    matrices[1].copy_(torch.from_numpy(kept.pair_matrix.copy()))
    return made


def _received(
    ep: Any, ids: Tensor, weights: Tensor, got_ids: Tensor, way: Tensor
) -> ReceivedRows:
    """Return what a dispatch left, counted again."""
    engine, n, rank = ep.engine, ep.geometry.num_ranks, ep.comm.rank
    matrices = way[1:].view(2, n, n).numpy()
    sources = matrices[0][:, rank].copy()
    chosen = got_ids[: int(sources.sum())].numpy()
    plain = [host_view(one.contiguous(), "ids")[0] for one in (ids.long(), weights)]
    loads, starts, places, _ = engine.laid_out(chosen, sources)
    return ReceivedRows(
        number=int(way[0]), routing=engine.routing(*plain), rows=chosen, scales=None,
        ids=chosen, weights=chosen, sources=sources, counts=loads, starts=starts,
        places=places, row_matrix=matrices[0], pair_matrix=matrices[1],
    )  # fmt: skip


def _combine(
    rows: Tensor, got_weights: Tensor, ids: Tensor, weights: Tensor, got_ids: Tensor,
    way: Tensor, weighed: bool, experts: str,
) -> Tensor:  # fmt: skip
    ep = found(experts)
    received = _received(ep, ids, weights, got_ids, way)
    rows, g = rows.contiguous(), ep.geometry
    if not weighed:
        return summed(ep, received, rows, g.dtype)
    many = len(received.ids)
    of = weights if g.order == "k" else got_weights[:many]
    view, _ = host_view(rows, "combine: rows")
    plain = view.reshape(-1, g.hidden).view(STORED[g.dtype])
    given, _ = host_view(of.contiguous(), "combine: weights")
    return returned(ep, received, plain, given, g.dtype, g.order)


def _combine_back(
    grad: Tensor, rows: Tensor, got_weights: Tensor, ids: Tensor, weights: Tensor,
    got_ids: Tensor, way: Tensor, experts: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    ep = found(experts)
    received = _received(ep, ids, weights, got_ids, way)
    many, lines = len(received.ids), int(received.starts[-1])
    if ep.geometry.layout == "token":
        lines = many
    used = rows if ep.geometry.layout == "rank" else rows[:lines]
    grads = combined_back(ep, received, grad, used, got_weights[:many])
    of_rows, of_weights = torch.zeros_like(rows), torch.zeros_like(got_weights)
    of_rows[: len(used)] = grads[0]
    if grads[1] is not None:
        of_weights[:many] = grads[1]
    return of_rows, of_weights


def _return_weights(
    got: Tensor, ids: Tensor, weights: Tensor, got_ids: Tensor, way: Tensor,
    experts: str,
) -> Tensor:  # fmt: skip
    ep = found(experts)
    received = _received(ep, ids, weights, got_ids, way)
    return returned_weights(ep, received, got[: len(received.ids)].contiguous())


# Gradients.


def _keep_dispatch(ctx: Any, inputs: Any, output: Any) -> None:
    _, ids, weights, ctx.experts = inputs
    ctx.save_for_backward(ids, weights, output[2], output[3], output[7])
    ctx.mark_non_differentiable(output[1], output[2], *output[4:])


def _dispatch_back(ctx: Any, grads: Any) -> Any:
    ids, weights, got_ids, got_weights, way = ctx.saved_tensors
    of_x = of_weights = None
    if ctx.needs_input_grad[0] and grads[0] is not None:
        of_x = OPS.experts_combine(
            grads[0], got_weights, ids, weights, got_ids, way, False, ctx.experts
        )
    if ctx.needs_input_grad[2] and grads[3] is not None:
        of_weights = OPS.experts_return_weights(
            grads[3], ids, weights, got_ids, way, ctx.experts
        )
    return of_x, None, of_weights, None


def _keep_combine(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.weighed, ctx.experts = inputs
    ctx.save_for_backward(*tensors)


def _combined_back(ctx: Any, grad: Tensor) -> Any:
    if not ctx.weighed:
        raise CallError("experts_combine: no gradient of a gradient")
    of_rows, of_weights = OPS.experts_combine_back(
        grad, *ctx.saved_tensors, ctx.experts
    )
    return of_rows, of_weights, *[None] * 6


define(
    "experts_dispatch(Tensor x, Tensor ids, Tensor weights, str experts) -> Tensor[]",
    _dispatch, fake=_shapes, context=_keep_dispatch, backward=_dispatch_back,
)  # fmt: skip
define(
    "experts_combine(Tensor rows, Tensor got_weights, Tensor ids, Tensor weights, "
    "Tensor got_ids, Tensor way, bool weighed, str experts) -> Tensor",
    _combine, context=_keep_combine, backward=_combined_back,
    fake=lambda rows, got, ids, *_: rows.new_empty((ids.shape[0], rows.shape[-1])),
)  # fmt: skip
define(
    "experts_combine_back(Tensor grad, Tensor rows, Tensor got_weights, Tensor ids, "
    "Tensor weights, Tensor got_ids, Tensor way, str experts) -> (Tensor, Tensor)",
    _combine_back,
    fake=lambda grad, rows, got, *_: (torch.empty_like(rows), torch.empty_like(got)),
)  # fmt: skip
define(
    "experts_return_weights(Tensor got, Tensor ids, Tensor weights, Tensor got_ids, "
    "Tensor way, str experts) -> Tensor",
    _return_weights, fake=lambda got, ids, weights, *_: torch.empty_like(weights),
)  # fmt: skip
