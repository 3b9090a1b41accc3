"""Which object a cache evicts: a policy for one trace and one size.

A new object begins in a queue of probation, whose share of the bytes is `probation`, or
in the main part if `direct` is true. What leaves the queue goes on to the main part if
`promote` is true. Of the main part, of a few objects drawn at random, the one with the
least `score` is evicted. With `probation = 0` all of it is one score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from stretto.errors import CallError
from stretto.search.evolve.problem import PolicyProblem, Verdict
from stretto.search.language import NUMBER, TRUTH, Form, Policy, code_of, evaluate
from stretto.search.problems._caching import FEATURES, replay
from stretto.search.problems._traces import RequestTrace, load_trace, sampled

__all__ = ["OFFER", "CacheProblem"]

_QUEUED = Form(
    FEATURES,
    kinds={"probation": NUMBER, "direct": TRUTH, "promote": TRUTH, "score": NUMBER},
    defaults={"probation": "0", "direct": "away > 0", "promote": "count > 1"},
    orders=True,
    largest={"age": 1e5, "life": 1e5, "gap": 1e5, "away": 1e5, "size": 1e6, "count": 50,
             "returns": 10, "residents": 1e4},
)  # fmt: skip
_SHARES = (0.1, 0.35, 1.0)
"""Of the objects: what the rungs look at."""


class CacheProblem(PolicyProblem):
    """Misses of a policy, trained on the first half of a trace."""

    name: ClassVar[str] = "cache"
    rungs = ("a tenth", "a third", "the first half")
    form: ClassVar[Form] = _QUEUED
    begin: ClassVar[Sequence[str]] = (
        "score = -age",
        "score = count / age",
        "score = count / (age * size)",
        "score = -age * size",
        "score = count / age + where(away > 0, 1, 0) / gap",
        "probation = 0.1\nscore = -age",
        "probation = 0.1\nscore = count / age",
        "probation = 0.1\npromote = count > 1\nscore = count / (age * size)",
        "score = (count + 2 * returns) / (age * size)",
        "score = -max(age, where(gap > 0, gap, 100000)) * size",
        "probation = 0.05\nscore = -max(age, where(gap > 0, gap, 100000)) * size",
        "probation = 0.01\ndirect = gap > 0\nscore = (count + returns) / size",
    )

    def __init__(self, trace: str, size: float | str = 0.01, sample: int = 32) -> None:
        """Read a trace; `size` is a share of its footprint, such as 0.001 or "0.1%".

        `sample`: how many objects are looked at to evict one.
        """
        self._share = _share(size)
        if not isinstance(sample, int) or not 1 <= sample <= 64:
            raise CallError(f"sample={sample!r}: want 1 to 64")
        self._sample = sample
        whole = load_trace(Path(trace))
        self._digest = hashlib.sha256(whole.ids.tobytes() + whole.sizes.tobytes())
        self._whole = whole
        half = len(whole.ids) // 2
        self._rungs = [
            (sampled(whole.part(0, half), share), share) for share in _SHARES
        ]
        self._capacity = max(1, int(whole.footprint * self._share))

    @property
    def said(self) -> Mapping[str, str]:
        """Return the trace by its digest, and the size."""
        return {
            "trace": self._digest.hexdigest()[:16],
            "size": repr(self._share),
            "sample": str(self._sample),
        }

    def judge(self, candidate: Policy, rung: int, *, fresh: int) -> Verdict:
        """Return the share of requests that miss: on part of the objects, then on all.

        A cache of a tenth of the bytes serves a tenth of the objects.
        """
        trace, share = self._rungs[rung]
        return Verdict.of(self.misses(candidate, trace, share))

    def misses(
        self, policy: Policy, trace: RequestTrace, share: float = 1.0, *, begin: int = 0
    ) -> float:
        """Return the share of requests from `begin` on that miss."""
        codes = {name: code_of(policy[name], FEATURES) for name in self.form.kinds}
        queue = evaluate(codes["probation"], np.zeros((1, len(FEATURES))))[0]
        packed: list[Any] = []
        for name in ("direct", "promote", "score"):
            packed += [codes[name].words, codes[name].values]
        capacity = max(1, int(self._capacity * share))
        room = int(capacity * min(0.9, max(0.0, float(queue))))
        with np.errstate(all="ignore"):
            missed = replay(
                trace.ids, trace.sizes, trace.count, capacity, room, self._sample,
                begin, *packed,
            )  # fmt: skip
        return float(missed) / max(1, len(trace.ids) - begin)

    def held_out(self, candidate: Policy) -> Mapping[str, float]:
        """Return the misses on the second half, after the first, and on all."""
        half = len(self._whole.ids) // 2
        return {
            "second_half": self.misses(candidate, self._whole, begin=half),
            "whole": self.misses(candidate, self._whole),
        }


def _share(size: float | str) -> float:
    text = str(size).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise CallError(f"size={size!r}: want a share of the footprint: 0.001 or 0.1%")
    return share


OFFER = CacheProblem
