"""Python values between ranks: JSON, or pickles among ranks that trust each other.

A value becomes bytes, and travels by the verbs for arrays: first the size of the
largest, then parts of one size, a power of two, so that few kinds of calls serve all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import is_interruption
from stretto.runtime.calls.requests.request import Caller

_HEAD = 9
"""Bytes before a value's: its size, and a letter for its form."""
_LEAST = 64
_JSON, _PICKLE = b"J", b"P"
_PLAIN = (str, int, float, bool, type(None))
_PICKLES = "want plain values (None, bool, int, float, str, list, dict), or pickle=True"


def all_gather_object(self: Any, value: Any, *, pickle: bool = False) -> list[Any]:
    """Give everybody everybody's value, in rank order.

    By default a value is sent as JSON, and refused when it would not come back as it
    is. With `pickle=True`, which all ranks must say, it may be anything that pickle
    takes: reading a pickle runs what its sender wants, so say it only among ranks that
    trust each other.

    Returns: a list of n values. Raises: `CallError` for a value that cannot be sent, or
    that this rank will not read.

    >>> comm.all_gather_object({"loss": 0.5})  # doctest: +SKIP
    [{'loss': 0.5}, {'loss': 0.25}]
    """
    form = _form(self, "all_gather_object", pickle)
    data = form.encoded(value)
    parts = self.all_gather(_padded(data, _largest(self, data)))
    return form.every(parts)


def gather_object(
    self: Any, value: Any, *, root: int = 0, pickle: bool = False
) -> list[Any] | None:
    """Give the root everybody's value, in rank order; the others get None.

    Returns: a list of n values at the root. Raises: as `all_gather_object`.

    >>> comm.gather_object("ready", root=0)  # doctest: +SKIP
    ['ready', 'ready']
    """
    form = _form(self, "gather_object", pickle, root)
    data = form.encoded(value)
    parts = self.gather(_padded(data, _largest(self, data)), root=form.root)
    return form.every(parts) if form.is_root else None


def broadcast_object(
    self: Any, value: Any = None, *, root: int = 0, pickle: bool = False
) -> Any:
    """Give everybody the root's value; what the others pass does not matter.

    Returns: the value; at the root, what it passed. Raises: as `all_gather_object`.

    >>> comm.broadcast_object({"step": 7} if comm.rank == 0 else None)
    ... # doctest: +SKIP
    {'step': 7}
    """
    form = _form(self, "broadcast_object", pickle, root)
    data = form.encoded(value) if form.is_root else b""
    part = _padded(data, _told(self, form.root, len(data)))
    self.broadcast(part, root=form.root)
    return value if form.is_root else form.decoded(part)


def scatter_object(
    self: Any,
    values: Sequence[Any] | None = None,
    *,
    root: int = 0,
    pickle: bool = False,
) -> Any:
    """Give rank r the root's `values[r]`; the others need not pass any.

    Returns: this rank's value. Raises: as `all_gather_object`, and `CallError` at the
    root for another number of values than there are ranks.

    >>> comm.scatter_object(["a.bin", "b.bin"])  # doctest: +SKIP
    'a.bin'
    """
    form = _form(self, "scatter_object", pickle, root)
    data: list[bytes] = []
    if form.is_root:
        given = [] if values is None else form.caller.read("values", values)
        if len(given) != self.num_ranks:
            raise form.caller.wrong(
                f"{len(given)} values; want {self.num_ranks}, one a rank"
            )
        data = [form.encoded(one) for one in given]
    most = _told(self, form.root, max(map(len, data), default=0))
    parts, part = [_padded(one, most) for one in data], _padded(b"", most)
    self.scatter(np.stack(parts) if parts else None, root=form.root, out=part)
    return form.decoded(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How the values of one call travel: who calls, its root, pickles or JSON."""

    caller: Caller
    root: int
    pickle: bool

    @property
    def is_root(self) -> bool:
        """Return whether this rank is the root."""
        return self.caller.rank == self.root

    def encoded(self, value: Any) -> bytes:
        """Return a value as bytes, with their number and form before them."""
        wrong = self.caller.wrong
        if self.pickle:
            import pickle as pickles

            try:
                form, body = _PICKLE, pickles.dumps(value)
            except Exception as e:
                if is_interruption(e):
                    raise
                raise wrong(f"cannot be pickled: {e}") from e
        else:
            try:
                self._check_plain(value, "value")
                form, body = _JSON, json.dumps(value, separators=(",", ":")).encode()
            except (RecursionError, ValueError) as e:
                raise wrong(f"no JSON can be made of it: {e}; {_PICKLES}") from e
        return len(body).to_bytes(8, "little") + form + body

    def _check_plain(self, value: Any, name: str) -> None:
        """Raise unless JSON gives back what it was given: no tuples, no other keys."""
        kind = type(value)
        if kind is list:
            for i, one in enumerate(value):
                self._check_plain(one, f"{name}[{i}]")
        elif kind is dict:
            for key, one in value.items():
                if type(key) is not str:
                    raise self.caller.wrong(
                        f"{name} has the key {key!r:.40}, which JSON makes a text; "
                        "want keys that are texts, or pickle=True"
                    )
                self._check_plain(one, f"{name}[{key!r:.40}]")
        elif kind not in _PLAIN:
            raise self.caller.wrong(f"{name} is a {kind.__name__}; {_PICKLES}")

    def every(self, parts: Any) -> list[Any]:
        """Return the values of all ranks."""
        return [self.decoded(part, f"rank {r}'s") for r, part in enumerate(parts)]

    def decoded(self, part: Any, whose: str = "root's") -> Any:
        """Return the value that a rank has sent."""
        raw = bytes(part)
        size, form = int.from_bytes(raw[:8], "little"), raw[8:_HEAD]
        body = raw[_HEAD : _HEAD + size]
        if form == _PICKLE and not self.pickle:
            raise self.caller.wrong(
                f"{whose} value is a pickle, and this rank takes JSON; want "
                "pickle=True on all ranks, or on none"
            )
        try:
            if form == _PICKLE:
                import pickle as pickles

                return pickles.loads(body)
            return json.loads(body)
        except Exception as e:
            if is_interruption(e):
                raise
            why = f"{whose} value cannot be read here: {type(e).__name__}: {e}"
            raise self.caller.wrong(why) from e


def _form(comm: Any, verb: str, pickle: Any, root: Any = 0) -> _Form:
    caller = comm._caller(verb, None)
    pickle = caller.read("pickle", pickle)
    return _Form(caller=caller, root=caller.peer(root, "root"), pickle=pickle)


def _told(comm: Any, root: int, size: int) -> int:
    """Return the root's size."""
    told = np.array([size], np.int64)
    comm.broadcast(told, root=root)
    return int(told[0])


def _largest(comm: Any, data: bytes) -> int:
    """Return how long the longest of all ranks' is."""
    size = np.array([len(data)], np.int64)
    comm.all_reduce(size, "max")
    return int(size[0])


def _padded(data: bytes, size: int) -> NDArray[np.uint8]:
    """Return bytes in an array of a size that many have: a power of two."""
    made = np.zeros(max(_LEAST, 1 << max(0, size - 1).bit_length()), np.uint8)
    made[: len(data)] = np.frombuffer(data, np.uint8)
    return made
