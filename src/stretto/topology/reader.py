"""Reads tables of a TOML file: every complaint names the file, the key, got, want.

A value may be the name of a parameter of the machine's name (`boxes = "boxes"`).
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from stretto.errors import StrettoError, TopologyError

__all__ = ["Reader", "Values"]

Values: TypeAlias = Mapping[str, "int | tuple[int, ...]"]
"""The parameters of a machine's name."""

_REQUIRED: Any = object()
_SHOWN = 200
_MOST = 1 << 30
"""Of anything that is counted in a machine."""


class Reader:
    """One table of a file; `done` refuses keys that nobody asked for.

    `refusal` is the kind of error that complaints are.
    """

    __slots__ = ("_asked", "_refusal", "_table", "_values", "path", "where")

    def __init__(
        self,
        table: Mapping[str, Any],
        *,
        where: str,
        path: str,
        values: Values,
        refusal: type[StrettoError] = TopologyError,
    ) -> None:
        self.where = where
        self.path = path
        self._table = table
        self._values = values
        self._refusal = refusal
        self._asked: set[str] = set()

    @classmethod
    def of(
        cls, text: str, *, where: str, refusal: type[StrettoError] = TopologyError
    ) -> Reader:
        """Return the whole of a TOML text as one table."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise refusal(f"{where}: not TOML: {e}") from None
        except (RecursionError, ValueError) as e:
            raise refusal(f"{where}: not TOML: {str(e)[:80]}") from None
        return cls(table, where=where, path="", values={}, refusal=refusal)

    def wrong(self, key: str, want: str) -> StrettoError:
        """Return the error that says what stands at `key`, and what should."""
        name = f"{self.path}.{key}" if self.path else key
        got = _shown(self._table[key]) if key in self._table else "nothing"
        return self._refusal(f"{self.where}, {name}: got {got}; want {want}")

    def among(self, key: str, known: Iterable[str]) -> StrettoError:
        """Return the error of a name that is none of those known."""
        return self.wrong(key, _among(str(self._table.get(key)), known))

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def _get(self, key: str, default: Any, want: str) -> Any:
        self._asked.add(key)
        value = self._table.get(key, default)
        if value is _REQUIRED:
            raise self.wrong(key, want)
        if isinstance(value, str):
            return self._values.get(value, value)
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a text."""
        self._asked.add(key)
        value = self._table.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """Return a number that is not negative; `inf` is one."""
        want = "a number, 0 or more"
        value = self._get(key, default, want)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or math.isnan(value) or value < 0:
            raise self.wrong(key, want)
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(key, want) from None

    def integer(self, key: str, default: int = _REQUIRED, *, least: int = 0) -> int:
        """Return a whole number of at least `least`."""
        want = f"a whole number, {least} or more (at most {_MOST})"
        value = self._get(key, default, want)
        if not _is_whole(value) or not least <= value <= _MOST:
            raise self.wrong(key, want)
        return int(value)

    def integers(self, key: str, *, below: int | None = None) -> tuple[int, ...]:
        """Return a list of whole numbers, not negative, `below` a limit."""
        want = "a list of whole numbers" + (f" below {below}" * (below is not None))
        value = self._get(key, _REQUIRED, want)
        if not isinstance(value, list | tuple) or not all(
            _is_whole(v) and 0 <= v <= _MOST and (below is None or v < below)
            for v in value
        ):
            raise self.wrong(key, want)
        return tuple(value)

    def lists(self, key: str, *, below: int, each: int = 0) -> list[tuple[int, ...]]:
        """Return a list of lists of whole numbers below a limit, `each` in each."""
        size = f"{each} " if each else ""
        want = f"a list of lists of {size}whole numbers below {below}"
        value = self._get(key, _REQUIRED, want)
        if not isinstance(value, list) or not all(
            isinstance(row, list)
            and (not each or len(row) == each)
            and all(_is_whole(v) and 0 <= v < below for v in row)
            for row in value
        ):
            raise self.wrong(key, want)
        return [tuple(row) for row in value]

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self._get(key, _REQUIRED, "a list of texts")
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def raw(self, key: str) -> Any:
        """Return whatever stands there, for the caller to judge."""
        return self._get(key, _REQUIRED, "something")

    def table(self, key: str) -> Reader:
        """Return a table inside this one; a missing one is empty."""
        value = self._get(key, {}, "a table")
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return self._inner(value, key)

    def tables(self, key: str) -> Iterator[Reader]:
        """Yield the tables of a list of tables; a missing one is empty."""
        value = self._get(key, [], "a list of tables")
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self.wrong(key, "a list of tables, each under [[...]]")
        for index, table in enumerate(value):
            yield self._inner(table, f"{key}[{index}]")

    def _inner(self, table: Mapping[str, Any], key: str) -> Reader:
        path = f"{self.path}.{key}" if self.path else key
        return Reader(
            table,
            where=self.where,
            path=path,
            values=self._values,
            refusal=self._refusal,
        )

    @property
    def whole(self) -> Mapping[str, Any]:
        """Return the table as it was read."""
        return self._table

    @property
    def names(self) -> tuple[str, ...]:
        """Return the keys that are there."""
        return tuple(self._table)

    def done(self) -> None:
        """Refuse keys that mean nothing here."""
        if unknown := sorted(set(self._table) - self._asked):
            name = f"{self.path}.{unknown[0]}" if self.path else unknown[0]
            want = _among(unknown[0], self._asked)
            raise self._refusal(f"{self.where}, {name}: no such key; want {want}")


def _among(got: str, known: Iterable[str]) -> str:
    """Return which names there are, and which is the nearest."""
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.6)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"one of {', '.join(names)}{meant}"


def _shown(value: Any) -> str:
    """Return a value as messages have it: short, whatever it is."""
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # too many digits, or levels
        return f"a {type(value).__name__} that is too long to show"
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def _is_whole(value: Any) -> bool:
    """Return whether that is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)
