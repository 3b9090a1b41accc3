"""Fusion of all_reduce, residual add and RMSNorm in models that know nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stretto.errors import CallError
from stretto.torch.fusing import modules
from stretto.torch.fusing.report import FuseReport

__all__ = ["FuseReport", "fuse"]


def fuse(
    model: nn.Module,
    group: Any = None,
    *,
    compile: bool = False,  # noqa: A002  (torch.compile, and nothing else)
    backend: str = "inductor",
    **options: Any,
) -> Any:
    """Return the model with its all_reduces, adds and norms fused; see `.fusion`.

    As it is, a model's row-parallel layers (those with `reduce_results`) hold back
    their all_reduce, in place: those that all ranks have tried, which call this
    together. With `compile=True` it is compiled, and the pattern is
    found in the graph, whoever wrote it: by `dist.all_reduce`, functional collectives
    or ours. `options` are torch.compile's, `mode` among them. What is not known is
    left as it is, and `model.fusion` says why.
    """
    report = FuseReport()
    if not compile:
        _refuse(backend, options)
        modules.fuse_modules(model, group, report)
        model.fusion = report
        return model
    from stretto.torch.fusing.graph import FusionPass, over  # Inductor, a slow import

    if backend == "inductor":
        extra = {"post_grad_custom_pre_pass": FusionPass(report)}
        extra |= _of_mode(options.pop("mode", None), options.get("dynamic"))
        extra |= options.pop("options", None) or {}
        made = torch.compile(model, options=extra, **options)
    else:
        made = torch.compile(model, backend=over(backend, report), **options)
    made.fusion = report
    return made


def _refuse(backend: str, options: Mapping[str, Any]) -> None:
    """Refuse what only torch.compile would read."""
    given = [f"{name}={value!r:.40}" for name, value in options.items()]
    if backend != "inductor":
        given.insert(0, f"backend={backend!r:.40}")
    if given:
        raise CallError(
            f"fuse: {', '.join(given)} {'is' if len(given) == 1 else 'are'} for "
            "torch.compile; want compile=True beside it, or a model fused as it is"
        )


def _of_mode(mode: str | None, dynamic: bool | None) -> dict[str, Any]:
    """Return what a mode of torch.compile stands for: options, which may go with it."""
    from torch._inductor import list_mode_options

    if mode is None or mode == "default":
        return {}
    return dict(list_mode_options(mode, dynamic))
