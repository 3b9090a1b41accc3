"""Sums over ranks that are held back: tensors that are made when they are looked at.

A layer that would all_reduce its output gives a `HeldSum` instead. A residual may be
added to it, and a norm of that is one fused call. Everything else that is done with it
makes the sum first: the part of one rank is nowhere to be seen, since a `HeldSum` has
no memory of its own. It is right by what nobody else can do, not by what a model is
expected to:

    the part       belongs to this `PartialSum` alone, counted by owners (`is_alone`)
    the residual   is copied, unless it belongs to a `HeldSum` alone, which makes
                   whoever waits for it before it is given to anybody
    the collective is made once by every rank, in the order of the layers' calls: before
                   the next layer's, or when nobody can ask for it any more; and by the
                   same kind of call on every rank, whoever looks at it
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stretto.errors import CallError
from stretto.runtime.calls import Communicator
from stretto.torch.fusing.report import FuseReport
from stretto.torch.operators.norms import (
    EPS,
    add_norm,
    in_kernel,
    normed,
    normed_,
    run_fused,
)

_log = logging.getLogger("stretto.torch")
_held_of: weakref.WeakKeyDictionary[Communicator, weakref.ref[PartialSum]] = (
    weakref.WeakKeyDictionary()
)
"""The sum of each communicator that was held back last."""
_uses = getattr(Tensor, "_use_count", lambda _: 0)
_plain_types = (Tensor, torch.nn.Parameter)


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile calls, and does not look into."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")  # a slow import, often not needed
        return function(*args) if dynamo is None else dynamo.disable(function)(*args)

    return call


class PartialSum:
    """This rank's part of a sum over ranks; it becomes the sum, once."""

    def __init__(self, tensor: Tensor, comm: Communicator, report: FuseReport) -> None:
        self.tensor, self.comm, self.report = tensor, comm, report
        self.is_open = False
        """Whether the sum is still to be made."""
        self.error: BaseException | None = None

    def hold(self) -> HeldSum:
        """Return the sum, to be made later."""
        x = self.tensor
        self.version = None if x.is_inference() else x._version
        self.stream = _stream_of(x)
        self.maker = os.getpid(), threading.get_ident()
        self.is_open = True
        _held_of[self.comm] = weakref.ref(self)
        return HeldSum(self)

    @_untraced
    def sum(self) -> Tensor:
        """Return the sum over ranks, made now if it was not."""
        if self.is_open:
            x = self.tensor
            with self._making(), _on(x, self.stream):
                if in_kernel(x):  # as other ranks may do it that go on to a norm
                    out, total = torch.empty_like(x), torch.empty_like(x)
                    made = {"out": out, "residual": total}
                    given = {"residual": torch.zeros_like(x), "eps": EPS}
                    given["weight"] = x.new_ones(x.shape[-1])
                    run_fused(self.comm, add_norm, x, made, **given)
                else:
                    self.comm.all_reduce(x)
        if self.error is not None:
            raise self.error
        return self.tensor

    def normed(
        self, residual: Tensor, weight: Tensor, eps: float, *, in_place: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of the sum with a residual, and that sum, by one call."""
        with self._making():
            self.report.calls += 1
            x, comm = self.tensor, self.comm
            if in_place:
                return normed_(comm, x, residual, weight, eps), residual
            return normed(comm, x, residual, weight, eps, keep=False)

    def can_be_normed(self) -> bool:
        """Return whether a norm may make the sum, here and now."""
        return self.is_open and self.stream == _stream_of(self.tensor)

    @contextlib.contextmanager
    def _making(self) -> Any:
        self.is_open = False
        try:
            if self.version is not None and self.version != self.tensor._version:
                raise CallError(
                    "fuse: a part of a sum over ranks was changed after its layer had "
                    "returned it, by something that does not own it; leave this model "
                    "as it is"
                )
            yield
        except BaseException as e:
            self.error = e
            raise

    def __del__(self) -> None:
        """Make the sum that nobody looked at: other ranks may have done so."""
        if not getattr(self, "is_open", False) or sys.is_finalizing():
            return
        if self.maker == (os.getpid(), threading.get_ident()):
            try:
                self.sum()
            except Exception as e:
                _log.warning("a sum over ranks that was held back failed: %s", e)


def settle(comm: Communicator) -> None:
    """Make the sum of a communicator that is held back, if there is one."""
    last = _held_of.get(comm)
    part = None if last is None else last()
    if part is not None and part.is_open:
        part.sum()


class HeldSum(Tensor):  # type: ignore[misc]
    """A sum over ranks, or of that and a residual, made when it is looked at."""

    _part: PartialSum
    _residual: Tensor | HeldSum | None
    _made: Tensor | None
    _readers: list[weakref.ref[HeldSum]]

    @staticmethod
    def __new__(cls: Any, part: PartialSum, residual: Any = None) -> HeldSum:
        """Make a tensor that has a shape and a type, and no memory."""
        x = part.tensor
        made = Tensor._make_wrapper_subclass(
            cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device
        )
        made._part, made._residual, made._made = part, residual, None
        made._readers = []
        return made  # type: ignore[no-any-return]

    def __init__(self, *_: Any) -> None:
        """Do nothing: `__new__` has."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Hold back sums, and say what all ranks know; else be the tensor."""
        if func in _ADDS and len(args) == 2 and not kwargs:
            return _sum(*args)
        if func in _KNOWN and type(args[0]) is HeldSum and args[0]._made is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = torch.utils._pytree.tree_map(real, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Be the tensor for whoever comes from C++."""
        args, kwargs = torch.utils._pytree.tree_map(real, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    def __add__(self, other: Any) -> Any:  # quicker than by __torch_function__
        return _sum(self, other)

    def __radd__(self, other: Any) -> Any:
        return _sum(other, self)

    def waits(self, *, with_residual: bool) -> PartialSum | None:
        """Return the part, if a norm can still make the sum."""
        fits = self._made is None and (self._residual is not None) == with_residual
        return self._part if fits and self._part.can_be_normed() else None

    def normed(self, weight: Tensor, eps: float) -> Tensor:
        """Return the norm of the sum with its residual, by one call."""
        residual = _read(self._residual)
        out, total = self._part.normed(residual, weight, eps, in_place=False)
        self._made, self._residual = total, None
        return out

    def becomes(self, made: Tensor) -> None:
        """Take what a norm left in place of the sum."""
        self._made = made

    @_untraced
    def value(self) -> Tensor:
        """Return the tensor to somebody who may keep or change it."""
        for reader in self._readers:
            waiting = reader()
            if waiting is not None:
                waiting._settled()
        self._readers.clear()
        return self._settled()

    def _settled(self) -> Tensor:
        if self._made is None:
            total = self._part.sum()
            if self._residual is not None:
                total = _read(self._residual) + total
            self._made, self._residual = total, None
        return self._made

    def plus(self, other: Any) -> HeldSum | None:
        """Return the sum with a residual, held back too; None where it cannot be."""
        if self._made is not None or self._residual is not None:
            return None
        if type(other) is HeldSum and other._made is None and not other._part.is_open:
            other._settled()  # without a collective
        its: Any = other._made if type(other) is HeldSum else other
        if not is_plain(its) or not self._part.can_be_normed():
            return None
        x = self._part.tensor
        if (its.dtype, its.shape, its.device) != (x.dtype, x.shape, x.device):
            return None
        if not its.is_contiguous() or (torch.is_grad_enabled() and its.requires_grad):
            return None
        if type(other) is HeldSum and is_alone(other.__dict__, "_made", 1):
            made = HeldSum(self._part, other)
            other._readers.append(weakref.ref(made))
        else:
            made = HeldSum(self._part, its.clone())
        self._readers.append(weakref.ref(made))
        return made


def _read(residual: Any) -> Tensor:
    """Return a residual to read: what belongs to a `HeldSum` has been made."""
    return residual._made if type(residual) is HeldSum else residual


def real(value: Any) -> Any:
    """Return the tensor that is held back; anything else as it is."""
    return value.value() if type(value) is HeldSum else value


def is_plain(value: Any) -> bool:
    """Return whether this is a tensor that is nothing else: dense, and no subclass."""
    return type(value) in _plain_types and value.layout is torch.strided


def _sum(a: Any, b: Any) -> Any:
    """Return a sum, held back when one side is a part and the other a tensor."""
    for one, other in ((a, b), (b, a)):
        if type(one) is HeldSum:
            made = one.plus(other)
            if made is not None:
                return made
    return real(a) + real(b)


_ADDS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_KNOWN = {
    *(getattr(Tensor, n).__get__ for n in ("shape", "dtype", "device", "ndim")),
    *(getattr(Tensor, n).__get__ for n in ("is_cuda", "is_cpu", "layout")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
}
"""What is asked of a tensor, and does not look at its numbers."""


# Owners.


def _owners(place: dict[str, Any], name: str) -> tuple[int, ...]:
    tensor = place[name]
    memory, base = tensor.untyped_storage(), tensor._base
    return (
        sys.getrefcount(tensor),
        _uses(tensor),
        torch._C._storage_Use_Count(memory._cdata),
        sys.getrefcount(memory),
        *(() if base is None else (sys.getrefcount(base), _uses(base))),
    )


_ONE = {
    _owners({"it": torch.zeros(1)}, "it"),
    _owners({"it": torch.zeros(1).view(1, 1)}, "it"),
}
"""What is counted where there is one owner, in this version of Python; so too of a view
whose base has no other owner."""


def is_alone(place: dict[str, Any], name: str, extra: int = 0) -> bool:
    """Return whether a tensor belongs to the one place that it is in.

    Nobody else has it, nor a view of it, nor its memory, which it fills. `extra`
    counts those who call and hold it in a variable meanwhile.
    """
    tensor = place[name]
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        return False
    first, *rest = _owners(place, name)
    return (first - extra - 1, *rest) in _ONE


# Streams.


def _stream_of(x: Tensor) -> Any:
    if not x.is_cuda:
        return None
    return torch._C._cuda_getCurrentRawStream(x.get_device())


@contextlib.contextmanager
def _on(x: Tensor, stream: Any) -> Any:
    """Work on the stream that a part was made on; the current one waits for it."""
    if stream == _stream_of(x):
        yield
        return
    its = torch.cuda.ExternalStream(stream, device=x.device)
    with torch.cuda.stream(its):
        yield
    torch.cuda.current_stream(x.device).wait_stream(its)
