"""What dispatches and combines of one kind have in common, the same on every rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, UnknownNameError
from stretto.experts.elements import GROUP, KINDS
from stretto.program.elements import dtype_name, storage

__all__ = ["LAYOUTS", "QUANTISERS", "Geometry", "unlike"]

LAYOUTS = ("token", "expert", "rank")
ORDERS = ("k", "rank")
QUANTISERS = {"": 0, "fp8_128": 0, "fp8_128_pow2": 1}
"""By name: whether scales are powers of two."""
_LINE = 64
"""Records begin at multiples of so many bytes."""
_MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How many experts there are, where they are, and what rows are."""

    num_ranks: int
    num_experts: int
    top_k: int
    hidden: int
    max_tokens: int
    dtype: str
    layout: str
    quantise: str
    align: int
    order: str
    owner: tuple[int, ...]
    """The rank of each expert."""

    @classmethod
    def of(
        cls, num_ranks: int, placement: Sequence[int] | None, **given: Any
    ) -> Geometry:
        """Return what a call of `comm.experts` describes; refuse what cannot be."""
        for name in ("num_experts", "top_k", "hidden", "max_tokens", "align"):
            one = given[name]
            if isinstance(one, bool) or not isinstance(one, int | np.integer):
                raise CallError(f"{name}={str(one)[:40]}; want a whole number")
            if one < 1:
                raise CallError(f"{name}={one}; want 1 or more")
            given[name] = int(one)
        given["quantise"] = given["quantise"] or ""
        for name, known in (
            ("layout", LAYOUTS), ("order", ORDERS), ("quantise", QUANTISERS),
            ("dtype", KINDS),
        ):  # fmt: skip
            one = dtype_name(given[name]) if name == "dtype" else given[name]
            if one not in known:
                raise UnknownNameError.among(name, str(one), [k for k in known if k])
            given[name] = one
        num = given["num_experts"]
        if placement is None:
            owner = tuple(e * num_ranks // num for e in range(num))
        else:
            owner = tuple(int(q) for q in placement)
        made = cls(num_ranks=num_ranks, owner=owner, **given)
        if why := made._why_not():
            raise CallError(why)
        return made

    def _why_not(self) -> str:
        if self.num_experts > _MOST_EXPERTS:
            return f"num_experts={self.num_experts}; want at most {_MOST_EXPERTS}"
        if self.top_k > self.num_experts:
            return (
                f"top_k={self.top_k} of num_experts={self.num_experts}; want no more "
                "choices than experts"
            )
        if len(self.owner) != self.num_experts:
            return (
                f"placement of {len(self.owner)} experts; want the rank of each of "
                f"{self.num_experts}"
            )
        wrong = [q for q in self.owner if not 0 <= q < self.num_ranks]
        if wrong:
            return f"placement at rank {wrong[0]}; want ranks 0 to {self.num_ranks - 1}"
        if self.quantise and self.hidden % GROUP:
            return (
                f"hidden={self.hidden} with quantise={self.quantise!r}; want a "
                f"multiple of {GROUP}"
            )
        if self.order == "k" and self.layout != "expert":
            return (
                f"order='k' with layout={self.layout!r}, whose rows are sums of a "
                "rank's choices already; want layout='expert', or order='rank'"
            )
        return ""

    # What follows from it.

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return storage(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is dispatched, without scales."""
        return self.hidden * (1 if self.quantise else self.itemsize)

    @property
    def scale_bytes(self) -> int:
        """Bytes of its scales."""
        return self.hidden // GROUP * 4 if self.quantise else 0

    @property
    def ids_at(self) -> int:
        """Where ids begin in a record; weights follow."""
        return -(-(self.row_bytes + self.scale_bytes) // 4) * 4

    @property
    def record_bytes(self) -> int:
        """Bytes of a record: a row, its scales, ids and weights."""
        return -(-(self.ids_at + 8 * self.top_k) // _LINE) * _LINE

    @property
    def slots(self) -> int:
        """How many rows may come to a rank."""
        return self.num_ranks * self.max_tokens

    def most_lines(self, rank: int) -> int:
        """Return how many lines a rank's rows may take, whatever is chosen."""
        if self.layout != "expert":
            return self.slots
        return self.slots * self.top_k + self.num_local(rank) * (self.align - 1)

    @property
    def slot_bytes(self) -> int:
        """Bytes of an inbox that are one sender's."""
        return self.max_tokens * self.record_bytes

    @property
    def back_rows(self) -> int:
        """How many rows may come back for a token."""
        n = min(self.num_ranks, self.top_k)
        return self.top_k if self.order == "k" else n

    @property
    def inbox_bytes(self) -> int:
        """Bytes that may be under way to a rank at once: whole lines."""
        back = self.max_tokens * self.back_rows * self._back_bytes
        return -(-max(self.num_ranks * self.slot_bytes, back) // _LINE) * _LINE

    @property
    def outbox_bytes(self) -> int:
        """Bytes that a rank may send at once: all that came may go back."""
        there = self.slot_bytes * min(self.num_ranks, self.top_k)
        each = self.top_k if self.order == "k" else 1
        back = self.num_ranks * self.max_tokens * each * self._back_bytes
        return max(there, back)

    @property
    def _back_bytes(self) -> int:
        """Bytes of a row that comes back: elements, or gradients of weights."""
        return max(self.hidden * self.itemsize, 4 * self.top_k)

    def owners(self) -> NDArray[np.int64]:
        """Return the rank of each expert."""
        return np.array(self.owner, np.int64)

    def local(self) -> NDArray[np.int64]:
        """Return each expert's number among those of its rank, in order."""
        seen = [0] * self.num_ranks
        found = np.empty(self.num_experts, np.int64)
        for e, q in enumerate(self.owner):
            found[e] = seen[q]
            seen[q] += 1
        return found

    def num_local(self, rank: int) -> int:
        """Return how many experts a rank has."""
        return self.owner.count(rank)

    def said(self) -> dict[str, Any]:
        """Return it as the other ranks are told."""
        return {**dataclasses.asdict(self), "owner": list(self.owner)}


def unlike(said: Sequence[Mapping[str, Any]]) -> str:
    """Return whose geometry differs from rank 0's, and in what, or ""."""
    for rank, one in enumerate(said):
        for name, value in one.items():
            if value != said[0][name]:
                mine, first = (str(v)[:60] for v in (value, said[0][name]))
                return (
                    f"rank {rank} has {name}={mine} and rank 0 has {name}={first}; "
                    "want the same on every rank"
                )
    return ""
