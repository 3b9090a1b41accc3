"""Runs of a module on numbers of ours, after which it is what it was before.

Its tensors stand aside meanwhile, for copies or for numbers that are drawn anew: what
is zero or one until weights are loaded says nothing about a layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from stretto.runtime.calls import Communicator

ELSEWHERE = "another rank leaves it alone; its report says why"
_SEED = 20261
_PERIOD = 4099
"""Numbers that are drawn for a tensor, and then repeated: prime, so rows differ."""
_PLAIN = (bool, int, float, str, type(None))


class Unlike(Exception):
    """A module that is left alone; says why."""


def reason(e: Exception) -> str:
    """Return what to say of a run that failed, or found something."""
    return str(e) if isinstance(e, Unlike) else f"{type(e).__name__}: {e}"


def agreed(comm: Communicator, text: str) -> bool:
    """Return whether all ranks hold the same text (collective)."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
    words = torch.tensor([number, -number], dtype=torch.int64, device="cpu")
    comm.all_reduce(words, "min")
    return bool(words[0] == -words[1])


def look_of(module: nn.Module) -> Any:
    """Return what a module says of itself in plain values, apart from its tensors."""
    own = module.__dict__
    return (
        {k: v for k, v in own.items() if type(v) in _PLAIN},
        [name for name, one in own["_parameters"].items() if one is None],
    )


def identical(a: Any, b: Any) -> bool:
    """Return whether two results are the same, bit for bit but for kinds of NaN."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    equal = (a == b) & (a.signbit() == b.signbit())
    return bool((equal | (a.isnan() & b.isnan())).all())


def drawn(shape: Any, like: Tensor, seed: int) -> Tensor:
    """Return numbers from the normal distribution, the same for the same seed."""
    drawer = torch.Generator("cpu").manual_seed(_SEED + seed)
    made = torch.randn(shape, generator=drawer, device="cpu", dtype=torch.float32)
    return made.to(like.device)


@contextlib.contextmanager
def quiet(module: nn.Module) -> Iterator[None]:
    """Run a module without gradients and casts; leave no trace, whatever it does.

    Raises:
        Unlike: It drew random numbers.
    """
    kept = [(m, dict(m.__dict__), _insides(m)) for m in module.modules()]
    first = next((t for t in _tensors(module)), None)
    device = "cpu" if first is None else first.device.type
    on = [first.device] if first is not None and first.is_cuda else []
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            torch.random.fork_rng(devices=on),
            torch.no_grad(),
            torch.autocast(device, enabled=False),
        ):
            states = _chances(on)
            yield
            if any(map(_differ, states, _chances(on))):
                raise Unlike("it draws random numbers")
    finally:
        for one, attributes, insides in kept:
            one.__dict__.clear()
            one.__dict__.update(attributes)
            for container, content in insides:
                _refill(container, content)


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.equal(a, b)


def _chances(devices: list[Any]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _insides(module: nn.Module) -> list[tuple[Any, Any]]:
    """Return a module's dictionaries, lists and sets, with copies of them."""
    all_of = module.__dict__.values()
    return [(one, one.copy()) for one in all_of if isinstance(one, dict | list | set)]


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Return every tensor that a module has, once."""
    found: dict[int, Tensor] = {}
    for one in module.modules():
        own = one.__dict__
        for value in (
            *own["_parameters"].values(),
            *own["_buffers"].values(),
            *own.values(),
        ):
            if isinstance(value, Tensor):
                found[id(value)] = value
    return list(found.values())


@contextlib.contextmanager
def stand_ins(module: nn.Module, how: str) -> Iterator[None]:
    """Let a module's tensors be copies, or be drawn anew: "whole" numbers, or "any"."""
    kept: list[tuple[Tensor, Tensor]] = []
    try:
        for at, tensor in enumerate(_tensors(module)):
            data = tensor.data
            if data.is_meta:
                raise Unlike("its tensors have no memory yet; load it first")
            kept.append((tensor, data))
            made = data.clone()
            if how != "as they are" and made.is_floating_point():
                made.copy_(_filled(made, how, at))
            tensor.data = made
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data


def _filled(like: Tensor, how: str, seed: int) -> Tensor:
    """Return numbers from 1 to 2 with a sign, whole ones if so wanted."""
    few = drawn([min(_PERIOD, max(like.numel(), 1))], like, seed)
    size = 1 + few.abs().clamp(max=1)
    size = size.round() if how == "whole" else size
    few = size * torch.where(few < 0, -1.0, 1.0)
    times = -(-like.numel() // len(few))
    return few.repeat(max(times, 1))[: like.numel()].view(like.shape)
