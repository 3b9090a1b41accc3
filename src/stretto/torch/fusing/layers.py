"""Layers that sum over ranks: whether one may hold its sum back is tried, not believed.

    layer(x), without its all_reduce, and then ours  ==  layer(x), as it is

bit for bit, on all ranks: on rows of several sizes that one rank has alone, on whole
numbers of all ranks, and where the sum overflows; with its weights and with others.
Sums are exact in these, or of two numbers, so that the order in which ranks are added
is nothing that the two sides could differ in.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stretto.runtime.calls import Communicator
from stretto.torch.fusing.held import is_alone, is_plain
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

_WIDTHS = ("input_size_per_partition", "in_features", "input_size")
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_SIZES = (1e-3, 1.0, 1e3)
_SPARSE = 8
"""Numbers of a row that are not 0, so that whole ones stay exact in 16 bits."""


@dataclass
class Layer:
    """A layer that may hold back its sum, for inputs like those it was tried with."""

    module: nn.Module
    name: str
    comm: Communicator
    forward: Callable[..., Any]
    width: int = 0
    dtype: torch.dtype = torch.float32
    dims: frozenset[int] = frozenset()
    look: Any = None
    is_known: bool = True
    """False from the moment when it did something that it did not when it was tried."""

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        first = next(self.module.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device

    def takes(self, args: Any, options: Any) -> bool:
        """Return whether a call is one of those that were tried."""
        if len(args) != 1 or options or not self.is_known:
            return False
        x = args[0]
        return (
            is_plain(x)
            and x.dtype is self.dtype
            and x.dim() in self.dims
            and x.shape[-1] == self.width
            and x.device == self.device
            and x.numel() > 0
            and look_of(self.module) == self.look
        )

    def part(self, *args: Any) -> Any:
        """Run the layer without its sum."""
        own = self.module.__dict__  # an attribute of a module costs microseconds to set
        with self.lock:
            had = own.get("reduce_results")
            own["reduce_results"] = False
            try:
                return self.forward(*args)
            finally:
                if had is None:
                    del own["reduce_results"]
                else:
                    own["reduce_results"] = had


def try_layer(layer: Layer) -> str:
    """Return why a layer is left alone, or nothing (collective)."""
    try:
        _find_input(layer)
        inputs = [(how, x) for how in ("as they are", "whole") for x in _in(layer, how)]
        held, why = _without_sums(layer, inputs)
        _all(layer.comm, why, str([(h["out"].shape, h["out"].dtype) for h in held]))
        flat = torch.cat([one["out"].flatten() for one in held])
        layer.comm.all_reduce(flat)
        sizes = [one["out"].numel() for one in held]
        sums = [
            t.view_as(h["out"]) for t, h in zip(flat.split(sizes), held, strict=True)
        ]
        _all(layer.comm, _as_it_is(layer, inputs, held, sums))
    except Unlike as e:
        return str(e)
    layer.look = look_of(layer.module)
    return ""


def _all(comm: Communicator, why: str, also: str = "") -> None:
    """Raise on all ranks if one has a reason, or what else they hold differs."""
    if not agreed(comm, f"{also} {bool(why)}") or why:
        raise Unlike(why or ELSEWHERE)


def _find_input(layer: Layer) -> None:
    """Find what the layer takes: width, type, and whether rows may come in batches."""
    module = layer.module
    given = list(module.parameters())
    widths = [getattr(module, name, None) for name in _WIDTHS]
    widths += [size for p in given if p.dim() == 2 for size in reversed(p.shape)]
    types = [getattr(module, "params_dtype", None), *(p.dtype for p in given)]
    types.append(torch.get_default_dtype())
    layer.dtype = next(t for t in types if t in _TYPES)
    wanted = [w for w in dict.fromkeys(widths) if isinstance(w, int) and w > 0]
    why = "" if wanted else "no input is known that it could be tried on"
    _all(layer.comm, why, f"{wanted} {layer.dtype}")
    said = ""
    for layer.width in wanted:
        said = _fails(layer, (2, layer.width))
        if agreed(layer.comm, "yes" if not said else "no") and not said:
            break
    else:
        raise Unlike(f"no input is known that it could be tried on: {said}")
    said = _fails(layer, (2, 2, layer.width))
    both = agreed(layer.comm, "yes" if not said else "no") and not said
    layer.dims = frozenset((2, 3) if both else (2,))


def _fails(layer: Layer, shape: tuple[int, ...]) -> str:
    x = torch.zeros(shape, dtype=layer.dtype, device=layer.device)
    try:
        with quiet(layer.module), stand_ins(layer.module, "as they are"):
            layer.part(x)
    except Exception as e:  # whatever a layer raises
        return reason(e)
    return ""


def _in(layer: Layer, how: str) -> Iterator[Tensor]:
    """Return this rank's part of inputs, for tensors that are `how`."""
    comm, width = layer.comm, layer.width
    like = torch.empty(0, dtype=layer.dtype, device=layer.device)
    ranks, mine = comm.num_ranks, comm.rank
    sizes = torch.tensor(_SIZES, device=like.device).repeat_interleave(ranks)[:, None]
    alone = sizes * drawn([len(sizes), width], like, mine)
    alone[torch.arange(len(sizes)) % ranks != mine] = 0
    yield alone.to(like.dtype)
    if 3 in layer.dims:
        yield alone.view(len(_SIZES), ranks, width).to(like.dtype)
    if how == "as they are":
        if ranks <= 2:
            yield drawn([4, width], like, mine + 100).to(like.dtype)
        return
    yield alone[:ranks].to(like.dtype)  # nothing large among it
    whole = torch.zeros(5, width, device=like.device)
    first = torch.arange(5, device=like.device)[:, None] * 7
    places = first + torch.arange(_SPARSE, device=like.device)
    values = drawn([5, _SPARSE], like, mine + 200).mul(2).round().clamp(-2, 2)
    whole.scatter_(1, places % width, values)
    yield whole.to(like.dtype)
    yield whole[:1].to(like.dtype)
    most = torch.zeros(2, width, device=like.device, dtype=torch.float64)
    most[:, 0] = 2.0 ** (math.ceil(math.log2(torch.finfo(like.dtype).max)) - 2)
    yield most.to(like.dtype)


def _without_sums(layer: Layer, inputs: list[Any]) -> tuple[list[Any], str]:
    """Return what the layer makes without its sums, and why that cannot be held."""
    held: list[Any] = []
    try:
        for how, x in inputs:
            given = x.clone()
            with quiet(layer.module), stand_ins(layer.module, how):
                made = _alone(layer.part(x))
                _alone(layer.part(x.flip(0)))
            why = _unfit(made, x, given)
            if why:
                return [], why
            held.append(made)
    except Exception as e:  # whatever a layer raises
        return [], reason(e)
    return held, ""


def _as_it_is(layer: Layer, inputs: list[Any], held: list[Any], sums: Any) -> str:
    """Run the layer with its sums, on all ranks as often; return what differs."""
    why = ""
    for (how, x), part, total in zip(inputs, held, sums, strict=True):
        given = x.clone()
        try:
            with quiet(layer.module), stand_ins(layer.module, how):
                plain = _taken_apart(layer.forward(x))
            if not identical(plain["out"], total.view_as(part["out"])):
                why = (
                    "its result is not the sum over these ranks of what it makes with "
                    "reduce_results=False"
                )
            elif not _same_rest(part, plain):
                why = "what it returns beside the sum is not the same without the sum"
            elif not identical(x, given):
                why = "it changes its input"
        except Exception as e:  # whatever a layer raises
            why = reason(e)
    return why


def _taken_apart(made: Any) -> dict[str, Any]:
    """Return what a layer returned: its output, and what comes with that."""
    kind = type(made)
    if kind is tuple and made and all(one is None or is_plain(one) for one in made[1:]):
        out, *rest = made
    else:
        out, rest = made, []
    del made
    if not is_plain(out):
        raise Unlike(f"it returns a {type(out).__name__}; want a tensor, or a tuple")
    first = out.clone()
    return {"out": out, "copy": first, "rest": rest, "kind": kind}


def _alone(made: Any) -> dict[str, Any]:
    """Return what a layer made, which nobody else has, nor the layer itself."""
    held = _taken_apart(made)
    del made
    if not is_alone(held, "out"):
        raise Unlike("its output belongs to somebody else, too")
    return held


def _unfit(held: Any, x: Tensor, given: Tensor) -> str:
    """Return why what a layer made cannot be held back."""
    out = held["out"]
    if not out.is_floating_point() or out.dim() != x.dim() or not out.is_contiguous():
        return f"its output is of {out.dtype}, {tuple(out.shape)}, {out.stride()}"
    if not identical(out, held["copy"]):
        return "it writes its output again in its next call"
    return "" if identical(x, given) else "it changes its input"


def _same_rest(held: Any, plain: Any) -> bool:
    if held["kind"] is not plain["kind"] or len(held["rest"]) != len(plain["rest"]):
        return False
    return all(map(_alike, held["rest"], plain["rest"]))


def _alike(a: Any, b: Any) -> bool:
    return a is b or identical(a, b)
