"""What a group may be told, and what c10d's options say in a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from stretto.errors import CallError, UnknownNameError
from stretto.program import collectives
from stretto.runtime.choice.bits import bits_in
from stretto.runtime.choice.select import completed, parse_pin
from stretto.torch.faults import refusal

_TRANSFERS = ("fallback", "stretto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a group is told: `init_process_group("stretto", pg_options=Options())`."""

    algorithms: Mapping[str, Any] = field(default_factory=dict)
    """By collective, what a communicator takes as `algorithm=`: "all_reduce/ring", say,
    or "ring" alone; others are chosen by measurement."""
    transfers: str = "fallback"
    """Who sends and receives tensors on the CPU: "fallback" is Gloo, with tags and any
    source; "stretto" is faster, and nobody may then receive from any source."""

    max_blocks: int | None = None
    """Blocks of a kernel that a started call on GPUs has at most. Without it as many
    as were measured beside matmuls, 8 to 32; each may hold an SM while it waits."""

    bits: str | None = None
    """What an all_reduce promises of its bits: "invariant" or "any"; without it what
    STRETTO_BITS says. Calls that would be left to Gloo or NCCL are then refused."""

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        if self.bits is not None:
            bits_in(self.bits, "bits")
        most = self.max_blocks
        if most is not None and (type(most) is not int or most < 1):
            raise CallError(
                f"max_blocks={most!r}; want a whole number from 1 on, or None: as many "
                f"as were measured"
            )
        if self.transfers not in _TRANSFERS:
            raise CallError(
                f"transfers={self.transfers!r}; want one of {', '.join(_TRANSFERS)}"
            )
        if not isinstance(self.algorithms, Mapping):
            raise CallError(
                f"algorithms={self.algorithms!r:.60}; want algorithms by collective: "
                f'{{"all_reduce": "ring"}}'
            )
        known = collectives.names()
        for verb in self.algorithms:
            if verb not in known:
                raise UnknownNameError.among("collective", str(verb), known)
        named = {verb: _completed(verb, pin) for verb, pin in self.algorithms.items()}
        object.__setattr__(self, "algorithms", named)


def _completed(verb: str, pin: Any) -> Any:
    """Return what a collective is run by, with its whole name, after a look at it."""
    if pin is None:
        return pin
    pin = completed(pin, verb)
    algorithm, _ = parse_pin(pin)
    if algorithm.collective != verb:
        raise CallError(
            f"algorithms={{{verb!r}: {algorithm.name!r}}}: that is an "
            f"{algorithm.collective}; want an {verb}"
        )
    return pin


OPERATORS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor")
"""Our operators in the order of torch's numbers; after them comes PREMUL_SUM."""


def _check_numbers() -> None:
    """Raise when this torch numbers its operators otherwise."""
    kinds = dist.ReduceOp.RedOpType
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    for number, name in enumerate(names):
        op = dist.ReduceOp(getattr(kinds, name))
        if hash(op) != number or int(op.op) != number:
            raise refusal(
                f"this PyTorch gives ReduceOp.{name} the number {hash(op)}; stretto "
                f"knows it as {number}: want torch 2.9 to 2.15"
            )


_check_numbers()


def operator_of(op: Any) -> Any:
    """Return our operator of a ReduceOp, or the factor of a PREMUL_SUM."""
    if not isinstance(op, dist.ReduceOp):
        op = dist.ReduceOp(op)
    number = hash(op)
    if number < len(OPERATORS):
        return OPERATORS[number]
    _, factor = op.__getstate__()
    if factor is None:
        raise refusal(f"the operator {op.op}; want one of {', '.join(OPERATORS)}")
    return factor


@dataclass(slots=True)
class GivenOptions:
    """Options of a call that did not come in an object of c10d's."""

    rootRank: int = 0  # noqa: N815 - c10d's names
    reduceOp: Any = dist.ReduceOp.SUM  # noqa: N815
    asyncOp: bool = True  # noqa: N815
    timeout: timedelta | None = None
    device: Any = None


def given(opts: Any, **said: Any) -> Any:
    """Return c10d's options, or those of a call in one of its short forms.

    Such as `group.broadcast(tensor, 0)`, `group.allreduce(tensor, op=...)`.
    """
    if opts is None or isinstance(opts, (int, dist.ReduceOp, dist.ReduceOp.RedOpType)):
        found = GivenOptions()
        if isinstance(opts, int):
            found.rootRank = opts
        elif opts is not None:
            found.reduceOp = opts
        for name, value in said.items():
            if value is not None:
                setattr(found, name, value)
        return found
    if isinstance(opts, timedelta):
        return GivenOptions(timeout=opts)
    return opts
