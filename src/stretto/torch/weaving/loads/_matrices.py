"""The two matrices of a caller: whether they can be multiplied here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.torch.weaving.loads._load import WovenLoad

__all__ = ["HIDDEN", "matrices"]

HIDDEN = 8192
"""Columns of what is moved, where matrices are drawn."""


def matrices(load: WovenLoad, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return x and w, and take their type for what is moved."""
    if {*tensors} != {"x", "w"}:
        raise CallError(f"{load.name}: {', '.join(tensors) or 'no'} tensors; want x, w")
    x, w = tensors["x"], tensors["w"]
    if not isinstance(x, Tensor) or not isinstance(w, Tensor):
        raise CallError(
            f"{load.name}: x is a {type(x).__name__} and w a {type(w).__name__}; want "
            "tensors"
        )
    good = x.dim() == w.dim() == 2 and x.shape[1] == w.shape[0] and x.dtype == w.dtype
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        raise CallError(
            f"{load.name}: x is on {x.device}, and this rank works on GPU "
            f"{torch.cuda.current_device()}; want torch.cuda.set_device before"
        )
    if good and not x.numel() * w.numel():
        raise CallError(f"{load.name}: x or w has no elements; want some")
    if not good or x.device != w.device or not x.is_contiguous():
        raise CallError(
            f"{load.name}: x has shape {tuple(x.shape)} of {x.dtype} on {x.device}, w "
            f"{tuple(w.shape)} of {w.dtype} on {w.device}; want (rows, k), contiguous, "
            "and (k, columns) of one type on one device"
        )
    load.dtype, load.device = x.dtype, x.device
    return x.detach(), w.detach()
