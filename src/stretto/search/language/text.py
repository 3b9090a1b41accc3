"""Terms as text: printed with the fewest parentheses, and read again.

What is read may come from anybody, a language model too: it is parsed, within limits of
length, size and depth, and never executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from stretto.errors import ParseError, UnknownNameError
from stretto.search.language.terms import (
    LARGEST,
    OPERATORS,
    Term,
    TermOperator,
    kind_of,
)

__all__ = ["MOST_DEPTH", "MOST_TERMS", "MOST_TEXT", "parse", "spell"]

MOST_TEXT, MOST_TERMS, MOST_DEPTH = 4096, 200, 24
"""Characters, terms, and terms inside one another, that are read."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<symbol><=|>=|[-+*/<>(),]))",
    re.ASCII,
)
_BETWEEN = {o.symbol: n for n, o in OPERATORS.items() if o.symbol and len(o.takes) == 2}
_BEFORE = {o.symbol: n for n, o in OPERATORS.items() if o.symbol and len(o.takes) == 1}
_CALLED = {n: o for n, o in OPERATORS.items() if not o.symbol}


def spell(term: Term) -> str:
    """Return a term as text."""
    return _spell(term, 0)


def _spell(term: Term, outside: int) -> str:
    if term.op == "feature":
        return term.name
    if term.op == "number":
        text = repr(term.value).removesuffix(".0")
        return (
            f"({text})" if term.value < 0 and outside > OPERATORS["neg"].binds else text
        )
    op = OPERATORS[term.op]
    if not op.symbol:
        return f"{term.op}({', '.join(_spell(arg, 0) for arg in term.args)})"
    if len(term.args) == 1:
        word = " " if op.symbol.isalpha() else ""
        inner = _spell(term.args[0], op.binds + 1)
        if term.args[0].op == "number" and not inner.startswith("("):
            inner = f"({inner})"  # or it would be read as one number
        text = f"{op.symbol}{word}{inner}"
    else:
        left, right = term.args
        compares = op.binds == OPERATORS["lt"].binds
        text = (
            f"{_spell(left, op.binds + compares)} {op.symbol} "
            f"{_spell(right, op.binds + 1)}"
        )
    return f"({text})" if op.binds < outside else text


def parse(text: str, features: Collection[str], *, kind: str = "") -> Term:
    """Return the term that a text means; of a `kind`, if one is named.

    ParseError: what is wrong, where, and what would be right.
    """
    if len(text) > MOST_TEXT:
        raise ParseError(f"a term of {len(text)} characters: want at most {MOST_TEXT}")
    reader = _Reader(text, features)
    term = reader.term(0, 1)
    reader.end()
    if kind and kind_of(term) != kind:
        raise ParseError(f"{text!r} is a {kind_of(term)}: want a {kind}")
    return term


class _Reader:
    """Tokens of a text, and what they mean: operators by how tightly they bind."""

    def __init__(self, text: str, features: Collection[str]) -> None:
        self._text, self._features = text, features
        self._at, self._count = 0, 0
        self._next = self._token()

    def _token(self) -> tuple[str, str]:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            rest = self._text[self._at :].strip()
            if rest:
                raise self._wrong(f"{rest[0]!r} means nothing here")
            return "end", ""
        self._at = found.end()
        kind = str(found.lastgroup)
        return kind, found[kind]

    def _take(self) -> tuple[str, str]:
        taken, self._next = self._next, self._token()
        return taken

    def _wrong(self, why: str) -> ParseError:
        return ParseError(f"{self._text[:120]!r}, before character {self._at}: {why}")

    def _want(self, symbol: str) -> None:
        kind, word = self._take()
        if word != symbol:
            raise self._wrong(f"want {symbol!r}, not {word or kind!r}")

    def end(self) -> None:
        """Raise ParseError if something is left."""
        if self._next[0] != "end":
            raise self._wrong(f"{self._next[1]!r} comes after the end of a term")

    def term(self, binds: int, depth: int) -> Term:
        """Read a term whose operators bind at least so tightly."""
        if depth > MOST_DEPTH:
            raise self._wrong(f"want at most {MOST_DEPTH} terms inside one another")
        left = self._first(depth)
        while True:
            kind, word = self._next
            name = _BETWEEN.get(word) if kind in ("symbol", "name") else None
            op = OPERATORS[name] if name else None
            if name is None or op is None or op.binds < binds:
                return left
            self._take()
            right = self.term(op.binds + 1, depth + 1)
            left = self._made(name, op, (left, right))

    def _first(self, depth: int) -> Term:
        kind, word = self._take()
        if kind == "number":
            return self._number(float(word))
        if word == "(":
            term = self.term(0, depth + 1)
            self._want(")")
            return term
        if word in _BEFORE:
            name = _BEFORE[word]
            op = OPERATORS[name]
            if word == "-" and self._next[0] == "number":
                return self._number(-float(self._take()[1]))
            return self._made(name, op, (self.term(op.binds + 1, depth + 1),))
        if kind == "name" and self._next[1] == "(":
            return self._call(word, depth)
        if kind == "name" and word in self._features:
            return self._counted(Term.feature(word))
        if kind == "name":
            raise UnknownNameError.among("feature", word, sorted(self._features))
        raise self._wrong(f"want a term, not {word or kind!r}")

    def _call(self, name: str, depth: int) -> Term:
        if name not in _CALLED:
            raise UnknownNameError.among("operator", name, sorted(_CALLED))
        self._want("(")
        args = [self.term(0, depth + 1)]
        while self._next[1] == ",":
            self._take()
            args.append(self.term(0, depth + 1))
        self._want(")")
        return self._made(name, _CALLED[name], tuple(args))

    def _made(self, name: str, op: TermOperator, args: tuple[Term, ...]) -> Term:
        have = tuple(map(kind_of, args))
        if have != op.takes:
            raise self._wrong(
                f"{op.symbol or name} of {', '.join(have)}: want {', '.join(op.takes)}"
            )
        made = self._counted(Term(name, args))
        if made.depth > MOST_DEPTH:
            raise self._wrong(f"want at most {MOST_DEPTH} terms inside one another")
        return made

    def _number(self, value: float) -> Term:
        if not math.isfinite(value) or abs(value) > LARGEST:
            raise self._wrong(f"want numbers up to {LARGEST:g}")
        return self._counted(Term.number(value))

    def _counted(self, term: Term) -> Term:
        self._count += 1
        if self._count > MOST_TERMS:
            raise self._wrong(f"want at most {MOST_TERMS} terms")
        return term
