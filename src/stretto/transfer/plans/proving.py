"""Plans that are proved before they run: once for each pair of layouts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.transfer.layouts import Layout
from stretto.transfer.plans.plan import Box, BoxRun, Only, Plan, plan
from stretto.transfer.plans.proof import prove, prove_cut
from stretto.transfer.plans.split import parts, pieces_of


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


def planned(
    src: Layout, dst: Layout, only: Mapping[str, tuple[int, int]],
    pages: tuple[Any, Any], tokens: int | None,
) -> tuple[Plan, tuple[BoxRun, ...], int, int]:  # fmt: skip
    """Return a proved plan, its runs, and their bytes and pieces."""
    made = proved(src, dst, only=only)
    runs = made.runs(*pages, tokens, of=proved)
    pieces = sum(len(r.src_at) * sum(box.rows for box in r.boxes) for r in runs)
    return made, runs, sum(run.nbytes for run in runs), pieces


def split(made: Plan, runs: Sequence[BoxRun], most: int) -> tuple[BoxRun, ...]:
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
