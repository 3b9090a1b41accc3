"""Terms: what a policy is made of, and what each operator takes and gives.

Every term has a value for every input: there are no loops, no state and no calls, a
quotient by zero is zero, and no result leaves the numbers from -LARGEST to LARGEST.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["LARGEST", "NUMBER", "OPERATORS", "TRUTH", "Term", "TermOperator", "kind_of"]

NUMBER, TRUTH = "number", "truth"
LARGEST = 1e300
"""No result is larger: it is cut off there."""


@dataclass(frozen=True, slots=True)
class TermOperator:
    """An operator: what it takes, what it gives, how it is written."""

    takes: tuple[str, ...]
    gives: str
    symbol: str = ""
    """Between its two operands, or before its one; none: it is written as a call."""
    binds: int = 9
    """How tightly, compared with others."""


_TWO = (NUMBER, NUMBER)
OPERATORS: Mapping[str, TermOperator] = MappingProxyType(
    {
        "or": TermOperator((TRUTH, TRUTH), TRUTH, "or", 1),
        "and": TermOperator((TRUTH, TRUTH), TRUTH, "and", 2),
        "not": TermOperator((TRUTH,), TRUTH, "not", 3),
        "lt": TermOperator(_TWO, TRUTH, "<", 4),
        "le": TermOperator(_TWO, TRUTH, "<=", 4),
        "gt": TermOperator(_TWO, TRUTH, ">", 4),
        "ge": TermOperator(_TWO, TRUTH, ">=", 4),
        "add": TermOperator(_TWO, NUMBER, "+", 5),
        "sub": TermOperator(_TWO, NUMBER, "-", 5),
        "mul": TermOperator(_TWO, NUMBER, "*", 6),
        "div": TermOperator(_TWO, NUMBER, "/", 6),
        "neg": TermOperator((NUMBER,), NUMBER, "-", 7),
        "min": TermOperator(_TWO, NUMBER),
        "max": TermOperator(_TWO, NUMBER),
        "log": TermOperator((NUMBER,), NUMBER),
        "where": TermOperator((TRUTH, NUMBER, NUMBER), NUMBER),
    }
)
"""`log` is the logarithm of one more than a number, with the sign of the number."""


@dataclass(frozen=True, slots=True)
class Term:
    """An operator with its operands, a feature by its name, or a number."""

    op: str
    """One of OPERATORS, `number` or `feature`."""
    args: tuple[Term, ...] = ()
    value: float = 0.0
    name: str = ""

    @classmethod
    def number(cls, value: float) -> Term:
        """Return a number as a term."""
        return cls("number", value=float(value))

    @classmethod
    def feature(cls, name: str) -> Term:
        """Return what an input is called."""
        return cls("feature", name=name)

    def walk(self) -> Iterator[Term]:
        """Yield this term and all below, the outermost first."""
        waiting = [self]
        while waiting:
            term = waiting.pop()
            yield term
            waiting += reversed(term.args)

    @property
    def size(self) -> int:
        """How many terms there are, this one included."""
        return sum(1 for _ in self.walk())

    @property
    def depth(self) -> int:
        """How many lie inside one another."""
        level, deepest = [self], 0
        while level:
            level, deepest = [a for term in level for a in term.args], deepest + 1
        return deepest

    def put(self, at: int, new: Term) -> Term:
        """Return this term with the one that `walk` yields as number `at` replaced."""
        if at == 0:
            return new
        at, args = at - 1, list(self.args)
        for i, arg in enumerate(args):
            size = arg.size
            if at < size:
                args[i] = arg.put(at, new)
                return Term(self.op, tuple(args))
            at -= size
        raise IndexError(f"a term of {self.size} has no number {at}")

    @property
    def digest(self) -> str:
        """Return what two terms share only if they are the same."""
        found = "".join(f"{t.op}:{t.name}:{t.value!r};" for t in self.walk())
        return hashlib.sha256(found.encode()).hexdigest()[:16]


def kind_of(term: Term) -> str:
    """Return what a term's value is: NUMBER or TRUTH. Features are numbers."""
    return OPERATORS[term.op].gives if term.op in OPERATORS else NUMBER
