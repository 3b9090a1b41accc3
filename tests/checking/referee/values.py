"""What a cell holds: an expression that keeps the order and the shape of its sums.

Expressions are numbers here: equal expressions are one number, so comparing is cheap.
A sum of k sources is one sum, rounded once; a sum of sums is rounded in between.
"""

from __future__ import annotations

__all__ = ["NOTHING", "Values"]

NOTHING = 0
"""What memory holds that nobody wrote."""


class Values:
    """All expressions of one run, by number."""

    __slots__ = ("_found", "_leaves", "_made")

    def __init__(self) -> None:
        self._made: list[tuple[object, ...]] = [("nothing",)]
        self._found: dict[tuple[object, ...], int] = {}
        self._leaves: dict[int, tuple[int, ...]] = {}

    def _number(self, what: tuple[object, ...]) -> int:
        number = self._found.get(what)
        if number is None:
            number = self._found[what] = len(self._made)
            self._made.append(what)
        return number

    def given(self, call: int, rank: int, element: int) -> int:
        """Return what a rank passes in a call, at an element of its input."""
        return self._number(("x", call, rank, element))

    def combined(self, parts: tuple[int, ...]) -> int:
        """Return the combination of several, left to right, rounded once."""
        return parts[0] if len(parts) == 1 else self._number(("+", *parts))

    def divided(self, whole: int) -> int:
        """Return a final sum as an average would have it: divided once."""
        return self._number(("/", whole))

    def undivided(self, whole: int) -> int | None:
        """Return what was divided, or None when nothing was."""
        made = self._made[whole]
        return made[1] if made[0] == "/" else None  # type: ignore[return-value]

    def leaves(self, whole: int) -> tuple[int, ...]:
        """Return what was given that a value is made of, with repetitions, sorted."""
        if whole in self._leaves:
            return self._leaves[whole]
        made = self._made[whole]
        if made[0] in ("x", "nothing"):
            found: tuple[int, ...] = (whole,)
        else:
            parts: list[int] = []
            for part in made[1:]:
                parts += self.leaves(part)  # type: ignore[arg-type]
            found = tuple(sorted(parts))
        self._leaves[whole] = found
        return found

    def spell(self, whole: int) -> str:
        """Return an expression as text."""
        kind, *rest = self._made[whole]
        if kind == "nothing":
            return "what nobody wrote"
        if kind == "x":
            call, rank, element = rest
            later = f" of call {call}" if call else ""
            return f"r{rank}.x[{element}]{later}"
        parts = [self.spell(part) for part in rest]  # type: ignore[arg-type]
        return f"({' + '.join(parts)})" if kind == "+" else f"{parts[0]}/n"
