"""Plans that are proved before they run: once for each pair of layouts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from stretto.transfer.layouts import Layout
from stretto.transfer.plans.plan import Box, Only, Plan, Run, plan
from stretto.transfer.plans.proof import prove, prove_cut
from stretto.transfer.plans.split import parts, pieces_of

__all__ = ["proved", "split"]


def proved(
    src: Layout, dst: Layout, *, only: Mapping[str, tuple[int, int]] | Only = (),
    tokens: int | None = None,
) -> Plan:  # fmt: skip
    """Return what `plan` returns, proved."""
    if isinstance(only, Mapping):
        only = tuple((name, int(a), int(b)) for name, (a, b) in only.items())
    return _proved(src, dst, only, tokens)


@functools.lru_cache(maxsize=4096)
def _proved(src: Layout, dst: Layout, only: Only, tokens: int | None) -> Plan:
    made = plan(src, dst, only=only, tokens=tokens)
    prove(made)
    return made


def split(made: Plan, runs: Sequence[Run], most: int) -> tuple[Run, ...]:
    """Return runs of at most so many bytes; what is left over is a run of its own.

    The cuts are proved, once for each pair of layouts.
    """
    return tuple(
        part
        for run in runs
        for part in parts(run, _cut(made.src, made.dst, made.only, run.tokens, most))
    )


@functools.lru_cache(maxsize=4096)
def _cut(
    src: Layout, dst: Layout, only: Only, tokens: int, most: int
) -> tuple[tuple[Box, ...], ...]:
    """Return each box as pieces of at most so many bytes, in the order of the runs."""
    made = _proved(src, dst, only, tokens)
    cut = [pieces_of(made, box, most) for box in made.boxes]
    for box, pieces in zip(made.boxes, cut, strict=True):
        prove_cut(made, box, pieces)
    return tuple(zip(*cut, strict=True))
