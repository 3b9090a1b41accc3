"""Spaces of configurations: knobs, when each counts, and what must hold between them.

[knobs]
parallel = { values = ["tensor", "pipeline"] }
stages = { values = [2, 4, 8], when = { parallel = ["pipeline"] } }
bucket_mb = { low = 1, high = 256, log = true, whole = true }

[must]
hold = ["stages * bucket_mb <= 512"]
"""

from __future__ import annotations

import functools
import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.errors import CallError, ParseError, UnknownNameError, reading
from stretto.search.language import TRUTH, MachineCode, Term, code_of, parse, value_of
from stretto.search.language.machine import DEEPEST

__all__ = ["Configuration", "Knob", "Space", "load_space"]

Value: TypeAlias = str | bool | int | float
Configuration: TypeAlias = tuple[tuple[str, Value], ...]
"""The knobs that count, with their values, in the order of the space."""

_TRIES = 2000
_MOST = 1e300
"""The largest number of a space, as in the language of what must hold."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob: some values, or all numbers from `low` to `high`."""

    name: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    @property
    def is_dense(self) -> bool:
        """Whether it is a number of a range, or one of three numbers or more."""
        numbers = all(isinstance(v, int | float) for v in self.values)
        plain = not any(isinstance(v, bool) for v in self.values)
        return not self.values or (numbers and plain and len(self.values) > 2)

    def place(self, value: Value) -> float:
        """Return where a value lies, 0 to 1."""
        if self.values:
            return self.values.index(value) / max(1, len(self.values) - 1)
        at, low, high = float(value), self.low, self.high
        if self.log:
            at, low, high = math.log(at), math.log(low), math.log(high)
        return (at - low) / (high - low) if high > low else 0.0

    def value(self, place: float) -> Value:
        """Return the value nearest to a place."""
        place = min(1.0, max(0.0, place))
        if self.values:
            return self.values[round(place * (len(self.values) - 1))]
        low, high = self.low, self.high
        if self.log:
            found = math.exp(math.log(low) + place * (math.log(high) - math.log(low)))
        else:
            found = low + place * (high - low)
        if self.whole:
            return round(found)
        return float(f"{min(high, max(low, found)):.6g}")

    def parse(self, text: str) -> Value:
        """Return the value that a text means."""
        for value in self.values:
            if _said(value) == text:
                return value
        if self.values:
            raise UnknownNameError.among(
                f"value of {self.name}", text, map(_said, self.values)
            )
        try:
            found: Value = int(text) if self.whole else float(text)
        except ValueError:
            found = math.nan
        if not self.low <= float(found) <= self.high:
            raise ParseError(
                f"{self.name}={text[:40]}: want {'whole, ' * self.whole}"
                f"{self.low:g} to {self.high:g}"
            )
        return found


@dataclass(frozen=True)
class Space:
    """Knobs, and what must hold."""

    knobs: tuple[Knob, ...]
    hold: tuple[tuple[str, Term], ...] = ()
    name: str = "space"

    def counts(self, knob: Knob, chosen: Mapping[str, Value]) -> bool:
        """Return whether a knob counts, given those before it."""
        return all(chosen.get(k) in values for k, values in knob.when.items())

    def broken(self, chosen: Mapping[str, Value]) -> str:
        """Return what does not hold, or nothing. A knob that does not count is 0."""
        row = np.array([_size(chosen.get(k.name, 0)) for k in self.knobs])
        for text, code in self._codes:
            if not value_of(code.words, code.values, row, self._stack):
                return text
        return ""

    @functools.cached_property
    def _codes(self) -> list[tuple[str, MachineCode]]:
        names = [k.name for k in self.knobs]
        return [(text, code_of(term, names)) for text, term in self.hold]

    @functools.cached_property
    def _stack(self) -> NDArray[np.float64]:
        return np.zeros(DEEPEST)

    def complete(
        self, wanted: Mapping[str, Value], rng: random.Random
    ) -> Configuration | None:
        """Return a configuration near what is wanted; None where nothing holds.

        Knobs that are not wanted are drawn; so are, one after the other, those of
        which something that must hold does not.
        """
        wanted = dict(wanted)
        for _ in range(12):
            chosen: dict[str, Value] = {}
            for knob in self.knobs:
                if self.counts(knob, chosen):
                    value = wanted.get(knob.name)
                    chosen[knob.name] = (
                        self._drawn(knob, rng) if value is None else value
                    )
            broken = self.broken(chosen)
            if not broken:
                return tuple(chosen.items())
            free = [k.name for k in self.knobs if k.name in broken and k.name in wanted]
            if free:
                wanted.pop(rng.choice(free))
        return None

    def _drawn(self, knob: Knob, rng: random.Random) -> Value:
        return rng.choice(knob.values) if knob.values else knob.value(rng.random())

    def draw(self, rng: random.Random) -> Configuration:
        """Return a random configuration; CallError names what never holds."""
        broken: dict[str, int] = {}
        for _ in range(_TRIES):
            chosen: dict[str, Value] = {}
            for knob in self.knobs:
                if self.counts(knob, chosen):
                    chosen[knob.name] = self._drawn(knob, rng)
            why = self.broken(chosen)
            if not why:
                return tuple(chosen.items())
            broken[why] = broken.get(why, 0) + 1
        worst = max(broken, key=lambda why: broken[why])
        raise CallError(
            f"{self.name}: none of {_TRIES} configurations has {worst!r}: want a space "
            "where it can hold"
        )

    def spell(self, chosen: Configuration) -> str:
        """Return a configuration as text: NAME=VALUE, one after the other."""
        return " ".join(f"{name}={_said(value)}" for name, value in chosen)

    def parse(self, text: str) -> Configuration:
        """Return the configuration of a text."""
        given: dict[str, str] = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            if not equals or name in given:
                raise ParseError(f"{word[:60]!r}: want NAME=VALUE, each name once")
            given[name] = value
        chosen: dict[str, Value] = {}
        for knob in self.knobs:
            if self.counts(knob, chosen):
                if knob.name not in given:
                    raise ParseError(f"{text[:120]!r}: {knob.name} is missing")
                chosen[knob.name] = knob.parse(given.pop(knob.name))
        if given:
            known = [k.name for k in self.knobs]
            name = next(iter(given))
            if name in known:
                raise ParseError(f"{text[:120]!r}: {name} does not count here")
            raise UnknownNameError.among("knob", name, known)
        if broken := self.broken(chosen):
            raise ParseError(f"{text[:120]!r}: {broken} does not hold")
        return tuple(chosen.items())

    def places(self, chosen: Configuration) -> NDArray[np.float64]:
        """Return where each knob stands; far off what does not count."""
        given = dict(chosen)
        return np.array(
            [
                -9.0 if knob.name not in given
                else knob.place(given[knob.name]) if knob.is_dense
                else float(knob.values.index(given[knob.name]))
                for knob in self.knobs
            ]
        )  # fmt: skip


def _said(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size(value: Value) -> float:
    """Return a value as a number that may be compared; words are 0."""
    return float(value) if isinstance(value, int | float) else 0.0


def _is_number(value: Any) -> bool:
    """Return whether that is a number with which one can reckon on."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= _MOST


def load_space(path: Path) -> Space:
    """Return the space of a TOML file; ParseError names the knob and what is wrong."""
    with reading(ParseError, str(path), "TOML with a table [knobs]"):
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    knobs = told.get("knobs")
    if not isinstance(knobs, dict) or not knobs:
        raise ParseError(f"{path}: want a table [knobs] with a knob or more")
    made: list[Knob] = []
    for name, said in knobs.items():
        made.append(_knob(path, name, said, made))
    must = told.get("must", {})
    hold = must.get("hold", []) if isinstance(must, dict) else None
    if not isinstance(hold, list) or not all(isinstance(text, str) for text in hold):
        raise ParseError(
            f"{path}: must.hold: want a list of texts such as 'a * b <= 8'"
        )
    names = [k.name for k in made]
    terms = tuple((text, parse(text, names, kind=TRUTH)) for text in hold)
    return Space(tuple(made), terms, path.stem)


def _knob(path: Path, name: str, said: Any, before: Sequence[Knob]) -> Knob:
    def wrong(why: str) -> ParseError:
        return ParseError(f"{path}: knobs.{name}: {why}")

    if not name.isidentifier():
        raise wrong("want a name of letters, digits and _")
    if not isinstance(said, dict):
        raise wrong(
            "want a table, such as { values = [1, 2] } or { low = 1, high = 9 }"
        )
    known = {"values", "low", "high", "log", "whole", "when"}
    if odd := sorted({*said} - known):
        raise wrong(f"{odd[0]} means nothing: want {', '.join(sorted(known))}")
    when = said.get("when", {})
    earlier = {k.name: k for k in before}
    if not isinstance(when, dict) or not all(
        isinstance(v, list) for v in when.values()
    ):
        raise wrong("when: want { KNOB = [VALUES] }")
    for other, values in when.items():
        if other not in earlier:
            raise wrong(f"when names {other}, which does not come before it")
        if odd_values := [v for v in values if v not in earlier[other].values]:
            raise wrong(f"when: {other} is never {odd_values[0]!r}")
    conditions = {key: tuple(values) for key, values in when.items()}
    if "values" in said:
        values = said["values"]
        fits = isinstance(values, list) and values
        plain = str, bool, float
        if not fits or not all(isinstance(v, plain) or _is_number(v) for v in values):
            raise wrong("values: want a list of words, numbers, true and false")
        if len(set(map(_said, values))) != len(values) or any(
            not _said(v) or set(_said(v)) & set(" \t\n=") for v in values
        ):
            raise wrong("values: want each once, without blanks and =")
        return Knob(name, tuple(values), when=conditions)
    low, high = said.get("low", math.nan), said.get("high", math.nan)
    if not _is_number(low) or not _is_number(high):
        raise wrong(f"want values, or low and high, numbers up to {_MOST:g}")
    log, whole = bool(said.get("log")), bool(said.get("whole"))
    if not float(low) < float(high) or (log and float(low) <= 0):
        raise wrong(f"low={low}, high={high}: want low < high{', above 0' * log}")
    return Knob(name, (), float(low), float(high), log, whole, conditions)
