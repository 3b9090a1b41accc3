"""all_reduce, residual add and RMSNorm with results of 8 bits, as one operator.

The scale is one for every row, made in the kernel, or one that is known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.program.epilogues import Expr, cast, epilogue, maximum, row_amax
from stretto.torch.operators.collectives import plain
from stretto.torch.operators.library import define, resolve, text_of
from stretto.torch.operators.norms import (
    EPS,
    check,
    fused_up_to,
    in_kernel,
    normed_rows,
    run_fused,
)

OPS = torch.ops.stretto
FP8 = "float8_e4m3fn"
_LARGEST, _LEAST = 448.0, 1e-12
"""The largest number of that type; the least scale of a row, so that none is 0."""


@epilogue
def add_norm_fp8(y: Expr, residual: Expr, weight: Expr, eps: Expr) -> dict[str, Expr]:
    """The same in 8 bits, with a scale for every row."""
    s = y + residual
    normed = normed_rows(s, weight, eps)
    scale = maximum(row_amax(normed) / _LARGEST, _LEAST)
    out = cast(normed / scale, FP8)
    return {"out": out, "scale": cast(scale, "float32"), "residual": s}


@epilogue
def add_norm_static_fp8(
    y: Expr, residual: Expr, weight: Expr, eps: Expr, scale: Expr
) -> dict[str, Expr]:
    """The same in 8 bits, with a scale that is known."""
    s = y + residual
    return {"out": cast(normed_rows(s, weight, eps) / scale, FP8), "residual": s}


def _all_reduce_rmsnorm_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    check(x, residual, weight)
    comm, x = resolve(group), plain(x)
    small = x.nbytes <= fused_up_to(comm, quantised=True)
    if small and in_kernel(x, residual, weight):
        out, scale, total = _three_like(x, residual, weight, eps, group)
        made = {"out": out, "scale": scale, "residual": total}
        given = {"into": torch.empty_like(x), "residual": residual, "weight": weight}
        run_fused(comm, add_norm_fp8, x, made, eps=eps, **given)
        return out, scale, total
    normed, total = _wide(comm, x, residual, weight, eps)
    scale = (normed.abs().amax(-1, keepdim=True) / _LARGEST).clamp_min(_LEAST)
    return _rounded(normed / scale), scale, total


def _three_like(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor, Tensor]:
    check(x, residual, weight)
    out = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    scale = x.new_empty([*x.shape[:-1], 1], dtype=torch.float32)
    return out, scale, x.new_empty(x.shape)


def _wide(
    comm: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the norm in float32, and the new residual."""
    y = torch.empty_like(x)
    comm.all_reduce(x, out=y)
    s = y.float() + residual.float()
    scale = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    return s * scale * weight.float(), s.to(x.dtype)


def _rounded(x: Tensor) -> Tensor:
    """Return 8 bits; what is too large becomes the largest number, as in kernels."""
    return x.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)


define(
    "all_reduce_rmsnorm_fp8(Tensor x, Tensor residual, Tensor weight, float eps, "
    "str group) -> (Tensor, Tensor, Tensor)",
    _all_reduce_rmsnorm_fp8,
    fake=_three_like,
)


def _all_reduce_rmsnorm_static_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    check(x, residual, weight)
    if scale.numel() != 1 or scale.dtype != torch.float32:
        raise CallError(
            f"all_reduce_rmsnorm_fp8: scale has shape {tuple(scale.shape)} of "
            f"{scale.dtype}; want one number of float32"
        )
    comm, x = resolve(group), plain(x)
    small = x.nbytes <= fused_up_to(comm, quantised=True)
    if small and in_kernel(x, residual, weight, scale):
        out, _, total = _three_like(x, residual, weight, eps, group)
        made = {"out": out, "residual": total}
        given = {"residual": residual, "weight": weight, "scale": scale.view(())}
        given["into"] = torch.empty_like(x)
        run_fused(comm, add_norm_static_fp8, x, made, eps=eps, **given)
        return out, total
    normed, total = _wide(comm, x, residual, weight, eps)
    return _rounded(normed / scale), total


def _static_like(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, eps: float, group: str
) -> tuple[Tensor, Tensor]:
    out, _, total = _three_like(x, residual, weight, eps, group)
    return out, total


define(
    "all_reduce_rmsnorm_static_fp8(Tensor x, Tensor residual, Tensor weight, "
    "Tensor scale, float eps, str group) -> (Tensor, Tensor)",
    _all_reduce_rmsnorm_static_fp8,
    fake=_static_like,
)


def all_reduce_rmsnorm_fp8(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = EPS,
    group: Any = None,
    *,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm in float8_e4m3fn, its scales, and the sum with `residual`.

    The norm is the 8-bit numbers times the scales: one for every row, shape (..., 1),
    or `scale`, which is then given back.
    """
    group = text_of(group)
    if scale is None:
        made: tuple[Tensor, Tensor, Tensor] = OPS.all_reduce_rmsnorm_fp8(
            x, residual, weight, eps, group
        )
        return made
    out, total = OPS.all_reduce_rmsnorm_static_fp8(
        x, residual, weight, scale, eps, group
    )
    return out, scale, total
