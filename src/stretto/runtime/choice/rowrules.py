"""How blocks and threads divide the rows of an epilogue: what a profile says of it.

A table `[[rows]]` of a profile says it for some numbers of ranks. Sizes are not rows of
a table: what counts is how many rows there are and how long they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from stretto.program.epilogues import Spec
from stretto.runtime.choice.sizes import parse_size

UNSEEN = 8 << 20
"""Bytes that a serving engine gives us where nobody has looked beside NCCL."""


def text_in(value: Any) -> str:
    """Return a text of a profile, or TypeError where it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no text")
    return value


def ranks_in(value: Any) -> tuple[int, int]:
    """Return the fewest and most ranks of a profile's row."""
    fewest, most = value
    if type(fewest) is not int or type(most) is not int or fewest < 1:
        raise TypeError(f"ranks = {str(value)[:40]}; want two whole numbers")
    return fewest, most


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """What was measured of rows, for some numbers of ranks."""

    fewest: int
    most: int
    one_shot_up_to: int
    """Bytes that a rank receives up to which everybody had better reduce everything."""
    most_share: int
    """Blocks that have a row together, at most."""
    share_of_many: int
    """The same where there would be more than `many` blocks."""
    many: int
    least_cells: int
    """Cells of 16 bytes that a block has of a row that it shares."""
    most_threads: int
    """Of a block; more have too few registers for what they keep."""
    most_blocks: int
    """Of a kernel, each on an SM of its own."""
    most_in_pairs: int
    """Of a kernel whose threads else had more than a cell each: two on an SM."""
    fused_up_to: int = 8 << 20
    """Bytes of a result up to which one kernel is faster than a plain call and another
    kernel after it, as that of a norm."""
    fused_of_many_up_to: int = 8 << 20
    """The same where several kernels would come after it."""
    beside_from: int = 8 << 20
    """Bytes of a rank's part from which copies beside a matmul pay for their calls."""
    scattered_beside_from: int = 8 << 20
    """The same where what the matmul makes is summed over ranks."""
    in_a_ring_from: int = 1 << 40
    """The same from which what is scattered is summed in a ring."""

    engines_up_to: int = UNSEEN
    """Bytes of a tensor up to which a serving engine that names no size gives its
    all_reduce to us: beyond, NCCL was as fast."""

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> RowRule:
        """Read a table; KeyError and ValueError say what is missing or wrong."""
        fewest, most = ranks_in(row["ranks"])
        known = {f.name: f for f in fields(cls) if f.name not in ("fewest", "most")}
        names = [n for n, f in known.items() if n in row or f.default is MISSING]
        numbers = {name: parse_size(str(row[name])) for name in names}
        if unknown := sorted(set(row) - {"ranks", *known}):
            raise ValueError(f"rows: {', '.join(unknown)}; want {', '.join(known)}")
        return cls(fewest=fewest, most=most, **numbers)

    def elsewhere(self) -> RowRule:
        """Return it for a machine that it was not measured on."""
        return replace(self, engines_up_to=UNSEEN)

    def answers(self, num_ranks: int) -> bool:
        """Return whether it is about so many ranks."""
        return self.fewest <= num_ranks <= self.most

    def share(self, spec: Spec, rows: int, cells: int, *, alone: bool) -> int:
        """Return how many blocks have a row together, of so many cells.

        As many as there are blocks for. But where a row is `alone` in a block, never so
        few that a thread had more than one cell of it, as long as two blocks to an SM
        are enough for that.
        """
        most = self.most_share
        if rows * most > self.many:
            most = self.share_of_many
        room = min(most, self.most_blocks // rows, cells // self.least_cells)
        found = spec.parts(room)
        if not alone or cells <= found * self.most_threads:
            return found
        for more in range(found + 1, self.most_share + 1):
            enough = cells <= more * self.most_threads
            if enough and spec.parts(more) == more:
                return more if rows * more <= self.most_in_pairs else found
        return found
