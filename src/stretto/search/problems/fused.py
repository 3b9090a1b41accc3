"""A call that computes and moves at once: what on which stream, in which order.

A candidate is a weave. It is proved and counted, and where there are GPUs it is run on
them, beside the library's collectives and the same matmuls one after the other.
"""

from __future__ import annotations

import os
import random
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stretto.compiler.weaves import LOADS, Weave, placed, prove
from stretto.errors import CallError, StrettoError
from stretto.executors import cuda
from stretto.search.asking import AnsweringRanks
from stretto.search.evolve.problem import Problem, Verdict
from stretto.search.problems._counting import COSTS, counted
from stretto.search.problems._weaving import CHANGES, begin, changed

__all__ = ["OFFER", "FusedProblem"]

_JUDGE = "stretto.torch.weaving.judge"
_BEGIN_S, _DEADLINE_S, _LAST_S = 180.0, 60.0, 400.0
_LAST_INPUTS = 1000


class FusedProblem(Problem[Weave]):
    """Weave matmuls with what is moved: fewer waits, the same numbers."""

    name: ClassVar[str] = "fused"
    apart: ClassVar[bool] = True

    def __init__(
        self,
        load: str,
        ranks: int = 2,
        tokens: int = 8192,
        width: int = 2048,
        device: str = "auto",
        inputs: int = _LAST_INPUTS,
    ) -> None:
        """Search a kind of call of so many rows in all, with so wide matrices.

        `device` is cuda, cpu (small, to try it), none (only proved and counted), or
        auto: cuda where there are GPUs enough. `inputs`: the winner is held against so
        many new inputs at the end.
        """
        if load not in LOADS:
            raise CallError(f"load={load!r}: want {', '.join(LOADS)}")
        least = 2 * ranks
        if not 2 <= ranks <= 8 or tokens < least or tokens % ranks or width < 16:
            raise CallError(
                f"ranks={ranks}, tokens={tokens}, width={width}: want 2 to 8 ranks, at "
                f"least {least} tokens that they divide, and a width of at least 16"
            )
        if load == "kv_transfer" and ranks != 2:
            raise CallError(f"kv_transfer with ranks={ranks}: want 2")
        gpus = cuda.gpus() if device in ("auto", "cuda") else []
        if device == "cuda" and not gpus:
            raise CallError("device=cuda: no GPU is visible; see stretto doctor")
        if device == "auto":
            device = "cuda" if len(gpus) >= ranks else "none"
        if device not in ("cuda", "cpu", "none") or inputs < 1:
            raise CallError(f"device={device!r}: want auto, cuda, cpu or none")
        self._shape = LOADS[load]
        self.load, self.ranks, self.tokens, self.width = load, ranks, tokens, width
        self._device, self._inputs = device, inputs
        self._gpu = gpus[0] if gpus else ""
        self.rungs = ("count",) if device == "none" else ("count", "run")
        self._costs = COSTS[load](ranks, tokens, width)
        self._ranks: AnsweringRanks | None = None

    @classmethod
    def lacks(cls) -> str:
        """Return whether weaves can only be counted here."""
        if len(cuda.gpus()) >= 2:
            return ""
        return "two GPUs: weaves are proved and counted, and not run"

    @property
    def said(self) -> Mapping[str, str]:
        """Return what was given."""
        return {
            "load": self.load, "ranks": str(self.ranks), "tokens": str(self.tokens),
            "width": str(self.width), "device": f"{self._device} {self._gpu}".strip(),
        }  # fmt: skip

    def seeds(self) -> Sequence[Weave]:
        """Return: all at once; parts as they come; shares as they come; in graphs."""
        shape, n = self._shape, self.ranks
        counts = (shape.parts,) if shape.parts else (2, 4)
        made = [begin(shape, n, shape.parts or 1)]
        made += [begin(shape, n, parts, each=True) for parts in counts]
        if n > 2:
            ways = ((1, False), (2, True))
            made += [begin(shape, n, k, each=each, shares=True) for k, each in ways]
        graphs = [Weave(w.parts, w.steps, graph=True) for w in made]
        return [*made, *graphs]

    def fresh(self, rng: random.Random) -> Weave:
        """Return a seed, changed a few times."""
        made = rng.choice(self.seeds())
        for _ in range(rng.randint(1, 6)):
            made = self.change(rng.choice(CHANGES), [made, made], rng)
        return made

    def changes(self) -> Sequence[str]:
        """Return the ways to change weaves."""
        return CHANGES

    def change(self, way: str, parents: Sequence[Weave], rng: random.Random) -> Weave:
        """Return a weave that is right, if some tries find one; else the first."""
        first, second = parents
        for _ in range(12):
            made: Weave | None = first
            for _ in range(rng.choice((1, 1, 2, 3))):
                made = made and changed(made, second, way, self._shape, rng)
                way = rng.choice(CHANGES)
            if made is None:
                continue
            try:
                return self.parse(str(made))
            except StrettoError:
                continue
        return first

    def spell(self, candidate: Weave) -> str:
        """Return a weave as text."""
        return str(candidate)

    def parse(self, text: str) -> Weave:
        """Return the weave of a text, proved for its ranks."""
        weave = Weave.parse(text, self._shape, self.ranks)
        prove(placed(weave, self._shape), self._shape, self.ranks, weave.parts)
        return weave

    def behaviour(self, candidate: Weave) -> str:
        """Return what weaves share of which each stream does and waits for the same."""
        streams: dict[str, list[str]] = {}
        steps = placed(candidate, self._shape)
        for step, waits in steps:
            said = [str(steps[k].step) for k in waits]
            streams.setdefault(step.stream, []).append(f"{step} {said}")
        head = f"{candidate.parts} {candidate.graph} {candidate.spare}"
        return f"{head} {sorted(streams.items())}"

    def size(self, candidate: Weave) -> int:
        """Return how many steps there are."""
        return len(candidate.steps)

    def judge(self, candidate: Weave, rung: int, *, fresh: int) -> Verdict:
        """Return microseconds as counted, or the share of the other way's time."""
        if rung == 0:
            steps = placed(candidate, self._shape)
            us = counted(steps, candidate.parts, self._costs, graph=candidate.graph)
            return Verdict.of(us)
        return Verdict(**self._ask(str(candidate), fresh, 2, _DEADLINE_S, last=False))

    def held_out(self, candidate: Weave) -> Mapping[str, float]:
        """Return the time, and that of the other way, after many new inputs."""
        if len(self.rungs) == 1:
            return {"counted_us": self.judge(candidate, 0, fresh=0).cost}
        found = self._ask(str(candidate), 1 << 39, self._inputs, _LAST_S, last=True)
        if found["refused"]:
            raise CallError(f"{candidate}: {found['refused']}")
        return {"of_the_other_way": found["cost"], "low": found["low"],
                "high": found["high"], **found["facts"]}  # fmt: skip

    def extra(self, candidate: Weave) -> Mapping[str, Any]:
        """Return for what it was found."""
        return {"load": self.load, "ranks": self.ranks, "tokens": self.tokens,
                "width": self.width}  # fmt: skip

    def _ask(
        self, text: str, fresh: int, inputs: int, deadline_s: float, *, last: bool
    ) -> dict[str, Any]:
        """Have ranks judge a text; whoever hangs is ended, and others start anew."""
        if self._ranks is None or not self._ranks.is_alive():
            told = {"load": self.load, "ranks": self.ranks, "tokens": self.tokens,
                    "width": self.width, "device": self._device}  # fmt: skip
            words = [sys.executable, "-m", _JUDGE, str(os.getpid())]
            commands = [[*words, str(rank)] for rank in range(self.ranks)]
            if self._ranks is not None:
                self._ranks.kill()
            try:
                self._ranks = AnsweringRanks(commands, told, _BEGIN_S)
            except CallError as e:
                if self._ranks is None:  # never there: nothing can be judged
                    raise
                return {"refused": str(e)}
            weakref.finalize(self, self._ranks.kill)
        asked = {"text": text, "fresh": fresh, "inputs": inputs, "last": last}
        return self._ranks.ask(asked, deadline_s)


OFFER = FusedProblem
