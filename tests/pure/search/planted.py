"""A problem whose answer is known: find a formula from its values."""

from typing import ClassVar

from stretto.search import PolicyProblem, Verdict
from stretto.search.language import Form, code_of, evaluate

FORMULAS = ("age * 2 + count", "count / (age + 1)", "where(age > count, age, size)",
            "max(age, count) - log(size)", "min(age, 3) * count")  # fmt: skip


class Planted(PolicyProblem):
    """Find a formula from its values."""

    name: ClassVar[str] = "planted"
    form: ClassVar[Form] = Form(("age", "count", "size"))
    begin: ClassVar = ("age", "count + size")
    rungs = ("few", "many")

    def __init__(self, formula=FORMULAS[0]):
        self._formula = formula
        self._want = self.form.parse(formula)

    @property
    def said(self):
        return {"formula": self._formula}

    def _error(self, candidate, rows):
        features = self.form.features
        got, want = (
            evaluate(code_of(p["score"], features), rows)
            for p in (candidate, self._want)
        )
        return float((abs(got - want) / (1 + abs(want))).clip(0, 9).mean())

    def judge(self, candidate, rung, *, fresh):
        return Verdict.of(self._error(candidate, self.form._probes[: (8, 64)[rung]]))

    def held_out(self, candidate):
        return {"error": self._error(candidate, self.form._probes + 7)}
