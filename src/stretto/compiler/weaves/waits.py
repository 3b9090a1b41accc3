"""What a step waits for: the last steps on other streams that it needs."""

from __future__ import annotations

from typing import NamedTuple

from stretto.compiler.weaves.text import LoadShape, PartsBox, Weave, WeaveStep

__all__ = ["PlacedStep", "placed"]


class PlacedStep(NamedTuple):
    """A step, and the steps before it, on other streams, that it waits for."""

    step: WeaveStep
    waits: tuple[int, ...]


def placed(weave: Weave, shape: LoadShape) -> list[PlacedStep]:
    """Return the steps of a weave with their waits.

    At a call's start all streams wait for the caller's; at its end that waits for all.
    """
    made: list[PlacedStep] = []
    for at, step in enumerate(weave.steps):
        needed = {k for k in range(at) if _needs(weave.steps, at, k, shape)}
        latest: dict[str, int] = {}  # of a stream the last is enough
        for k in needed:
            stream = weave.steps[k].stream
            if stream != step.stream:
                latest[stream] = max(k, latest.get(stream, -1))
        made.append(PlacedStep(step, tuple(sorted(latest.values()))))
    return made


def _needs(steps: tuple[WeaveStep, ...], at: int, k: int, shape: LoadShape) -> bool:
    """Return whether a step needs another before it."""
    step, other = steps[at], steps[k]
    both = _meet(step.box, other.box)
    if step.do in ("store", "push"):
        return other.do == "free"
    if step.do == "send":
        return other.do == "free" or (other.do == "do" and both)
    if step.do == "stored":
        return other.do == "store"
    if step.do == "pull":
        return other.do == "stored"
    if step.do == "came":
        return other.do == "push" and both
    if step.do == "sent":
        return other.do == "send" and both
    if step.do == "do":
        if shape.chain and other.do == "do":
            return True
        return shape.comes and other.do in ("came", "pull") and both
    return False


def _meet(one: PartsBox | None, other: PartsBox | None) -> bool:
    """Return whether two boxes have a part in common."""
    if one is None or other is None:
        return False
    shares = max(one.low, other.low) <= min(one.high, other.high)
    return shares and max(one.first, other.first) <= min(one.last, other.last)
