"""Cache groups: layers whose tokens lie in blocks of one size.

A model that mixes full attention with sliding windows has several. A request has a
list of blocks in each, by position: block 0 of a group that has a window stands for
"none here", as in vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.errors import CallError
from stretto.transfer.layouts import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers whose tokens lie in blocks of one size."""

    block: int
    """Tokens of a block."""
    window: int = 0
    """Tokens that a token looks back at, itself among them; 0 is all of them."""
    layers: tuple[str, ...] = ()
    """Names of its layers, in order; () is all."""
    layout: Layout | str | None = None
    """How a worker's cache lies; a scheduler needs none."""

    def __post_init__(self) -> None:
        """Refuse what is no group."""
        if self.block < 1 or self.window < 0:
            raise CallError(f"a group of block={self.block}, window={self.window}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Blocks of one group that are fetched: theirs and ours, in the tokens' order."""

    remote: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    tokens: int = 0
    lost: tuple[int, ...] = ()
    """Blocks of ours that nobody can fill."""


def region_name(number: int) -> str:
    """Return the name under which a worker shares a group's cache."""
    return f"kv.{number}" if number else "kv"


def paired(
    group: CacheGroup, theirs: int, remote: Sequence[int], local: Sequence[int],
    start: int, stop: int,
) -> Pages:  # fmt: skip
    """Return which blocks hold tokens from `start` on, before `stop`, on both sides.

    `theirs` is the size of a block there. `start` is where blocks of both begin.
    """
    if start % group.block or start % theirs:
        raise CallError(
            f"from token {start} on, in blocks of {theirs} there and {group.block} here"
        )
    ours = tuple(local[: -(-stop // group.block)])
    there = tuple(remote[: -(-stop // theirs)])
    first, lost = start, []
    if group.window:  # the last that both have, without a gap
        step = math.lcm(group.block, theirs)
        first = -(-stop // step) * step
        while first > start:
            here = ours[(first - step) // group.block : first // group.block]
            far = there[(first - step) // theirs : first // theirs]
            if not all(here) or not all(far):
                break
            first -= step
        first, needed = min(first, stop), max(start, stop - group.window + 1)
        if needed < first:
            least, most = needed // group.block, -(-first // group.block)
            lost = [block for block in ours[least:most] if block]
    if first >= stop:
        return Pages(lost=tuple(lost))
    return Pages(
        remote=there[first // theirs :], local=ours[first // group.block :],
        tokens=stop - first, lost=tuple(lost),
    )  # fmt: skip
