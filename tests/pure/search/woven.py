"""Weaves on ranks that are not there: numbers that say where they come from.

Steps are done in any order that streams, waits and meets allow. A copy reads when it
begins and writes when it ends, so whoever overtakes it is seen. A place holds a text
that says what lies there; `junk` is what nobody should read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

MEETS = ("free", "stored", "came", "sent")


class Virtual:
    """Ranks that do a weave call after call."""

    def __init__(
        self, steps: Sequence[Any], shape: Any, ranks: int, parts: int
    ) -> None:
        self.steps, self.shape, self.ranks, self.parts = steps, shape, ranks, parts
        self.held: dict[Any, Any] = {}

    def wrong(self, calls: int, rng: random.Random) -> str:
        """Return what went wrong in so many calls, or nothing."""
        n, many = self.ranks, len(self.steps)
        call = [0] * n
        begun = [[0] * many for _ in range(n)]  # 0, 1 under way, 2 done
        under: dict[tuple[int, int], Any] = {}
        at_meet: dict[tuple[int, int], set[int]] = {}
        self.held = {(r, "x"): f"x{r} of 0" for r in range(n)}
        while True:
            ready: list[tuple[str, int, int]] = []
            for r in range(n):
                if call[r] == calls:
                    continue
                if all(s == 2 for s in begun[r]):
                    ready.append(("end", r, 0))
                ready += self._ready(r, begun[r])
            if not ready:
                return "" if all(c == calls for c in call) else "nobody can go on"
            what, r, at = rng.choice(ready)
            if what == "end":
                if said := self._finished(r, call[r]):
                    return said
                call[r] += 1
                begun[r] = [0] * many
                self.held[r, "x"] = f"x{r} of {call[r]}"
            elif what == "meet":
                here = at_meet.setdefault((call[r], at), set())
                here.add(r)
                begun[r][at] = 1
                if len(here) == n:
                    for q in range(n):
                        begun[q][at] = 2
            elif what == "begin":
                under[r, at] = self._read(r, at)
                begun[r][at] = 1
            else:
                for place, value in under.pop((r, at)):
                    self.held[place] = value
                begun[r][at] = 2

    def _ready(self, r: int, begun: list[int]) -> list[tuple[str, int, int]]:
        found = []
        for at, (step, waits) in enumerate(self.steps):
            if begun[at] == 1 and step.do not in MEETS:
                found.append(("finish", r, at))
            if begun[at]:
                continue
            before = [k for k in range(at) if self.steps[k].step.stream == step.stream]
            if all(begun[k] == 2 for k in (*before, *waits)):
                found.append(("meet" if step.do in MEETS else "begin", r, at))
        return found

    def _get(self, *place: Any) -> Any:
        return self.held.get(place, "junk")

    def _read(self, r: int, at: int) -> list[tuple[Any, Any]]:
        """Return what a step will have written when it ends; spoil it until then."""
        step, n, x = self.steps[at].step, self.ranks, self._get(r, "x")
        if step.do == "store":
            made = [((r, "store"), x)]
        else:
            made = []
            for s, p in step.box.cells:
                other = (r + s) % n
                if step.do == "push":
                    made.append((((r - s) % n, "in", s, p), f"{x} part {p}"))
                elif step.do == "pull":
                    made.append(
                        ((r, "in", s, p), f"{self._get(other, 'store')} part {p}")
                    )
                elif step.do == "do":
                    far = self.shape.comes and s
                    come = self._get(r, "in", s, p) if far else f"{x} part {p}"
                    if self.shape.chain:
                        state = self._get(r, "state", p - 1) if p else x
                        come = f"({state})"
                        made.append(((r, "state", p), come))
                        self.held[r, "state", p] = come
                    made.append(((r, "made", s, p), f"f({come}) by {r}"))
                else:
                    made.append(
                        (((other), "back", n - s, p), self._get(r, "made", s, p))
                    )
        for place, _ in made:
            if place[1] != "state":
                self.held[place] = "junk"
        return made

    def _finished(self, r: int, call: int) -> str:
        shape, n = self.shape, self.ranks
        for s in range(0 if shape.own else 1, n):
            q = (r + s) % n
            for p in range(self.parts):
                if shape.goes and s:
                    found = self._get(r, "back", s, p)
                    x = f"x{r if shape.comes else q} of {call}"
                    maker = q
                else:
                    found = self._get(r, "made", s, p)
                    x = f"x{q if shape.comes else r} of {call}"
                    maker = r
                come = (
                    "(" * (p + 1) + x + ")" * (p + 1)
                    if shape.chain
                    else f"{x} part {p}"
                )
                want = f"f({come}) by {maker}"
                if found != want:
                    return f"rank {r}, call {call}, {s}.{p}: {found!r}, not {want!r}"
        return ""
