"""How an operator of `torch.ops.stretto` is made: schema, kernels, shapes, gradient.

Groups come as texts, since graphs hold texts: a group's name, one given by `named`, or
nothing at all for the default group of the moment.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from stretto.errors import CallError
from stretto.runtime.calls import Communicator, Work
from stretto.torch.registry import communicator
from stretto.torch.untraced import untraced

untraced(Communicator)  # of any group: it lives below PyTorch, and cannot say so
untraced(Work)
LIBRARY = torch.library.Library("stretto", "FRAGMENT")
"""Keeps the registrations alive."""
_KERNELS = ("CPU", "CUDA")
_plain_types = (torch.Tensor, torch.nn.Parameter)
_names: weakref.WeakKeyDictionary[Communicator, str] = weakref.WeakKeyDictionary()
_by_name: weakref.WeakValueDictionary[str, Communicator] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_PREFIX = "stretto communicator "


def named(comm: Communicator) -> str:
    """Return a text that graphs know a communicator by, as long as it lives."""
    name = _names.get(comm)
    if name is None:
        name = _names[comm] = f"{_PREFIX}{next(_numbers)}"
        _by_name[name] = comm
    return name


def resolve(group: str) -> Communicator:
    """Return the communicator that a text stands for, now."""
    found = _by_name.get(group) if group.startswith(_PREFIX) else None
    return communicator(group or None) if found is None else found


def text_of(group: Any) -> str:
    """Return the text of a group: what an operator takes."""
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    if isinstance(group, Communicator):
        if torch.compiler.is_compiling():
            raise CallError(
                "a Communicator in compiled code; pass stretto.torch.named(comm), "
                "made outside of it, or a group of torch.distributed"
            )
        return named(group)
    return str(group.group_name)


def communicator_of(group: Any) -> Communicator:
    """Return the communicator of whatever a plain function was given."""
    return resolve(group) if isinstance(group, str) else communicator(group)


def in_graph(*tensors: torch.Tensor | None) -> bool:
    """Return whether a call has to be an operator's.

    That is where it is traced, faked or differentiated, or a tensor is strided.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    for one in tensors:
        if one is None:
            continue
        if type(one) not in _plain_types or not one.is_contiguous():
            return True
        if one.is_conj() or one.is_neg():
            return True
        if one.requires_grad and torch.is_grad_enabled():
            return True
    return False


def define(
    schema: str,
    kernel: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    context: Callable[..., Any] | None = None,
) -> None:
    """Define `stretto::...`: one kernel for CPU and CUDA, its shapes, its gradient.

    Without a `context` a gradient knows the first input's shape and, by their names,
    all inputs that are no tensors; and it is the first input's alone.
    """
    name = f"stretto::{schema.partition('(')[0]}"
    LIBRARY.define(schema)
    for key in _KERNELS:
        LIBRARY.impl(schema.partition("(")[0], untraced(kernel), key)
    torch.library.register_fake(name, fake, lib=LIBRARY)
    if backward is None:
        return
    if context is None:
        names = [word.split()[-1] for word in _inputs_of(schema)]
        context = functools.partial(_keep, names)
        backward = functools.partial(_of_first, backward, len(names))
    torch.library.register_autograd(name, backward, setup_context=context, lib=LIBRARY)


def _inputs_of(schema: str) -> list[str]:
    """Return the inputs of a schema, as it spells them."""
    return schema[schema.index("(") + 1 : schema.index(") ->")].split(",")


def _keep(names: list[str], ctx: Any, inputs: Any, output: Any) -> None:
    for name, value in zip(names, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            setattr(ctx, name, value)
    ctx.shape = inputs[0].shape


def _of_first(back: Callable[..., Any], many: int, ctx: Any, grad: Any) -> Any:
    return back(ctx, grad), *[None] * (many - 1)
