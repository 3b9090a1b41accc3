"""Python values between ranks: JSON, or pickles among ranks that trust each other.

A value becomes bytes, and travels by the verbs for arrays: first the size of the
largest, then parts of one size, a power of two, so that few kinds of calls serve all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.calls.requests.request import Caller
from stretto.errors import CallError, is_interruption

__all__ = ["ObjectVerbs"]

_HEAD = 9
"""Bytes before a value's: its size, and a letter for its form."""
_LEAST = 64
_JSON, _PICKLE = b"J", b"P"
_PLAIN = (str, int, float, bool, type(None))
_PICKLES = "want plain values (None, bool, int, float, str, list, dict), or pickle=True"


class _Arrays(Protocol):
    """The verbs that values travel by."""

    rank: int
    num_ranks: int

    def all_reduce(self, x: Any, op: str = "sum") -> Any: ...
    def all_gather(self, x: Any) -> Any: ...
    def broadcast(self, x: Any, *, root: int = 0) -> Any: ...
    def gather(self, x: Any, *, root: int = 0) -> Any: ...
    def scatter(self, x: Any = None, *, root: int = 0, out: Any = None) -> Any: ...


class ObjectVerbs:
    """Collectives of Python values.

    By default a value is sent as JSON, and refused when it would not come back as it
    is. With `pickle=True`, which all ranks must say, it may be anything that pickle
    takes: reading a pickle runs what its sender wants, so say it only among ranks that
    trust each other.
    """

    def all_gather_object(
        self: _Arrays, value: Any, *, pickle: bool = False
    ) -> list[Any]:
        """Give everybody everybody's value, in rank order.

        Returns: a list of n values. Raises: `CallError` for a value that cannot be
        sent, or that this rank will not read.

        >>> comm.all_gather_object({"loss": 0.5})  # doctest: +SKIP
        [{'loss': 0.5}, {'loss': 0.25}]
        """
        caller = Caller(
            rank=self.rank, num_ranks=self.num_ranks, verb="all_gather_object"
        )
        pickle = caller.read("pickle", pickle)
        who = f"rank {self.rank}: all_gather_object"
        data = _encoded(value, who, pickle=pickle)
        parts = self.all_gather(_padded(data, _largest(self, data)))
        return [
            _decoded(part, f"{who}: rank {r}'s", pickle=pickle)
            for r, part in enumerate(parts)
        ]

    def gather_object(
        self: _Arrays, value: Any, *, root: int = 0, pickle: bool = False
    ) -> list[Any] | None:
        """Give the root everybody's value, in rank order; the others get None.

        Returns: a list of n values at the root. Raises: as `all_gather_object`.

        >>> comm.gather_object("ready", root=0)  # doctest: +SKIP
        ['ready', 'ready']
        """
        caller = Caller(rank=self.rank, num_ranks=self.num_ranks, verb="gather_object")
        pickle = caller.read("pickle", pickle)
        root = caller.peer(root, "root")
        who = f"rank {self.rank}: gather_object"
        data = _encoded(value, who, pickle=pickle)
        parts = self.gather(_padded(data, _largest(self, data)), root=root)
        if self.rank != root:
            return None
        return [
            _decoded(part, f"{who}: rank {r}'s", pickle=pickle)
            for r, part in enumerate(parts)
        ]

    def broadcast_object(
        self: _Arrays, value: Any = None, *, root: int = 0, pickle: bool = False
    ) -> Any:
        """Give everybody the root's value; what the others pass does not matter.

        Returns: the value; at the root, what it passed. Raises: as `all_gather_object`.

        >>> comm.broadcast_object({"step": 7} if comm.rank == 0 else None)
        ... # doctest: +SKIP
        {'step': 7}
        """
        caller = Caller(
            rank=self.rank, num_ranks=self.num_ranks, verb="broadcast_object"
        )
        pickle = caller.read("pickle", pickle)
        root = caller.peer(root, "root")
        who = f"rank {self.rank}: broadcast_object"
        here = self.rank == root
        data = _encoded(value, who, pickle=pickle) if here else b""
        size = np.array([len(data)], np.int64)
        self.broadcast(size, root=root)
        part = _padded(data, int(size[0]))
        self.broadcast(part, root=root)
        return value if here else _decoded(part, f"{who}: root's", pickle=pickle)

    def scatter_object(
        self: _Arrays,
        values: Sequence[Any] | None = None,
        *,
        root: int = 0,
        pickle: bool = False,
    ) -> Any:
        """Give rank r the root's `values[r]`; the others need not pass any.

        Returns: this rank's value. Raises: as `all_gather_object`, and `CallError` at
        the root for another number of values than there are ranks.

        >>> comm.scatter_object(["a.bin", "b.bin"])  # doctest: +SKIP
        'a.bin'
        """
        caller = Caller(rank=self.rank, num_ranks=self.num_ranks, verb="scatter_object")
        pickle = caller.read("pickle", pickle)
        root = caller.peer(root, "root")
        who = f"rank {self.rank}: scatter_object"
        data: list[bytes] = []
        if self.rank == root:
            given = [] if values is None else caller.read("values", values)
            if len(given) != self.num_ranks:
                raise CallError(
                    f"{who}: {len(given)} values; want {self.num_ranks}, one a rank"
                )
            data = [_encoded(one, who, pickle=pickle) for one in given]
        size = np.array([max(map(len, data), default=0)], np.int64)
        self.broadcast(size, root=root)
        parts = [_padded(one, int(size[0])) for one in data]
        part = _padded(b"", int(size[0]))
        self.scatter(np.stack(parts) if parts else None, root=root, out=part)
        return _decoded(part, f"{who}: root's", pickle=pickle)


def _encoded(value: Any, who: str, *, pickle: bool) -> bytes:
    """Return a value as bytes, with their number and form before them."""
    if pickle:
        import pickle as pickles

        try:
            form, body = _PICKLE, pickles.dumps(value)
        except Exception as e:
            if is_interruption(e):
                raise
            raise CallError(f"{who}: cannot be pickled: {e}") from e
    else:
        try:
            _check_plain(value, who, "value")
            form, body = _JSON, json.dumps(value, separators=(",", ":")).encode()
        except (RecursionError, ValueError) as e:
            raise CallError(f"{who}: no JSON can be made of it: {e}; {_PICKLES}") from e
    return len(body).to_bytes(8, "little") + form + body


def _check_plain(value: Any, who: str, name: str) -> None:
    """Raise unless JSON gives back what it was given: no tuples, no other keys."""
    kind = type(value)
    if kind is list:
        for i, one in enumerate(value):
            _check_plain(one, who, f"{name}[{i}]")
    elif kind is dict:
        for key, one in value.items():
            if type(key) is not str:
                raise CallError(
                    f"{who}: {name} has the key {key!r:.40}, which JSON makes a text; "
                    "want keys that are texts, or pickle=True"
                )
            _check_plain(one, who, f"{name}[{key!r:.40}]")
    elif kind not in _PLAIN:
        raise CallError(f"{who}: {name} is a {kind.__name__}; {_PICKLES}")


def _largest(comm: _Arrays, data: bytes) -> int:
    """Return how long the longest of all ranks' is."""
    size = np.array([len(data)], np.int64)
    comm.all_reduce(size, "max")
    return int(size[0])


def _padded(data: bytes, size: int) -> NDArray[np.uint8]:
    """Return bytes in an array of a size that many have: a power of two."""
    made = np.zeros(max(_LEAST, 1 << max(0, size - 1).bit_length()), np.uint8)
    made[: len(data)] = np.frombuffer(data, np.uint8)
    return made


def _decoded(part: Any, whose: str, *, pickle: bool) -> Any:
    """Return the value that a rank has sent."""
    raw = bytes(part)
    size, form = int.from_bytes(raw[:8], "little"), raw[8:_HEAD]
    body = raw[_HEAD : _HEAD + size]
    if form == _PICKLE and not pickle:
        raise CallError(
            f"{whose} value is a pickle, and this rank takes JSON; want pickle=True on "
            "all ranks, or on none"
        )
    try:
        if form == _PICKLE:
            import pickle as pickles

            return pickles.loads(body)
        return json.loads(body)
    except Exception as e:
        if is_interruption(e):
            raise
        raise CallError(
            f"{whose} value cannot be read here: {type(e).__name__}: {e}"
        ) from e
