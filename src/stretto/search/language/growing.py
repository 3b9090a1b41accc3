"""How terms are changed: typed genetic programming, from a stream of random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from stretto.search.language.parts import Form, Policy
from stretto.search.language.terms import NUMBER, OPERATORS, TRUTH, Term, kind_of
from stretto.search.language.text import MOST_DEPTH

__all__ = ["CHANGES", "Change", "changed", "grown"]

Change = Callable[[Form, Sequence[Policy], random.Random], Policy]

MOST = 40
"""Terms of a part; what a search makes stays far below what may be read."""
_TRIES = 8
_CALM: Mapping[str, tuple[str, ...]] = {
    NUMBER: ("add", "sub", "mul", "div", "min", "max", "log", "where", "neg"),
    TRUTH: ("lt", "le", "gt", "ge", "and", "or", "not"),
}


def grown(form: Form, kind: str, depth: int, rng: random.Random) -> Term:
    """Return a random term of a kind, at most so deep."""
    if kind == NUMBER and (depth <= 1 or rng.random() < 0.25):
        if rng.random() < 0.75:
            return Term.feature(rng.choice(form.features))
        return Term.number(_number(rng))
    names = _CALM[kind] if depth > 2 or kind == NUMBER else _CALM[kind][:4]
    name = rng.choice(names)
    args = tuple(grown(form, k, depth - 1, rng) for k in OPERATORS[name].takes)
    return Term(name, args)


def _number(rng: random.Random) -> float:
    return float(f"{10 ** rng.uniform(-2, 4):.2g}")


def _with(policy: Policy, name: str, term: Term) -> Policy:
    return Policy(tuple((n, term if n == name else t) for n, t in policy.parts))


def _pick(policy: Policy, rng: random.Random) -> tuple[str, Term]:
    """Return a part, the larger ones more often."""
    return rng.choices(policy.parts, [t.size for _, t in policy.parts])[0]


def _replace(form: Form, parents: Sequence[Policy], rng: random.Random) -> Policy:
    """A random term takes the place of another."""
    name, term = _pick(parents[0], rng)
    at = rng.randrange(term.size)
    old = list(term.walk())[at]
    new = grown(form, kind_of(old), rng.choice((1, 2, 2, 3)), rng)
    return _with(parents[0], name, term.put(at, new))


def _tune(form: Form, parents: Sequence[Policy], rng: random.Random) -> Policy:
    """A number becomes a little larger or smaller, or one is multiplied in."""
    name, term = _pick(parents[0], rng)
    places = [i for i, t in enumerate(term.walk()) if t.op == "number"]
    if not places:
        places = [i for i, t in enumerate(term.walk()) if kind_of(t) == NUMBER]
        if not places:
            return _replace(form, parents, rng)
        at = rng.choice(places)
        factor = Term.number(float(f"{2 ** rng.gauss(0, 1.5):.2g}"))
        return _with(
            parents[0], name, term.put(at, Term("mul", (factor, list(term.walk())[at])))
        )
    at = rng.choice(places)
    value = list(term.walk())[at].value * 2 ** rng.gauss(0, rng.choice((0.2, 1.0)))
    return _with(parents[0], name, term.put(at, Term.number(float(f"{value:.3g}"))))


def _turn(form: Form, parents: Sequence[Policy], rng: random.Random) -> Policy:
    """An operator becomes another that takes and gives the same; so do features."""
    name, term = _pick(parents[0], rng)
    at = rng.randrange(term.size)
    old = list(term.walk())[at]
    if old.op in OPERATORS:
        like = OPERATORS[old.op]
        names = [
            n for n, o in OPERATORS.items()
            if (o.takes, o.gives) == (like.takes, like.gives) and n != old.op
        ]  # fmt: skip
        if not names:
            return _replace(form, parents, rng)
        new = Term(rng.choice(names), old.args)
    else:
        new = Term.feature(rng.choice(form.features))
    return _with(parents[0], name, term.put(at, new))


def _wrap(form: Form, parents: Sequence[Policy], rng: random.Random) -> Policy:
    """A term becomes an operand of a new one."""
    name, term = _pick(parents[0], rng)
    places = [i for i, t in enumerate(term.walk()) if kind_of(t) == NUMBER]
    if not places:
        return _replace(form, parents, rng)
    at = rng.choice(places)
    op = rng.choice(_CALM[NUMBER])
    takes = OPERATORS[op].takes
    mine = rng.choice([i for i, k in enumerate(takes) if k == NUMBER])
    old = list(term.walk())[at]
    args = tuple(
        old if i == mine else grown(form, k, 2, rng) for i, k in enumerate(takes)
    )
    return _with(parents[0], name, term.put(at, Term(op, args)))


def _lift(form: Form, parents: Sequence[Policy], rng: random.Random) -> Policy:
    """A term gives way to one of its own operands: it becomes shorter."""
    name, term = _pick(parents[0], rng)
    every = list(term.walk())
    places = [
        i for i, t in enumerate(every) if any(kind_of(a) == kind_of(t) for a in t.args)
    ]
    if not places:
        return _turn(form, parents, rng)
    at = rng.choice(places)
    old = every[at]
    new = rng.choice([a for a in old.args if kind_of(a) == kind_of(old)])
    return _with(parents[0], name, term.put(at, new))


def _cross(form: Form, parents: Sequence[Policy], rng: random.Random) -> Policy:
    """A term of the second parent takes the place of one of the first."""
    name, term = _pick(parents[0], rng)
    at = rng.randrange(term.size)
    kind = kind_of(list(term.walk())[at])
    theirs = [
        t for _, part in parents[1].parts for t in part.walk() if kind_of(t) == kind
    ]
    if not theirs:
        return _replace(form, parents, rng)
    return _with(parents[0], name, term.put(at, rng.choice(theirs)))


CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "replace": _replace, "tune": _tune, "turn": _turn,
        "wrap": _wrap, "lift": _lift, "cross": _cross,
    }
)  # fmt: skip


def changed(
    form: Form, change: str, parents: Sequence[Policy], rng: random.Random
) -> Policy:
    """Return a policy made of others, small enough to go on with."""
    for _ in range(_TRIES):
        made = CHANGES[change](form, parents, rng)
        sizes = [term.size for _, term in made.parts]
        depths = [term.depth for _, term in made.parts]
        if max(sizes) <= MOST and max(depths) < MOST_DEPTH:
            return made
    return parents[0]
