"""Fusion without a compiler: row-parallel layers hold back their sum until it is used.

A layer that would all_reduce its output gives a `Partial`; added to a residual it is a
`Pending` sum; a norm of that is one fused call, which leaves the sum behind. Whatever
else is done with either makes the sum first, so every model stays right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stretto.calls import Communicator
from stretto.torch.fusing.report import Report
from stretto.torch.operators.collectives import plain
from stretto.torch.operators.library import communicator_of
from stretto.torch.operators.norms import fused_up_to, normed

__all__ = ["Partial", "Pending", "fuse_modules"]

_ADDS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
_EPS = ("variance_epsilon", "eps", "epsilon")
_CLOSE = 0.02


class Held:
    """A tensor that is not made yet; to PyTorch it is one as soon as it is used."""

    def value(self) -> Tensor:
        """Return the tensor."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Hold back sums; for all else, be the tensor."""
        if func in _ADDS and len(args) == 2 and not kwargs:
            return _sum(*args)
        args = torch.utils._pytree.tree_map(_real, tuple(args))
        kwargs = torch.utils._pytree.tree_map(_real, kwargs or {})
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return what the tensor has."""
        return getattr(self.value(), name)

    def __add__(self, other: Any) -> Any:
        return _sum(self, other)

    def __radd__(self, other: Any) -> Any:
        return _sum(other, self)


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Held, *args: Any) -> Any:
        return getattr(self.value(), name)(*map(_real, args))

    return call


for _name in (
    *("sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "pow"),
    *("neg", "abs", "getitem", "len", "iter", "bool", "float", "int", "lt", "gt"),
    *("le", "ge", "eq", "ne"),
):
    setattr(Held, f"__{_name}__", _forward(f"__{_name}__"))
Held.__hash__ = object.__hash__  # type: ignore[method-assign]


class Partial(Held):
    """This rank's part of a sum over ranks."""

    def __init__(self, part: Tensor, comm: Communicator, report: Report) -> None:
        """`part` is nobody else's: it becomes the sum."""
        self.part, self.comm, self.report = part, comm, report
        self._made: Tensor | None = None

    def value(self) -> Tensor:
        """Return the sum over ranks."""
        if self._made is None:
            self._made = plain(self.part)
            self.comm.all_reduce(self._made)
        return self._made

    def fits(self, other: Any) -> bool:
        """Return whether a tensor may be added to the sum by a fused call."""
        return (
            isinstance(other, Tensor)
            and self._made is None
            and other.dtype == self.part.dtype
            and other.shape == self.part.shape
            and not (torch.is_grad_enabled() and other.requires_grad)
        )

    def normed(self, residual: Tensor, weight: Tensor, eps: float) -> tuple[Any, Any]:
        """Return the norm of the sum with a residual, and that sum, by one call."""
        x = plain(self.part)
        made = normed(self.comm, x, residual, weight, eps, keep=False)
        self._made = x  # the sum over ranks now
        self.report.calls += 1
        return made


class Pending(Held):
    """A residual and a sum over ranks that is to be added to it."""

    def __init__(self, partial: Partial, residual: Tensor) -> None:
        self.partial, self.residual = partial, residual
        self._made: Tensor | None = None

    def value(self) -> Tensor:
        """Return the sum, as a norm left it or made now."""
        if self._made is None:
            self._made = self.residual + self.partial.value()
        return self._made

    def normed(self, weight: Tensor, eps: float) -> Tensor | None:
        """Return the norm by one fused call; None when the sum exists already."""
        partial = self.partial
        if self._made is not None or partial._made is not None:
            return None
        out, self._made = partial.normed(self.residual, weight, eps)
        return out


def _real(value: Any) -> Any:
    return value.value() if isinstance(value, Held) else value


def _sum(a: Any, b: Any) -> Any:
    """Return a sum, held back when one side is a part and the other a tensor."""
    part, other = (a, b) if isinstance(a, Partial) else (b, a)
    if isinstance(part, Partial):
        other = _real(other)
        if part.fits(other):
            return Pending(part, other)
    return _real(a) + _real(b)


# Finding the modules.


def fuse_modules(model: nn.Module, group: Any, report: Report) -> None:
    """Let row-parallel layers hold back, and norms take what is held back."""
    norms = {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__.endswith("RMSNorm")
    }
    usable = {}
    for name, module in norms.items():
        why = _unlike(module)
        if why:
            report.refuse(name, why)
        else:
            usable[name] = module
    layers = [
        module
        for module in model.modules()
        if getattr(module, "reduce_results", None) is True
    ]
    if not layers:
        report.refuse(
            type(model).__name__,
            "no layer has reduce_results=True, as row-parallel layers of vLLM, SGLang "
            "and of the examples have; compile the model: fuse(model, compile=True)",
        )
        return
    if not usable:
        report.refuse(type(model).__name__, "it has no RMSNorm that is known here")
        return
    for layer in layers:
        layer.forward = functools.partial(
            _held_back, layer.forward, layer, group, report
        )
    for module in usable.values():
        name = next(n for n in _EPS if hasattr(module, n))
        module.forward = functools.partial(_norm, module.forward, module, name)
    report.fused += len(usable)


def _held_back(
    forward: Callable[..., Any],
    layer: nn.Module,
    group: Any,
    report: Report,
    *args: Any,
    **options: Any,
) -> Any:
    """Run a layer without its all_reduce; its sum is made when it is used.

    Where code is compiled, or a gradient is wanted, the layer is what it was.
    """
    given = list(map(_real, args))
    if torch.compiler.is_compiling() or _learns(layer, given):
        return forward(*given, **options)
    own = layer.__dict__  # setting an attribute of a module costs microseconds
    own["reduce_results"] = False
    try:
        made = forward(*given, **options)
    finally:
        own["reduce_results"] = True
    out, *rest = made if isinstance(made, tuple) else (made,)
    of_layer = own["group"] if "group" in own else getattr(layer, "group", group)
    comm = communicator_of(of_layer)
    if out._base is not None or id(out) in map(id, given):
        out = out.clone()  # it is somebody else's, too
    held: Any = Partial(out, comm, report)
    if out.is_cuda and out.nbytes > fused_up_to(comm):
        held = held.value()  # a norm of its own is faster then
    return (held, *rest) if isinstance(made, tuple) else held


def _learns(layer: nn.Module, given: list[Any]) -> bool:
    """Return whether a gradient is wanted of what a layer makes."""
    if not torch.is_grad_enabled():
        return False
    tensors = [one for one in given if isinstance(one, Tensor)]
    return any(t.requires_grad for t in (*tensors, *layer.parameters(recurse=False)))


def _norm(
    forward: Callable[..., Any],
    module: Any,
    eps: str,
    x: Any,
    *rest: Any,
    **options: Any,
) -> Any:
    """Norm what is held back by one fused call; anything else as before.

    `eps` is what the module calls it.
    """
    if len(rest) == 1 and not options and isinstance(x, Partial):
        if x.fits(rest[0]):
            return x.normed(rest[0], module.weight, float(getattr(module, eps)))
        total = _sum(x, rest[0])  # norm(x, residual) returns both
        made = _norm(forward, module, eps, total)
        return made, _real(total)
    if isinstance(x, Pending) and not rest and not options:
        made = x.normed(module.weight, float(getattr(module, eps)))
        if made is not None:
            return made
    return forward(_real(x), *map(_real, rest), **options)


def _eps(module: nn.Module) -> float:
    found = [getattr(module, n) for n in _EPS if hasattr(module, n)]
    return float(found[0])


def _unlike(module: nn.Module) -> str:
    """Return why a norm is not the one that is fused, or nothing."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return "it has no weight of one axis"
    if not any(isinstance(getattr(module, n, None), float) for n in _EPS):
        return f"it has none of {', '.join(_EPS)}"
    x = torch.linspace(-2, 3, 2 * weight.numel(), dtype=torch.float32)
    x = x.view(2, -1).to(weight.device, weight.dtype)
    with torch.no_grad():
        got = module(x)
        s = x.float()
        want = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + _eps(module))
        want = want * weight.float()
    if not isinstance(got, Tensor) or got.dtype != x.dtype:
        return "its output has another type than its input"
    if not torch.allclose(got.float(), want, rtol=_CLOSE, atol=_CLOSE):
        return "it computes something else than x / sqrt(mean(x * x) + eps) * weight"
    return ""
