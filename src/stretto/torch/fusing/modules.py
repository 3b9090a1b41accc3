"""Fusion without a compiler: layers hold back their sums until a norm takes them.

Which layers and norms are meant is read from the model; that they are what they seem is
tried when the model is fused, by all ranks together. A layer or norm that one rank
refuses is left alone by all, and so is a call that is none of those that were tried.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._device import DeviceContext

from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.fusing.held import (
    HeldSum,
    PartialSum,
    is_alone,
    is_plain,
    real,
    settle,
)
from stretto.torch.fusing.layers import Layer, try_layer
from stretto.torch.fusing.normings import Norm, try_norm
from stretto.torch.fusing.report import FuseReport
from stretto.torch.fusing.trials import ELSEWHERE, agreed
from stretto.torch.operators.library import communicator_of
from stretto.torch.operators.norms import fused_up_to


def fuse_modules(model: nn.Module, group: Any, report: FuseReport) -> None:
    """Let row-parallel layers hold back, and norms take what is held back (collective).

    A model that was fused before is tried anew.
    """
    for module in model.modules():
        _unwrap(module)
    layers = _layers(model, group, report)
    norms = _norms(model)
    comms = list(dict.fromkeys(layer.comm for layer in layers))
    names = f"{[one.name for one in layers]} {[one.name for one in norms]}"
    for comm in comms:
        if not agreed(comm, names):
            report.refuse(
                type(model).__name__,
                f"this rank has other layers or norms than another: {names}",
            )
            return
    usable = [norm for norm in norms if _agreed_norm(norm, comms, report)]
    if layers and not usable:
        report.refuse(type(model).__name__, "it has no RMSNorm that is known here")
        return
    for layer in layers:
        why = try_layer(layer)
        if why:
            report.refuse(layer.name, why)
            continue
        own = functools.partial(_held_back, layer, group, report)
        layer.module.forward = own
        report.layers += 1
    if report.layers:
        for norm in usable:
            norm.module.forward = functools.partial(_normed, norm)
        report.fused += len(usable)


def _unwrap(module: nn.Module) -> None:
    """Let a module be what it was before it was fused."""
    own = module.__dict__.get("forward")
    if isinstance(own, functools.partial) and own.func in (_held_back, _normed):
        before = own.args[0].forward
        del module.__dict__["forward"]
        if before != module.forward:
            module.forward = before


def _layers(model: nn.Module, group: Any, report: FuseReport) -> list[Layer]:
    """Return the layers that have a flag for their all_reduce, and a group of ours."""
    found = [
        (name or type(model).__name__, module)
        for name, module in model.named_modules()
        if getattr(module, "reduce_results", None) is True
    ]
    layers = []
    for name, module in found:
        try:
            comm = communicator_of(_group_of(module, group))
        except CallError as e:
            report.refuse(name, str(e))
        else:
            layers.append(Layer(module, name, comm, module.forward))
    if not found:
        report.refuse(
            type(model).__name__,
            "no layer has reduce_results=True, as row-parallel layers of vLLM, SGLang "
            "and of the examples have; compile the model: fuse(model, compile=True)",
        )
    return layers


def _group_of(module: nn.Module, group: Any) -> Any:
    own = module.__dict__
    return own["group"] if "group" in own else getattr(module, "group", group)


def _norms(model: nn.Module) -> list[Norm]:
    return [
        Norm(module, name or type(model).__name__, module.forward)
        for name, module in model.named_modules()
        if type(module).__name__.endswith("RMSNorm")
    ]


def _agreed_norm(norm: Norm, comms: list[Communicator], report: FuseReport) -> bool:
    """Try a norm; return whether all ranks take it for the same (collective)."""
    if not comms:
        return False
    norm.comms = comms
    why = try_norm(norm)
    alike = [agreed(comm, why or norm.says()) for comm in comms]
    if why or not all(alike):
        report.refuse(norm.name, why or ELSEWHERE)
        return False
    return True


# Calls.


def _is_watched() -> bool:
    """Return whether a call is traced, faked, cast or transformed; none tried was."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or any(map(_looks_at_calls, range(torch._C._len_torch_function_stack())))
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or torch.jit.is_tracing()
    )


def _looks_at_calls(nth: int) -> bool:
    """Return whether a mode sees more of calls than where they make new tensors.

    A default device, `torch.set_default_device("cuda")`, is a mode as well.
    """
    return type(torch._C._get_function_stack_at(nth)) is not DeviceContext


def _held_back(
    layer: Layer, group: Any, report: FuseReport, *args: Any, **options: Any
) -> Any:
    """Run a layer without its all_reduce; its sum is made when it is looked at.

    Where code is compiled, a gradient is wanted, or the call is none of those that were
    tried, the layer is what it was.
    """
    if torch.compiler.is_compiling():
        return layer.forward(*args, **options)
    args = tuple(map(real, args))
    options = {name: real(one) for name, one in options.items()}
    with layer.lock:  # `reduce_results` is nobody else's meanwhile
        if not _may_hold(layer, group, args, options):
            return layer.forward(*args, **options)
        settle(layer.comm)
        made = layer.part(*args)
        rest = made[1:] if type(made) is tuple else None
        part = PartialSum(made if rest is None else made[0], layer.comm, report)
        del made
        held = _hold(part, args[0])
        if held is not None:
            return held if rest is None else (held, *rest)
        layer.is_known = False
        report.refuse(layer.name, "it kept, or shared, what it returned in some call")
        return layer.forward(*args, **options)


def _may_hold(layer: Layer, group: Any, args: Any, options: Any) -> bool:
    """Return whether a call is like those that were tried."""
    if not layer.takes(args, options) or _is_watched():
        return False
    if torch.is_grad_enabled():
        tensors = (*args, *layer.module.parameters())
        if any(t.requires_grad for t in tensors):
            return False
    try:
        return communicator_of(_group_of(layer.module, group)) is layer.comm
    except CallError:
        return False


def _hold(part: PartialSum, x: Tensor) -> Tensor | None:
    """Return a sum that is held back, or made where that is faster; None: neither.

    A part that is not the layer's to give away cannot become the sum.
    """
    out = part.tensor
    if not is_plain(out) or not out.is_contiguous():
        return None
    if out.is_neg() or out.is_conj() or out is x:
        return None
    del out
    if not is_alone(part.__dict__, "tensor"):
        return None
    x = part.tensor
    if is_too_large(x, part.comm):
        part.comm.all_reduce(x)
        return x
    return part.hold()


def is_too_large(x: Tensor, comm: Communicator) -> bool:
    """Return whether a norm of its own is faster than one fused call."""
    return bool(x.is_cuda and x.nbytes > fused_up_to(comm))


def _normed(norm: Norm, *args: Any, **options: Any) -> Any:
    """Norm what is held back by one fused call; anything else as before."""
    if torch.compiler.is_compiling():
        return norm.forward(*args, **options)
    if args and not options and type(args[0]) is HeldSum:
        held, *rest = args
        if not rest and norm.alone and _may_norm(norm, held, with_residual=True):
            return held.normed(*norm.arguments())
        if len(rest) == 1 and norm.pair:
            residual = real(rest[0])
            if _fits(residual, held) and _may_norm(norm, held, with_residual=False):
                return _pair(norm, held, residual)
    options = {name: real(one) for name, one in options.items()}
    return norm.forward(*map(real, args), **options)


def _may_norm(norm: Norm, held: HeldSum, *, with_residual: bool) -> bool:
    part = held.waits(with_residual=with_residual)
    return part is not None and norm.takes(part.tensor) and not _is_watched()


def _fits(residual: Any, held: HeldSum) -> bool:
    """Return whether a residual is one of the fused call."""
    return (
        is_plain(residual)
        and (residual.dtype, residual.shape) == (held.dtype, held.shape)
        and residual.device == held.device
        and residual.is_contiguous()
        and not (torch.is_grad_enabled() and residual.requires_grad)
    )


def _pair(norm: Norm, held: HeldSum, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm and the sum with the residual, where the module leaves them."""
    part = held.waits(with_residual=False)
    assert part is not None  # the caller has asked
    weight, eps = norm.arguments()
    changed = norm.pair in ("both", "residual")
    out, total = part.normed(residual, weight, eps, in_place=changed)
    if norm.pair == "both":
        held.becomes(out)
    return out, total
