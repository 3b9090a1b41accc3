"""A model's proposals: asked with the best so far, parsed like any other text."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from typing import Any

from stretto.errors import StrettoError
from stretto.search.evolve.problem import PolicyProblem, Verdict
from stretto.search.evolve.runs import SearchRun
from stretto.search.language import CHANGES, OPERATORS, Policy, changed
from stretto.search.model.endpoint import Endpoint

__all__ = ["WithModel"]

_BLOCK = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)
_WAY = "model"


class WithModel(PolicyProblem):
    """A problem of policies, with one more way to change them: ask a model.

    Answers are kept in the run by the digest of the question, so a run is resumed or
    replayed without the endpoint. An answer that is nothing costs its budget; then the
    policy is changed as without a model.
    """

    def __init__(
        self, problem: PolicyProblem, endpoint: Endpoint | None, run: SearchRun
    ) -> None:
        """Ask an endpoint; none: only what the run has kept is answered."""
        self._problem, self._endpoint, self._run = problem, endpoint, run
        self.rungs, self.refusals = problem.rungs, dict[str, int]()
        """Why answers were of no use, and how often."""

    def __getattr__(self, name: str) -> Any:
        """Be the problem in everything else."""
        return getattr(self._problem, name)

    @property
    def form(self) -> Any:  # type: ignore[override]
        """Return the problem's form."""
        return self._problem.form

    @property
    def said(self) -> Any:
        """Return what the problem says."""
        return self._problem.said

    def seeds(self) -> Sequence[Policy]:
        """Return the problem's seeds."""
        return self._problem.seeds()

    def changes(self) -> Sequence[str]:
        """Return the ways of the language, and the model."""
        return (*CHANGES, _WAY)

    def change(self, way: str, parents: Sequence[Policy], rng: random.Random) -> Policy:
        """Change policies, or ask."""
        if way != _WAY:
            return changed(self.form, way, parents, rng)
        fallback = changed(self.form, "replace", parents, rng)
        question = self._question(parents)
        digest = hashlib.sha256(question.encode()).hexdigest()
        answer = self._run.answer(digest)
        if answer is None:
            heard = self._endpoint.ask(question) if self._endpoint else None
            answer = heard if heard is not None else ""
            self._run.answered(digest, answer)
            if heard is None and self._endpoint:
                self._refuse(self._endpoint.failed)
        if not answer:
            return fallback
        blocks = _BLOCK.findall(answer)
        if len(blocks) != 1:
            self._refuse(f"{len(blocks)} fenced blocks, not one")
            return fallback
        try:
            return self.form.parse(blocks[0].strip())  # type: ignore[no-any-return]
        except StrettoError as e:
            self._refuse(str(e).partition(":")[0][:60])
            return fallback

    def judge(self, candidate: Policy, rung: int, *, fresh: int) -> Verdict:
        """Judge as the problem does."""
        return self._problem.judge(candidate, rung, fresh=fresh)

    def held_out(self, candidate: Policy) -> Any:
        """Return the problem's figures."""
        return self._problem.held_out(candidate)

    def extra(self, candidate: Policy) -> Any:
        """Return what the problem adds to a file."""
        return self._problem.extra(candidate)

    def _refuse(self, why: str) -> None:
        self.refusals[why] = self.refusals.get(why, 0) + 1

    def _question(self, parents: Sequence[Policy]) -> str:
        texts = "\n\n".join(f"```\n{self.form.spell(p)}\n```" for p in parents)
        symbols = ", ".join(o.symbol or n for n, o in OPERATORS.items())
        parts = ", ".join(f"{n} ({k})" for n, k in self.form.kinds.items())
        return (
            f"{(type(self._problem).__doc__ or '').strip()}\n\n"
            f"A policy has the parts: {parts}. Terms are made of the features "
            f"{', '.join(self.form.features)}, numbers, and: {symbols}. There are "
            "no other functions, no loops, no state. x / 0 is 0; log(x) is the natural "
            "logarithm of 1 + x.\n\nTwo good ones, the better one first:\n\n"
            f"{texts}\n\nAnswer with one policy that is likely to be better, in one "
            "fenced block, and nothing else in it.\n"
        )
