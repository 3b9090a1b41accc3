"""Collectives that are answered here, at once, and finitely: nobody else takes part.

Who stands by runs whole steps so, and compiles, allocates and chooses all that it will
need; what it computes is thrown away. One measures pure computation so, too.

all_reduce leaves `x`; all_gather repeats its own part; reduce_scatter takes its own
slice; broadcast leaves what there is, ones in place of what is no number; recv is ones.
Objects that others would send stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from stretto.errors import CallError
from stretto.runtime.calls.requests.arguments import spell
from stretto.torch.answered_objects import fill_with_objects
from stretto.torch.standins import Alone
from stretto.torch.untraced import untraced

Counts = Callable[[], dict[str, int]]
"""Tells how often each verb was called."""


@untraced
class Sandbox(Alone):
    """Stands in a group for its communicator; it counts what it is asked for."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        """Answer as this rank of so many."""
        self.rank, self.num_ranks = rank, num_ranks
        self.deadline_s = 1e8
        self.counts: dict[str, int] = {}
        """How often each verb was called."""

    def _count(self, verb: str) -> None:
        self.counts[verb] = self.counts.get(verb, 0) + 1

    def check(self) -> None:
        """Have met no fault."""

    def barrier(self, **options: Any) -> None:
        """Return."""
        self._count("barrier")

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, **o: Any) -> Any:
        """Leave `x`."""
        self._count("all_reduce")
        return x if out is None else _fill(out, x)

    def reduce(
        self, x: Any, op: str = "sum", *, root: int = 0, out: Any = None, **o: Any
    ) -> Any:
        """Leave `x`."""
        self._count("reduce")
        return x if out is None or root != self.rank else _fill(out, x)

    def broadcast(self, x: Any, *, root: int = 0, **o: Any) -> Any:
        """Leave `x`, but for what is no number."""
        self._count("broadcast")
        if root == self.rank or not isinstance(x, torch.Tensor):
            return x
        if not fill_with_objects(x) and _has_odd(x):
            x.nan_to_num_(1.0, 1.0, 1.0)
        return x

    def all_gather(self, x: Any, *, out: Any = None, **o: Any) -> Any:
        """Give its own part for everybody's."""
        self._count("all_gather")
        if out is None:
            return np.stack([np.asarray(x)] * self.num_ranks)
        return _fill(out, x)

    def gather(self, x: Any, *, root: int = 0, out: Any = None, **o: Any) -> Any:
        """Give its own part for everybody's, at the root."""
        self._count("gather")
        return None if out is None else _fill(out, x)

    def scatter(self, x: Any, *, root: int = 0, out: Any = None, **o: Any) -> Any:
        """Take its own slice at the root; others have ones."""
        self._count("scatter")
        if x is not None:
            return _fill(out, _slice(x, self))
        return out if fill_with_objects(out) else _ones(out)

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any, **o: Any) -> Any:
        """Take its own slice."""
        self._count("reduce_scatter")
        return _fill(out, _slice(x, self))

    def all_to_all(self, x: Any, *, out: Any = None, **o: Any) -> Any:
        """Give its own slice for everybody's."""
        self._count("all_to_all")
        return x if out is None else _fill(out, _slice(x, self))

    def all_gather_v(self, x: Any, counts: Any = None, *, out: Any, **o: Any) -> Any:
        """Give its own part for everybody's."""
        self._count("all_gather_v")
        return _fill(out, x)

    def reduce_scatter_v(
        self, x: Any, counts: Any, op: str = "sum", *, out: Any, **o: Any
    ) -> Any:
        """Take its own slice."""
        self._count("reduce_scatter_v")
        start = sum(counts[: self.rank])
        return _fill(out, x.reshape(-1)[start : start + counts[self.rank]])

    def all_to_all_v(self, x: Any, counts: Any, *, out: Any, **o: Any) -> Any:
        """Give what it has, as often as it takes."""
        self._count("all_to_all_v")
        return _fill(out, x)

    def send_async(self, x: Any, to: int, **o: Any) -> Any:
        """Send nothing."""
        self._count("send")
        return super().send_async(x, to)

    def recv_async(self, out: Any, source: int, **o: Any) -> Any:
        """Receive ones."""
        self._count("recv")
        if not fill_with_objects(out):
            _ones(out)
        return super().recv_async(out, source)


def _has_odd(x: Any) -> bool:
    return x.is_floating_point() and not bool(torch.isfinite(x).all())


def _slice(x: Any, of: Sandbox) -> Any:
    flat = x.reshape(-1)
    many = len(flat) // of.num_ranks
    return flat[of.rank * many : (of.rank + 1) * many]


def _fill(out: Any, x: Any) -> Any:
    """Fill an array with another, as often as it takes, or with what there is room for.

    Nothing to fill it with: ones.
    """
    if isinstance(out, np.ndarray):
        source = np.asarray(x).reshape(-1)
        if source.size:
            out[...] = np.resize(source, out.shape)
            return out
        return _ones(out)
    flat, source = out.detach().reshape(-1), x.detach().reshape(-1)
    if not source.numel():
        return _ones(out)
    times = -(-flat.numel() // source.numel())
    many = source if times == 1 else source.repeat(times)
    out.detach().copy_(many[: flat.numel()].view(out.shape))
    return out


def _ones(out: Any) -> Any:
    if isinstance(out, np.ndarray):
        out[...] = 1
    elif out is not None:
        out.detach().fill_(1)
    return out


def sandbox(groups: Iterable[Any] | None = None) -> AbstractContextManager[Counts]:
    """Have every collective of these groups answered here, within a block.

    Without any: of all that there are. What the block is given tells how often each
    verb was called.
    """
    from stretto.torch.base import GroupBase, groups_here

    if isinstance(groups, str | dist.ProcessGroup) or not (
        groups is None or isinstance(groups, Iterable)
    ):
        raise CallError(
            f"sandbox: groups={spell(groups)}; want a list of groups, or None for all"
        )
    chosen: list[Any] = list(groups_here() if groups is None else groups)
    for one in chosen:
        if not isinstance(one, GroupBase):
            raise CallError(
                f"sandbox: {spell(one)} is no group of stretto; want groups that "
                "init_process_group('stretto') or new_group made"
            )
    return _sandbox(chosen)


@contextmanager
def _sandbox(chosen: Sequence[Any]) -> Iterator[Counts]:
    made = [Sandbox(group.rank(), group.size()) for group in chosen]
    before = [group.stand_in(one) for group, one in zip(chosen, made, strict=True)]

    def counts() -> dict[str, int]:
        found: dict[str, int] = {}
        for one in made:
            for verb, many in one.counts.items():
                found[verb] = found.get(verb, 0) + many
        return found

    try:
        yield counts
    finally:
        for group, one in zip(chosen, before, strict=True):
            group.stand_in(one)
