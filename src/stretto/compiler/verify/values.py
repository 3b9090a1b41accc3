"""How values were made: which inputs were combined, and in which order.

A value is `(expression, chunk)`. An expression is a rank's input, or the combination of
others, each so many chunks further on; equal expressions are one number. So two values
are equal exactly when every machine computes the same bits for both, and a chain of
moves costs no more than a comparison of numbers.

What a value *contains* (`contents.py`) follows from its expression: each contribution,
counted. The promise asks for contents, the program for expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stretto.compiler.verify.contents import Contents, add, moved

Value: TypeAlias = tuple[int, int]
"""An expression, and the chunk of the inputs at which it begins."""


class Values:
    """All expressions of a proof; the first ones are the ranks' inputs."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._operands: list[tuple[Value, ...]] = [()] * num_ranks
        self._contents: list[Contents] = [((0, 1 << r, 1),) for r in range(num_ranks)]
        self._known: dict[tuple[Value, ...], int] = {}

    def input(self, rank: int, chunk: int) -> Value:
        """Return a chunk of a rank's input."""
        return rank, chunk

    def combine(self, parts: Sequence[Value]) -> Value:
        """Return the combination of values, from left to right; of one: itself."""
        if len(parts) == 1:
            return parts[0]
        base = parts[0][1]
        key = tuple([(expression, chunk - base) for expression, chunk in parts])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self._operands)
            self._operands.append(key)
            self._contents.append(self._contents_of(key))
        return found, base

    def _contents_of(self, operands: tuple[Value, ...]) -> Contents:
        total: Contents | None = None
        for expression, further in operands:
            part = moved(self._contents[expression], -further)
            total = part if total is None else add(total, part)
        assert total is not None, "an expression combines something"
        return total

    def contents(self, value: Value, position: int) -> Contents:
        """Return what a value at a position holds, as seen from there."""
        expression, chunk = value
        return moved(self._contents[expression], position - chunk)

    def spell(self, value: Value, most: int = 12) -> str:
        """Return a value as people write it, or its outline when it is long."""
        words = self._spell(value, most)
        return "".join(words[: 4 * most]) + (" ..." if len(words) > 4 * most else "")

    def _spell(self, value: Value, most: int) -> list[str]:
        words: list[str] = []
        todo: list[Value | str] = [value]
        while todo and len(words) <= 4 * most:
            item = todo.pop()
            if isinstance(item, str):
                words.append(item)
                continue
            expression, chunk = item
            if expression < self.num_ranks:
                words.append(f"r{expression}.input[{chunk}]")
                continue
            inside: list[Value | str] = []
            for nth, (operand, further) in enumerate(self._operands[expression]):
                inside += [" + "] if nth else []
                nested = operand >= self.num_ranks
                part: Value = (operand, chunk + further)
                inside += ["(", part, ")"] if nested else [part]
            todo += reversed(inside)
        return words
