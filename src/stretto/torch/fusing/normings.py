"""Norms: whether a module computes what the fused call does is tried, not believed.

    x * rsqrt(mean(x * x) + eps) * weight          or (1 + weight), as Gemma's

on rows from 1e-6 to 1e4, in every type it may be given, with its weight and others.
Numbers may differ by what rounding in the module's own order permits: `_close`. A
second argument is a residual if the module returns the norm of the sum, and the sum
bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stretto.runtime.calls import Communicator
from stretto.torch.fusing.held import is_plain
from stretto.torch.fusing.trials import (
    ELSEWHERE,
    Unlike,
    agreed,
    drawn,
    identical,
    look_of,
    quiet,
    reason,
    stand_ins,
)

_EPS = ("variance_epsilon", "eps", "epsilon")
_ELSE = (
    "it computes something else than x * rsqrt(mean(x * x) + eps) * weight, or "
    "(1 + weight)"
)
_NARROW = (torch.float16, torch.bfloat16)
_SCALES = 11
"""Rows of a trial, from 1e-6 to 1e4."""


@dataclass
class Norm:
    """A norm that fused calls may stand for, of inputs like those it was tried with."""

    module: Any
    name: str
    forward: Callable[..., Any]
    eps: str = ""
    """What the module calls it."""
    comms: list[Communicator] = field(default_factory=list)
    """Of the ranks that try it."""
    from_one: bool = False
    """Whether the weight counts from one."""
    dtypes: list[torch.dtype] = field(default_factory=list)
    alone: bool = False
    """Whether it takes a tensor."""
    pair: str = ""
    """How it takes a tensor and a residual: not at all, or which of them it changes."""
    look: Any = None
    _weight: Tensor | None = None

    def says(self) -> str:
        """Return what all ranks have to agree on."""
        return f"{self.from_one} {self.dtypes} {self.alone} {self.pair}"

    def takes(self, x: Tensor) -> bool:
        """Return whether a call with a sum is one of those that were tried."""
        weight = self.module.weight
        return (
            x.dtype in self.dtypes
            and x.dim() in (2, 3)
            and x.shape[-1] == weight.numel()
            and x.device == weight.device
            and not (torch.is_grad_enabled() and weight.requires_grad)
            and look_of(self.module) == self.look
        )

    def arguments(self) -> tuple[Tensor, float]:
        """Return weight and eps as the fused call takes them, now."""
        weight, eps = self.module.weight, float(getattr(self.module, self.eps))
        if self.from_one:
            if self._weight is None or self._weight.device != weight.device:
                with torch.inference_mode(False):  # it is written outside of that too
                    self._weight = torch.empty_like(weight, dtype=torch.float32)
            weight = self._weight.copy_(weight).add_(1)  # its place is known to calls
        return weight, eps


def try_norm(norm: Norm) -> str:
    """Return why a norm is left alone, or nothing.

    Every rank makes the same runs, whatever it sees, since a norm may call others, too.
    """
    forms, why = [], ""
    try:
        forms = _forms(norm)
    except Unlike as e:
        why = str(e)
    alike = [agreed(comm, f"{forms} {norm.dtypes}") for comm in norm.comms]
    if why or not all(alike):
        return why or ELSEWHERE
    alone = {dtype: _tried(_alone, norm, dtype, forms) for dtype in norm.dtypes}
    pairs = {dtype: _tried(_pair, norm, dtype, forms) for dtype in norm.dtypes}
    first = norm.dtypes[0]
    if not alone[first][0] and not pairs[first][0]:
        of_pairs = alone[first][1].startswith("TypeError")  # it wants a residual
        return (pairs if of_pairs else alone)[first][1] or _ELSE
    norm.alone = bool(alone[first][0])
    for norm.eps, norm.from_one in forms:
        form = norm.eps, norm.from_one
        kinds = [kind for f, kind in pairs[first][0] if f == form]
        norm.pair = kinds[0] if kinds else ""
        if (form, "") in alone[first][0] or (kinds and not norm.alone):
            break
    wanted = [(alone, "")] * norm.alone + [(pairs, norm.pair)] * bool(norm.pair)
    norm.dtypes = [
        dtype
        for dtype in norm.dtypes
        if all((form, kind) in seen[dtype][0] for seen, kind in wanted)
    ]
    norm.look = look_of(norm.module)
    return ""


def _tried(
    run: Callable[..., set[Any]], norm: Norm, dtype: torch.dtype, forms: list[Any]
) -> tuple[set[Any], str]:
    """Return what every run permits: forms, and how a residual is taken; or why not."""
    fit: set[Any] | None = None
    why = ""
    for how in ("as they are", "any"):
        try:
            with quiet(norm.module), stand_ins(norm.module, how):
                for x in _rows(norm, dtype):
                    try:
                        made = run(norm, x, forms)
                    except Exception as e:  # whatever a module raises
                        made, why = set(), reason(e)
                    fit = made if fit is None else fit & made
        except Exception as e:
            fit, why = set(), reason(e)
    return fit or set(), why


def _forms(norm: Norm) -> list[tuple[str, bool]]:
    """Return the forms that it may be: what it calls eps, where weights begin."""
    weight = getattr(norm.module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not weight.numel():
        raise Unlike("it has no weight of one axis")
    if not is_plain(weight) or weight.dtype not in (torch.float32, *_NARROW):
        raise Unlike(f"its weight is a {type(weight).__name__} of {weight.dtype}")
    names = [n for n in _EPS if isinstance(getattr(norm.module, n, None), float)]
    if not names:
        raise Unlike(f"it has none of {', '.join(_EPS)} as a number")
    wide = weight.dtype == torch.float32
    norm.dtypes = [weight.dtype, *(_NARROW if wide else ())]
    return list(itertools.product(names, (False, True)))


def _alone(norm: Norm, x: Tensor, forms: list[Any]) -> set[Any]:
    """Return which forms the module may be by what it makes of a tensor."""
    given = x.clone()
    weight = norm.module.weight.detach().clone()
    made = norm.forward(given)
    if not identical(given, x):
        raise Unlike("it changes its input")
    if not isinstance(made, Tensor) or made.dtype != x.dtype:
        raise Unlike("its output has another type than its input")
    s = x.double()
    return {(f, "") for f in forms if _is_norm(norm, f, s, weight, made)}


def _rows(norm: Norm, dtype: torch.dtype) -> Iterator[Tensor]:
    weight = norm.module.weight
    scales = torch.logspace(-6, 4, _SCALES, device=weight.device)[:, None]
    mine = norm.comms[0].rank if norm.comms else 0
    x = scales * drawn([_SCALES, weight.numel()], weight, 300 + mine)
    yield x.to(dtype)
    yield x[1:].view(2, -1, weight.numel()).flip(1).to(dtype)
    yield from x.to(dtype).split(1)  # what is looked at as a whole has one size, too


def _is_norm(
    norm: Norm, form: tuple[str, bool], s: Tensor, weight: Tensor, made: Any
) -> bool:
    """Return whether this is the norm of rows in float64, in a form."""
    eps, from_one = form
    root = torch.rsqrt(s.square().mean(-1, keepdim=True) + getattr(norm.module, eps))
    return _close(made, s * root * (weight.double() + from_one))


def _close(made: Any, want: Tensor) -> bool:
    """Return whether numbers are right within four roundings of their type.

    In float32 the order of a mean of a row counts too, so 32 are allowed.
    """
    if not is_plain(made) or made.shape != want.shape or not made.is_floating_point():
        return False
    kind = torch.finfo(made.dtype)
    steps = 4 if made.dtype in _NARROW else 32
    off = (made.double() - want).abs()
    return bool((off <= steps * kind.eps * want.abs() + 2 * kind.tiny * kind.eps).all())


def _pair(norm: Norm, x: Tensor, forms: list[Any]) -> set[Any]:
    """Return the same of a tensor and a residual, and which of them it changes."""
    residual = x.flip(-1) / 3
    a, b = x.clone(), residual.clone()
    weight = norm.module.weight.detach().clone()
    made = norm.forward(a, b)
    if type(made) is not tuple or len(made) != 2:
        raise Unlike("it returns no pair")
    out, total = made
    s = x.double() + residual.double()
    fit = {f for f in forms if _is_norm(norm, f, s, weight, out)}
    if not identical(total, x + residual) or not fit:
        raise Unlike("its second argument is no residual")
    if out.dtype != x.dtype:
        raise Unlike("its output has another type than its input")
    changed = not identical(a, x), not identical(b, residual)
    if changed == (False, False) and out is not a and total is not b:
        return {(f, "neither") for f in fit}
    if changed[1] and total is b and (out is a) == changed[0]:
        return {(f, "both" if changed[0] else "residual") for f in fit}
    raise Unlike("it changes its arguments in a way of its own")
