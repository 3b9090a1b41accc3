"""Tensors of PyTorch on CPUs: as arrays, and back; gradients of both operations.

Each operation is the other's transpose. A dispatch's gradient is a combine without
weights; a combine's is a dispatch, whose rows are weighed where the experts are. There
the gradients of weights are found, too: they go back as rows do, k numbers each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stretto.arrays import host_view
from stretto.errors import CallError
from stretto.experts.elements import STORED

__all__ = ["cleared", "combined", "combined_back", "dispatched", "made", "raw",
           "returned", "returned_weights", "summed", "wants_gradients"]  # fmt: skip

_RAW = ("bfloat16", "float16", "float8_e4m3fn")
"""Types that arrays hold as raw bits."""


def made(array: NDArray[Any], dtype: str) -> Any:
    """Return a tensor of our elements, which shares the memory of an array."""
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype in _RAW else tensor


def raw(rows: Tensor) -> Tensor:
    """Return fp8 rows as bytes, which can be indexed everywhere."""
    return rows.view(torch.uint8) if rows.dtype == torch.float8_e4m3fn else rows


def wants_gradients(*given: Any) -> bool:
    """Whether autograd follows any of these."""
    return torch.is_grad_enabled() and any(
        isinstance(one, Tensor) and one.requires_grad for one in given
    )


def dispatched(ep: Any, x: Tensor, ids: Tensor, weights: Any) -> Any:
    """Dispatch, with gradients for tokens and weights."""
    if ep.geometry.quantise:
        raise CallError(
            f"rank {ep.comm.rank}: dispatch: a gradient through quantise="
            f"{ep.geometry.quantise!r}; want quantise=None where one trains, or "
            "torch.no_grad()"
        )
    if weights is None:
        weights = torch.ones(ids.shape, dtype=torch.float32)
    kept: list[Any] = []
    rows, received = _Dispatch.apply(x, weights, ids, ep, kept)
    (sent,) = kept
    sent.rows, sent.weights = rows, received
    return sent


def combined(ep: Any, rows: Tensor, sent: Any) -> Tensor:
    """Combine, with gradients for rows and for the weights of their dispatch."""
    out: Tensor = _Combine.apply(rows, sent.weights, sent, ep)
    return out


class _Dispatch(torch.autograd.Function):  # type: ignore[misc]
    """Rows and weights where the experts are."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, ids: Tensor, ep: Any,
        kept: list[Any],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Dispatch; `kept` gets what came."""
        sent = ep.plain_dispatch(x.detach(), ids, weights.detach())
        kept.append(sent)
        ctx.ep, ctx.received, ctx.kind = ep, sent.received, x.dtype
        return sent.rows, sent.weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Combine gradients of rows, and bring those of weights back."""
        ep, received = ctx.ep, ctx.received
        of_rows, of_weights = (grad.contiguous() for grad in grads)
        x = weights = None
        if ctx.needs_input_grad[0]:
            x = summed(ep, received, of_rows, ep.geometry.dtype)
        if ctx.needs_input_grad[1]:
            weights = returned_weights(ep, received, of_weights)
        return x, weights, None, None, None


class _Combine(torch.autograd.Function):  # type: ignore[misc]
    """Sums of weighed rows where the tokens are."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, sent: Any, ep: Any) -> Tensor:
        """Combine."""
        ctx.ep, ctx.received = ep, sent.received
        ctx.save_for_backward(rows, weights)
        out: Tensor = ep.plain_combine(rows.detach(), sent, None)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Dispatch the gradient of the sums, and weigh it there."""
        rows, weights = ctx.saved_tensors
        found = combined_back(ctx.ep, ctx.received, grads[0], rows, weights)
        return *found, None, None


def combined_back(
    ep: Any, received: Any, grad: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return gradients of rows and of weights (layout "expert"), of those of sums."""
    routing = received.routing
    again = ep.plain_dispatch(
        grad.contiguous(), torch.from_numpy(routing.ids),
        torch.from_numpy(routing.weights),
    )  # fmt: skip
    if ep.geometry.layout != "expert":
        cleared(again)
        return again.rows.view(rows.shape), None
    places = torch.from_numpy(received.places)
    chosen = places >= 0
    lines = torch.zeros(len(rows), dtype=torch.float32)
    lines[places[chosen]] = weights[chosen]
    of_rows = (again.rows.float() * lines[:, None]).to(rows.dtype)
    dots = (again.rows.float() * rows.float()).sum(1)
    of_weights = torch.zeros_like(weights)
    of_weights[chosen] = dots[places[chosen]]
    return of_rows, of_weights


def cleared(sent: Any) -> Any:
    """Return a dispatch whose rows are zeros behind those that came."""
    if sent.geometry.layout == "rank":
        for source, count in enumerate(sent.sources.tolist()):
            sent.rows[source, count:] = 0
    return sent


def returned_weights(ep: Any, received: Any, weights: Tensor) -> Tensor:
    """Return the sums of what each rank has for a token's choices: T x top_k."""
    places = np.arange(len(weights)).reshape(-1, 1)
    return summed(ep, received, weights, "float32", places)


def summed(
    ep: Any, received: Any, rows: Tensor, dtype: str, places: Any = None
) -> Tensor:
    """Return each token's sum of rows, without weights."""
    view, _ = host_view(rows, "gradient")
    plain = view.reshape(-1, view.shape[-1]).view(STORED[dtype])
    order = "rank" if places is not None else ep.geometry.order
    return returned(ep, received, plain, None, dtype, order, places)


def returned(
    ep: Any, received: Any, plain: Any, weights: Any, dtype: str, order: str,
    places: Any = None,
) -> Tensor:  # fmt: skip
    """Return each token's sum of rows, with weights or without."""
    pending = ep.engine.combine(
        received, lambda: (plain, weights, dtype), order=order, places=places
    )
    out: Tensor = made(pending.wait(), dtype)
    return out
