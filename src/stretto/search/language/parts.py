"""A policy of several parts, each a term of its own: one line a part, `name = term`."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ParseError, UnknownNameError
from stretto.search.language.machine import code_of, evaluate
from stretto.search.language.terms import NUMBER, Term, kind_of
from stretto.search.language.text import MOST_TEXT, parse, spell

__all__ = ["Form", "Policy"]

_PROBES = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """What a search looks for where it looks for terms."""

    parts: tuple[tuple[str, Term], ...]

    def __getitem__(self, name: str) -> Term:
        """Return a part."""
        return dict(self.parts)[name]

    @property
    def size(self) -> int:
        """How many terms all parts have."""
        return sum(term.size for _, term in self.parts)


@dataclass(frozen=True)
class Form:
    """Which parts a policy has, of which kind, and what they may look at."""

    features: tuple[str, ...]
    kinds: Mapping[str, str] = field(default_factory=lambda: {"score": NUMBER})
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Parts that a text may leave out, and what they are then."""
    largest: Mapping[str, float] = field(default_factory=dict)
    """How large a feature usually becomes, where it is not about 1,000."""

    orders: bool = False
    """Whether of `score` it only counts which of two is the larger."""

    def spell(self, policy: Policy) -> str:
        """Return a policy as text: one line a part, a lone part without its name."""
        if len(self.kinds) == 1:
            return spell(policy.parts[0][1])
        return "\n".join(f"{name} = {spell(term)}" for name, term in policy.parts)

    def parse(self, text: str) -> Policy:
        """Return the policy that a text means; ParseError says what is wrong."""
        if len(text) > MOST_TEXT:
            raise ParseError(f"{len(text)} characters: want at most {MOST_TEXT}")
        if len(self.kinds) == 1 and "=" not in text.replace("<=", "").replace(">=", ""):
            (name,) = self.kinds
            return self._made({name: text})
        lines = dict(self.defaults)
        seen: set[str] = set()
        for line in filter(None, (line.strip() for line in text.splitlines())):
            name, equals, term = line.partition("=")
            name = name.strip()
            if not equals or name in seen:
                raise ParseError(
                    f"{line[:80]!r}: want one line for each part, as NAME = TERM"
                )
            if name not in self.kinds:
                raise UnknownNameError.among("part", name, self.kinds)
            seen.add(name)
            lines[name] = term.strip()
        if missing := [name for name in self.kinds if name not in lines]:
            raise ParseError(f"no line for {', '.join(missing)}: want NAME = TERM")
        return self._made(lines)

    def _made(self, lines: Mapping[str, str]) -> Policy:
        made = []
        for name, kind in self.kinds.items():
            term = parse(lines[name], self.features)
            if kind_of(term) != kind:
                raise ParseError(f"{name} = {lines[name][:80]}: want a {kind}")
            made.append((name, term))
        return Policy(tuple(made))

    @functools.cached_property
    def _probes(self) -> NDArray[np.float64]:
        """Return random features, small ones as likely as large ones."""
        rng = random.Random(64)
        powers = [[rng.random() for _ in self.features] for _ in range(_PROBES)]
        largest = [self.largest.get(name, 1000.0) for name in self.features]
        return np.floor(np.power(largest, powers))

    def behaviour(self, policy: Policy) -> str:
        """Return what policies share that decide alike on random features."""
        told = hashlib.sha256()
        for name, term in policy.parts:
            values = evaluate(code_of(term, self.features), self._probes)
            if self.orders and name == "score":
                values = np.unique(values, return_inverse=True)[1].astype(float)
            told.update(values.tobytes())
        return told.hexdigest()[:16]
