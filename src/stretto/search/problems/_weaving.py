"""How weaves begin, and how they are changed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from stretto.compiler.weaves import MEETS, LoadShape, PartsBox, Weave, WeaveStep

__all__ = ["CHANGES", "begin", "changed"]

CHANGES = (
    *("stream", "move", "split", "join", "finer", "coarser", "way", "graph", "spare"),
    "cross",
)
_STREAMS = {"do": "mn", "push": "ab", "pull": "ab", "send": "ab", "store": "mab"}
_SPARE = (0, 2, 8, 16, 32)


def begin(
    shape: LoadShape,
    ranks: int,
    parts: int,
    *,
    each: bool = False,
    shares: bool = False,
) -> Weave:
    """Return: own parts first, and others as they come.

    All of them at once, or each part by itself, or each share, or both.
    """
    last = parts - 1
    every = PartsBox(1, ranks - 1, 0, last)
    far = [(s, s) for s in range(1, ranks)] if shares else [(1, ranks - 1)]
    cut = [(p, p) for p in range(parts)] if each else [(0, last)]
    boxes = [PartsBox(*one, *part) for one in far for part in cut]
    steps = [WeaveStep("m", "free")]
    if shape.comes:
        steps += [WeaveStep("a", "push", one) for one in boxes]
    own = [WeaveStep("m", "do", PartsBox(0, 0, 0, last))] if shape.own else []
    if shape.comes:
        steps += own
    for one in boxes:
        if shape.comes:
            steps.append(WeaveStep("m", "came", one))
        steps.append(WeaveStep("m", "do", one))
        if shape.goes:
            steps.append(WeaveStep("b", "send", one))
    if not shape.comes:
        steps += own
    if shape.goes:
        steps.append(WeaveStep("m", "sent", every))
    return Weave(parts, tuple(steps))


def changed(
    weave: Weave, other: Weave, way: str, shape: LoadShape, rng: random.Random
) -> Weave | None:
    """Return a weave that is another in one respect; None where that cannot be."""
    steps = list(weave.steps)
    parts, graph, spare = weave.parts, weave.graph, weave.spare
    at = rng.randrange(len(steps))
    if way == "graph":
        graph = not graph
    elif way == "spare":
        spare = rng.choice(_SPARE)
    elif way == "move":
        steps.insert(rng.randrange(len(steps)), steps.pop(at))
    elif way == "stream":
        steps = _on_streams(steps, at, rng)
    elif way == "split":
        steps[at : at + 1] = _split(steps[at], rng)
    elif way == "join":
        steps = _joined(steps, at)
    elif way == "way":
        steps = _other_way(steps)
    elif way == "cross":
        graph, spare = other.graph, other.spare
        used = {s.do: s.stream for s in other.steps}
        steps = [s._replace(stream=used.get(s.do, s.stream)) for s in steps]
    elif (
        shape.parts
        or (way == "finer" and parts > 8)
        or (way == "coarser" and parts == 1)
    ):
        return None
    else:
        parts = parts * 2 if way == "finer" else parts // 2
        found = [_scaled(s, way, parts) for s in steps]
        steps = [s for i, s in enumerate(found) if s not in found[:i]]
    made = Weave(parts, tuple(steps), graph, spare)
    return made if made != weave else None


def _on_streams(steps: list[WeaveStep], at: int, rng: random.Random) -> list[WeaveStep]:
    """Put a step on another stream; meets go together."""
    step = steps[at]
    if step.do in MEETS:
        to = "s" if step.stream == "m" else "m"
        return [s._replace(stream=to) if s.do in MEETS else s for s in steps]
    to = rng.choice(_STREAMS[step.do])
    return [s._replace(stream=to) if i == at else s for i, s in enumerate(steps)]


def _split(step: WeaveStep, rng: random.Random) -> Sequence[WeaveStep]:
    box = step.box
    if box is None:
        return [step]
    if box.low < box.high and rng.random() < 0.5:
        at = rng.randrange(box.low, box.high)
        return [step._replace(box=b) for b in
                (box._replace(high=at), box._replace(low=at + 1))]  # fmt: skip
    if box.first < box.last:
        at = rng.randrange(box.first, box.last)
        return [step._replace(box=b) for b in
                (box._replace(last=at), box._replace(first=at + 1))]  # fmt: skip
    return [step]


def _joined(steps: list[WeaveStep], at: int) -> list[WeaveStep]:
    """Join a step with the next one that goes on where it ends."""
    one = steps[at]
    for k in range(at + 1, len(steps)):
        other = steps[k]
        if one.box is None or other.box is None or one.do != other.do:
            continue
        a, b = one.box, other.box
        along = a[:2] == b[:2] and b.first == a.last + 1
        across = a[2:] == b[2:] and b.low == a.high + 1
        if along or across:
            whole = PartsBox(a.low, max(a.high, b.high), a.first, max(a.last, b.last))
            later = steps[:at] + steps[at + 1 : k] + [other._replace(box=whole)]
            return later + steps[k + 1 :]
    return steps


def _other_way(steps: list[WeaveStep]) -> list[WeaveStep]:
    """Fetch what was brought, or bring what was fetched."""
    if any(s.do == "push" for s in steps):
        first = next(i for i, s in enumerate(steps) if s.do == "push")
        meet = next(s.stream for s in steps if s.do in MEETS)
        made = [s._replace(do="pull") if s.do == "push" else s for s in steps]
        made = [s for s in made if s.do != "came"]
        return [
            *made[:first],
            WeaveStep("m", "store"),
            WeaveStep(meet, "stored"),
            *made[first:],
        ]
    if any(s.do == "pull" for s in steps):
        meet = next(s.stream for s in steps if s.do in MEETS)
        made = []
        for s in steps:
            if s.do == "do" and s.box and s.box.low:
                made.append(WeaveStep(meet, "came", s.box))
            if s.do not in ("store", "stored"):
                made.append(s._replace(do="push") if s.do == "pull" else s)
        return made
    return steps


def _scaled(step: WeaveStep, way: str, parts: int) -> WeaveStep:
    box = step.box
    if box is None:
        return step
    if way == "finer":
        return step._replace(
            box=box._replace(first=2 * box.first, last=2 * box.last + 1)
        )
    last = min(parts - 1, box.last // 2)
    return step._replace(box=box._replace(first=min(box.first // 2, last), last=last))
