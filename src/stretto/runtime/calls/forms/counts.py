"""Counts that some ranks do not know: a small collective before the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.arrays import operand
from stretto.program.collectives import Array
from stretto.runtime.calls.call import call
from stretto.runtime.calls.requests.layout import MISS, Seen
from stretto.runtime.calls.requests.request import Request
from stretto.runtime.calls.requests.verb import Verb
from stretto.runtime.calls.runner import CallRunner
from stretto.runtime.choice.select import Pin, completed, members_of_pin

EXCHANGE = "exchange of counts"


def as_key(counts: Any) -> Any:
    """Return counts as a part of a key; lists and arrays may change, these may not."""
    if isinstance(counts, (tuple, list)) and counts and type(counts[0]) is int:
        return tuple(counts)
    try:
        return tuple(np.ravel(counts).tolist())
    except (TypeError, ValueError):  # the checks that follow say what is wrong
        return ()


def own_counts(
    calls: CallRunner, verb: Verb, x: Any, dtype: str | None, pin: Pin
) -> Sequence[int]:
    """Return how many elements each member has, when a rank knows its own."""
    if type(x) is np.ndarray:
        own = x.size
    else:
        own = calls._caller(verb.name, dtype).take(x, "x").count
    every = _exchange(calls, (own,))
    members = members_of_pin(completed(pin, verb.collective))
    return [every[r] for r in members or range(calls.num_ranks)]


def every_count(calls: CallRunner, counts: Any, dtype: str | None, pin: Pin) -> Any:
    """Return n x n counts of an all_to_all; given are those, or this rank's n."""
    members = members_of_pin(completed(pin, "all_to_all"))
    every, n = as_key(counts), len(members) or calls.num_ranks
    if not members and (len(every) != n * n or n == 1):
        own_row = calls._caller("all_to_all_v", dtype).counts(counts, n)
        every = tuple(_exchange(calls, own_row))
    return every


def _exchange(calls: CallRunner, own: Sequence[int]) -> list[int]:
    """Return every rank's counts, one rank's after the other's."""
    rows = calls._rows.get(len(own))
    if rows is None:
        table = np.empty((calls.num_ranks, len(own)), np.int64)
        rows = calls._rows[len(own)] = np.empty(len(own), np.int64), table
    row, table = rows
    row[:] = own
    key = (EXCHANGE, id(row), id(table))
    known = calls._known.get(key)
    if known is None or known(row, table) is MISS:
        call(calls, key, row, table, _examined, (row, table))
    found: list[int] = table.ravel().tolist()
    return found


def _examined(
    calls: CallRunner, seen: Seen | None, row: Array, table: Array
) -> Request:
    """Return the request of an exchange."""
    return calls._caller(EXCHANGE, None).request(
        "all_gather",
        operand(row, "counts", written=False, dtype=None),
        operand(table, "counts", written=True, dtype=None),
        counts=(row.size,) * calls.num_ranks,
    )
