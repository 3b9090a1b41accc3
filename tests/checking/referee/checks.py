"""Whether what a caller finds is what it wants."""

from __future__ import annotations

from tests.checking.referee.calls import Want
from tests.checking.referee.values import Values
from tests.checking.referee.verdict import Fault, Outcome

__all__ = ["Checker"]


class Checker:
    """Compares results, and remembers which sums were found: ranks must agree."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.agreed: dict[tuple[int, ...], tuple[int, str]] = {}
        """By what they are made of, the sums that were found, and where first."""

    def copy(self) -> Checker:
        """Return another one that remembers the same."""
        other = Checker(self._values)
        other.agreed = self.agreed.copy()
        return other

    def check(self, want: Want, got: int) -> None:
        """Raise `Fault` unless the value is the one that is wanted."""
        if got == want.value:
            return
        values = self._values
        spelt = f"{want.what} is {values.spell(got)}"
        if not want.leaves:  # exactly one value would do
            assert want.value is not None
            raise Fault(Outcome.WRONG, f"{spelt}; want {self._spell(want)}")
        whole = values.undivided(got) if want.divided else got
        if whole is None or values.leaves(whole) != want.leaves:
            raise Fault(Outcome.WRONG, f"{spelt}; want {self._spell(want)}")
        if want.value is not None:
            raise Fault(Outcome.ORDER, f"{spelt}; want {self._spell(want)}")
        other, where = self.agreed.setdefault(want.leaves, (got, want.what))
        if other != got:
            text = f"{spelt}, and {where} is {values.spell(other)}"
            raise Fault(Outcome.ORDER, text)

    def _spell(self, want: Want) -> str:
        values = self._values
        if want.value is not None:
            return values.spell(want.value)
        whole = " + ".join(map(values.spell, want.leaves))
        return f"({whole})/n, in any order" if want.divided else whole
